"""The paper's tables and figures, one experiment each.

`reproduce` collects the trials that the experiments need, runs those that are missing, then writes RESULTS/NAME.json,
.csv, .png and .svg for each experiment, and RESULTS/report.html. Existing results are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frigate.errors import SettingsError, did_you_mean
from frigate.experiments import accuracy, breakdowns, city_data, model_costs, plots, theory, variations
from frigate.experiments.plan import QUICK, Effort, Plan
from frigate.experiments.table import ResultTable
from frigate.experiments.trials import Scored, Trial

__all__ = ["EXPERIMENTS", "QUICK", "Effort", "Experiment", "Plan", "named"]


def _no_trials(plan: Plan, scored: Scored) -> list[Trial]:
    return []


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the trials it needs, how they become a table, and how that is drawn."""

    name: str
    measure: Callable[[Plan, Scored], ResultTable]
    draw: Callable[[ResultTable], plots.Figure]
    trials: Callable[[Plan, Scored], list[Trial]] = _no_trials  # may return more once the first are done


def _direct(
    name: str, measure: Callable[[Plan], ResultTable], draw: Callable[[ResultTable], plots.Figure]
) -> Experiment:
    """An experiment without any training."""
    return Experiment(name, lambda plan, scored: measure(plan), draw)


EXPERIMENTS = (
    _direct("datasets", city_data.measure_datasets, city_data.draw_datasets),
    _direct("profile", city_data.measure_profile, city_data.draw_profile),
    Experiment("accuracy", accuracy.measure, accuracy.draw, accuracy.trials),
    Experiment("horizon", breakdowns.measure_horizon, breakdowns.draw_horizon, breakdowns.horizon_trials),
    Experiment("traffic-buckets", breakdowns.measure_traffic, breakdowns.draw_traffic, breakdowns.traffic_trials),
    Experiment("seen-sweep", breakdowns.measure_sweep, breakdowns.draw_sweep, breakdowns.sweep_trials),
    Experiment("ablation", variations.measure_ablation, variations.draw_ablation, variations.ablation_trials),
    Experiment("layers", variations.measure_layers, variations.draw_layers, variations.layers_trials),
    Experiment("topology", variations.measure_topology, variations.draw_topology, variations.topology_trials),
    Experiment("irregular", variations.measure_irregular, variations.draw_irregular, variations.irregular_trials),
    _direct("distortion", theory.measure_distortion, theory.draw_distortion),
    _direct("expressivity", theory.measure_expressivity, theory.draw_expressivity),
    _direct("parameters", model_costs.measure_parameters, model_costs.draw_parameters),
    _direct("inference-time", model_costs.measure_time, model_costs.draw_time),
)


def named(names: str) -> Sequence[Experiment]:
    """The experiments with these comma-separated names, or `all`."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known and name != "all":
            hint = did_you_mean(name, ["all", *known])
            raise SettingsError(f'unknown experiment "{name}"{hint}. Known: all, {", ".join(known)}')
    return EXPERIMENTS if "all" in wanted else [known[name] for name in dict.fromkeys(wanted)]
