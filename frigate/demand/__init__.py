"""Travel demand: trips sampled on the network and calibrated to the sensor counts; flows everywhere follow from them.

A trip that passes a sensor also passes the nodes before and after it, so the map and the counts together say something
about nodes without a sensor. Planners call this origin-destination estimation from counts (Van Zuylen and Willumsen
1980). `route_search` samples the trips, `calibration` fits their flows to the counts, `estimate` combines both for a
city, `tuning` selects search settings on held-out sensors, `sensor_shares` adjusts to the latest readings, `rerouting`
reroutes trips around closed roads, `flows` reports link flows and the trips through a road.
"""
