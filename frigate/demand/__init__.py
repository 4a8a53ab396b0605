"""Who drives where: trips sampled on the network, their numbers calibrated to the sensors, the flow read off.

A trip that passes a sensor also passes the nodes before and after it: that is what the map and the readings together
say about a node without a sensor. Planners call it origin-destination estimation from counts (Van Zuylen and Willumsen
1980). `route_search` samples the trips, `calibration` finds how many vehicles make each, `estimate` puts it together
for a city, `tuning` chooses the searches by hiding sensors, `sensor_shares` follows the latest readings, `rerouting`
sends trips round closed roads, `flows` lists the trips through a road.

May import: `graph`, `data` and below.
"""
