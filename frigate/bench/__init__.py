"""`frigate bench`: training step, forecast, tick, memory, positions and road features, beside the usual way."""

from frigate.bench.invented import invent_network
from frigate.bench.measure import bench

__all__ = ["bench", "invent_network"]
