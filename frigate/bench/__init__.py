"""`frigate bench`: speed and memory of training steps, forecasts and live updates, compared with a plain PyTorch
Geometric baseline.
"""

from frigate.bench.measure import bench
from frigate.bench.synthetic import synthetic_network

__all__ = ["bench", "synthetic_network"]
