"""The model: what it sees (batch, topology, scaling), the paper's equations (model, layers, moments), the arithmetic
and the kernels behind them (ops), how it is run (predictor, partition). `forecaster` is the interface of all models.

May import: `graph`, `data` and below.
"""
