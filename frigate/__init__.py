"""Forecast traffic at every intersection of a road network from sensors at a few of them.

>>> import frigate as fg
>>> city = fg.read_city("luxembourg")
>>> run = fg.train(city, seen=0.3)
>>> fg.evaluate(run)
>>> fg.forecast(run, city.network.close([(41, 42)]))
"""

from frigate.config import Settings, preset
from frigate.data.city import City, read_city, write_city
from frigate.data.network import RoadNetwork
from frigate.data.stream import RoadNetworkStream, make_stream
from frigate.errors import CheckpointError, CityError, FrigateError, MissingExtraError, SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.evaluation.results import Evaluation
from frigate.forecasting.forecast import Forecast, forecast
from frigate.simulate.demo_city import demo_city
from frigate.training.checkpoint import load_run
from frigate.training.run import Run
from frigate.training.train import train

__all__ = [
    "CheckpointError",
    "City",
    "CityError",
    "Evaluation",
    "Forecast",
    "FrigateError",
    "MissingExtraError",
    "RoadNetwork",
    "RoadNetworkStream",
    "Run",
    "Settings",
    "SettingsError",
    "demo_city",
    "evaluate",
    "forecast",
    "load_run",
    "make_stream",
    "preset",
    "read_city",
    "train",
    "write_city",
]
