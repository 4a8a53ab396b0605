"""The demo town: its streets, who drives where, and the counts at every intersection. All from one seed.

May import: `data` and below.
"""
