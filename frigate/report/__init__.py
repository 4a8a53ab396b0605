"""Pages and charts that a person looks at: the report of a run, what `frigate check --html` draws, and a map of demand.

May import: `evaluation`, `check` and below.
"""
