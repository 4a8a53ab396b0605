"""GPS traces, matched to the roads and counted."""
