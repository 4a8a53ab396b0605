"""HTML pages: the report of a run, the page of `frigate check --html`, and the map of demand."""
