"""What a city is: a road network and a stream of readings, the folder on disk and its cache.

    network, stream      RoadNetwork and RoadNetworkStream, the arrays that everything else works on
    city, folder, cache  City; read_city and write_city; the cache that opens with numpy alone
    append, exclude      readings added to a city that is there; readings that a person leaves out
    tables, spreadsheets, column_names, columns    CSV, Parquet and Excel, which column is which, and what it holds
    times, coordinates   times as people write them; longitude, latitude and distances
    city_toml, network_tables, readings, changes, turns, sensor_table    the files of a city folder, one by one
    detectors            the detectors' own names, and how far each was moved to its node
    bucketing            readings into snapshots: counts summed, gauges latest, for every source
    split                which nodes are sensors and which are only scored; which times train, validate and test
    notices, files, sandbox, progress    what an import reports; atomic writes; limits on reading; progress

May import: `config` and `errors`, nothing else of Frigate.
"""
