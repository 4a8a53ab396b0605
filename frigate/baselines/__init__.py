"""Forecasters to compare a model with. Imports `nn` and what `nn` imports.

`naive` ones are fitted in a moment and stand in every table; `kriging` and `boosted_trees` are fitted once for a city;
the deep ones (`dcrnn` and the others) share `deep` and are trained as Frigate is.
"""
