"""The model: its inputs (batch, windows, network_views, topology, scaling), the paper's equations (model, layers,
moments), the operations and kernels behind them (ops), and inference (predictor, partition). All models share the
interface in `forecast_model`.
"""
