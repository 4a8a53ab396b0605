"""A user's own tables of roads and readings, in any column names, and detectors attached to a network."""
