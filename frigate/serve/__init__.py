"""A trained run as a service: readings in, forecasts out. Store, ingest, clock, API, tokens.

May import: report and below. The page that it shows is built from `page/` into `frigate/serve/static/`.
"""
