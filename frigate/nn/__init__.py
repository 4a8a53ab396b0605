"""The model: what it sees (batch, topology, scaling), the paper's equations (model, layers, moments), the arithmetic
and the kernels behind them (ops), and how a model is run (predictor, partition). All models share the interface of
`forecaster`.

May import: `graph`, `data` and below.
"""
