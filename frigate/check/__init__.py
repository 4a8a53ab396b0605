"""What is in a city and what is wrong with it: the city as a whole, and its sensors one by one.

May import: `graph`, `data` and below. The page that shows it is in `report`.
"""
