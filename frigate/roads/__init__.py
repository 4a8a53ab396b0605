"""What the map alone tells: anchors and positions, nearest sensors, road features, betweenness; the lines of roads, and
the line graph of roads and turns.
"""
