"""Serves a trained run: readings in, forecasts out. Store, ingest, clock, API, tokens.

May import: report and below. The map page is built from `page/` into `frigate/serve/static/`.
"""
