"""Forecast traffic at every intersection of a road network from sensors at a few of them.

>>> import frigate as fg
>>> city = fg.read_city("luxembourg")
>>> run = fg.train(city, seen=0.3)
>>> fg.evaluate(run)
>>> fg.forecast(run, city.network.close([(41, 42)]))
"""

from typing import TYPE_CHECKING

from frigate.version import __version__ as __version__

__all__ = [
    "CheckpointError",
    "City",
    "CityError",
    "Demand",
    "Evaluation",
    "Forecast",
    "Forecaster",
    "FrigateError",
    "Live",
    "MissingExtraError",
    "RoadChange",
    "RoadNetwork",
    "RoadNetworkStream",
    "Run",
    "Scenario",
    "Settings",
    "SettingsError",
    "change",
    "compare_scenarios",
    "demo_city",
    "estimate_demand",
    "evaluate",
    "forecast",
    "import_benchmark",
    "import_matrix",
    "import_osm",
    "import_sumo",
    "import_tables",
    "import_traces",
    "load_run",
    "make_stream",
    "place",
    "preset",
    "read_city",
    "train",
    "trips_through",
    "write_city",
    "write_report",
]

if TYPE_CHECKING:
    from frigate.city.city import City
    from frigate.city.folder import read_city, write_city
    from frigate.city.network import RoadNetwork
    from frigate.city.stream import RoadNetworkStream, make_stream
    from frigate.config import Settings, change, preset
    from frigate.demand.estimate import Demand
    from frigate.demand.flows import trips_through
    from frigate.demand.trip_model import estimate_demand
    from frigate.errors import CheckpointError, CityError, FrigateError, MissingExtraError, SettingsError
    from frigate.evaluation.evaluate import evaluate
    from frigate.evaluation.results import Evaluation
    from frigate.forecasting.forecast import forecast
    from frigate.forecasting.forecaster import Forecaster
    from frigate.forecasting.live import Live
    from frigate.forecasting.plan import RoadChange
    from frigate.forecasting.result import Forecast
    from frigate.forecasting.scenarios import Scenario, compare_scenarios
    from frigate.pages.run_page import write_report
    from frigate.planning.placement import place
    from frigate.simulate.demo_city import demo_city
    from frigate.sources.benchmarks.importer import import_benchmark
    from frigate.sources.matrix import import_matrix
    from frigate.sources.osm.importer import import_osm
    from frigate.sources.sumo.importer import import_sumo
    from frigate.sources.tables.importer import import_tables
    from frigate.sources.traces.importer import import_traces
    from frigate.training.checkpoint import load_run
    from frigate.training.run import Run
    from frigate.training.train import train
else:
    from importlib import import_module

    # Lazy imports, so that `import frigate` and `frigate --help` do not wait seconds for torch.
    _NAMES_IN = {
        "frigate.city.city": ("City",),
        "frigate.city.folder": ("read_city", "write_city"),
        "frigate.city.network": ("RoadNetwork",),
        "frigate.city.stream": ("RoadNetworkStream", "make_stream"),
        "frigate.config": ("Settings", "change", "preset"),
        "frigate.demand.estimate": ("Demand",),
        "frigate.demand.flows": ("trips_through",),
        "frigate.demand.trip_model": ("estimate_demand",),
        "frigate.errors": ("CheckpointError", "CityError", "FrigateError", "MissingExtraError", "SettingsError"),
        "frigate.evaluation.evaluate": ("evaluate",),
        "frigate.evaluation.results": ("Evaluation",),
        "frigate.forecasting.forecast": ("forecast",),
        "frigate.forecasting.forecaster": ("Forecaster",),
        "frigate.forecasting.live": ("Live",),
        "frigate.forecasting.plan": ("RoadChange",),
        "frigate.forecasting.result": ("Forecast",),
        "frigate.forecasting.scenarios": ("Scenario", "compare_scenarios"),
        "frigate.pages.run_page": ("write_report",),
        "frigate.planning.placement": ("place",),
        "frigate.simulate.demo_city": ("demo_city",),
        "frigate.sources.benchmarks.importer": ("import_benchmark",),
        "frigate.sources.matrix": ("import_matrix",),
        "frigate.sources.osm.importer": ("import_osm",),
        "frigate.sources.sumo.importer": ("import_sumo",),
        "frigate.sources.tables.importer": ("import_tables",),
        "frigate.sources.traces.importer": ("import_traces",),
        "frigate.training.checkpoint": ("load_run",),
        "frigate.training.run": ("Run",),
        "frigate.training.train": ("train",),
    }
    _MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'frigate' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_MODULE_OF[name]), name)
        return value

    def __dir__():
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
