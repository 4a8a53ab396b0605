"""Forecasting with a trained run. `forecaster` is the one object that every forecast is asked of; `live` forecasts with
each new snapshot, `export` for other programs.
"""
