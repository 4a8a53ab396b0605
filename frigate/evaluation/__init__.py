"""Evaluation: metrics, scoring a model and the baselines, and the results as tables and JSON."""
