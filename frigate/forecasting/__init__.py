"""Forecasting with a trained run: at one time, live with each new snapshot, or exported for other programs.

May import: `training` and below.
"""
