"""Pages and charts that a person looks at: the report of a run, and what `frigate check --html` draws.

May import: `evaluation`, `check` and below.
"""
