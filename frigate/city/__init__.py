"""What a city is: a road network and a stream of readings, the folder on disk and its cache.

network, stream, changes  RoadNetwork and RoadNetworkStream, and how roads change: what everything else works on
city, folder, cache       City; read_city and write_city; the cache that opens with numpy alone
split, periods            which nodes are sensors and which are only scored; which times train, validate and test
bucketing                 readings into snapshots, for every source: counts are summed, a gauge keeps its latest
append, exclude           add readings to an existing city; leave out readings the user lists
city_toml, network_tables, readings, turns, sensor_table    the files of a city folder, one by one
detectors, outliers       the detectors' own names, and how far each is from its node; implausible readings
"""
