"""A city from the SUMO traffic simulator: its network, and the counts of edge data or induction loops."""
