"""The model: what it sees (batch, scaling); the paper's equations (model, layers, moments); the kernels behind.

May import: `graph`, `data` and below.
"""
