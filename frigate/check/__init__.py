"""Check what is in a city and what is wrong with it: the city as a whole, and each of its sensors.

May import: `graph`, `data` and below. `report` shows the result as a page.
"""
