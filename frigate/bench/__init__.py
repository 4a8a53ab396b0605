"""`frigate bench`: training step, forecast, tick, memory, positions and road features, beside the usual way."""

from frigate.bench.measure import bench
from frigate.bench.synthetic import invent_network

__all__ = ["bench", "invent_network"]
