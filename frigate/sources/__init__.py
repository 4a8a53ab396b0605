"""Importers that make cities: from OpenStreetMap, SUMO, GPS traces, a user's own tables, public benchmarks or a matrix.
The line graph turns any of them into a city on roads.

May import: `graph`, `data` and below. Each folder's `importer` is what the command line calls.
"""
