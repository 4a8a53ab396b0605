"""Forecasters to compare a model with. `naive` ones are fitted in a moment and stand in every table."""
