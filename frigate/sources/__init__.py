"""Files of others, made into cities: OpenStreetMap, SUMO, GPS traces, a user's own tables, the field's data sets, a
matrix; and the line graph that turns any of them into a city on roads.

May import: `graph`, `data` and below. Each folder's `importer` is what the command line calls.
"""
