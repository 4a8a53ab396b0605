"""Serves a trained run: readings in, forecasts out. Store, ingest, clock, API, tokens."""
