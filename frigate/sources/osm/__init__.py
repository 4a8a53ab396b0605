"""A road network from OpenStreetMap: PBF, XML, Overpass JSON, and GraphML as OSMnx writes it."""
