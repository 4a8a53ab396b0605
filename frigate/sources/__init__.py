"""Other people's data, made into cities."""
