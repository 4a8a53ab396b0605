"""How good a forecast is: metrics, a model scored beside the baselines, and the result as tables and JSON.

May import: `forecasting` and below.
"""
