"""The field's data sets as their publishers give them: METR-LA, PEMS, LibCity, the paper's authors' layout."""
