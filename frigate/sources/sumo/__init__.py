"""Import from the SUMO traffic simulator: its network, and counts from edge data or induction loops."""
