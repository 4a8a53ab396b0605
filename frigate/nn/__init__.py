"""The model: its inputs (batch, topology, scaling), the paper's equations (model, layers, moments), the operations and
kernels behind them (ops), and inference (predictor, partition). All models share the interface in `forecaster`.

May import: `graph`, `data` and below.
"""
