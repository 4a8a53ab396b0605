"""Where to count next: how much each place's count would tell about all others, and which sensors tell least."""
