"""What the map alone tells about a node: anchors and positions, nearest sensors, road features, betweenness.

May import: `data` and below.
"""
