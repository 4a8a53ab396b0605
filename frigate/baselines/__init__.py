"""Forecasters to compare a model with. Imports `nn` and what `nn` imports.

The `naive` ones are quick to fit and appear in every table; `kriging` and `boosted_trees` are fitted once per city;
the deep ones (`dcrnn` and others) share `deep` and are trained like Frigate.
"""
