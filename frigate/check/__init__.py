"""Check what is in a city and what is wrong with it: the city as a whole, and each of its sensors."""
