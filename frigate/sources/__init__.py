"""Importers that make cities: of OpenStreetMap, SUMO, GPS traces, your own tables, public benchmarks or a matrix.

Each folder's `importer` is what the command line calls.
"""
