"""Public benchmark data sets as published: METR-LA, PEMS, LibCity, and the layout of the paper's authors."""
