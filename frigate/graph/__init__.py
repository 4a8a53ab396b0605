"""What the map alone says about a node: anchors and positions, the nearest sensors, road features, betweenness.

May import: `data` and below.
"""
