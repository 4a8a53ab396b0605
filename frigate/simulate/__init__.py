"""The demo town: its streets, its traffic, and the counts at every intersection, all from one seed."""
