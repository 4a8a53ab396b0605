"""What a city is: a road network and a stream of readings, the folder on disk and its cache.

    network, stream      RoadNetwork and RoadNetworkStream, the arrays that everything else works on
    city, folder, cache  City; read_city and write_city; the cache that opens with numpy alone
    append, exclude      add readings to an existing city; leave out readings the user lists
    tables, spreadsheets, column_names, columns    CSV, Parquet and Excel, which column is which, and what it holds
    times, coordinates   times in all common formats; longitude, latitude and distances
    city_toml, network_tables, readings, changes, turns, sensor_table    the files of a city folder, one by one
    detectors            the detectors' own names, and how far each is from its node
    bucketing            readings into snapshots, for every source: counts are summed, a gauge keeps its latest reading
    split                which nodes are sensors and which are only scored; which times train, validate and test
    notices, files, sandbox, progress    what an import reports; atomic writes; limits on file readers; progress

May import: `config` and `errors`, nothing else of Frigate.
"""
