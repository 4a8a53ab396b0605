"""Import a user's own tables of roads and readings, and attach detectors to a network."""
