"""What a city is: its road network, its stream of readings, the folder on disk and its cache, tables, times, and the
split into sensors and test nodes.

May import: `config` and `errors`, nothing else of Frigate.
"""
