"""Runs the missing trials of the experiments, one or several at a time, then writes the tables."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import cuda

from frigate.city.folder import open_city
from frigate.errors import FrigateError, MissingExtraError, SettingsError
from frigate.experiments import EXPERIMENTS, Experiment, plots
from frigate.experiments.page import PLAN, write_page
from frigate.experiments.plan import QUICK, Effort, Plan, Recipe
from frigate.experiments.table import ResultTable, as_json, read_table
from frigate.experiments.trials import InputChange, Scored, Trial, carry_out
from frigate.nn.device import best_device
from frigate.progress import Progress
from frigate.reading.files import write_file
from frigate.text import unit_text
from frigate.training.environment import environment
from frigate.training.trainer import OnStep, StepReport

Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduced:
    """The page, and the recipes that were left out, with the reason."""

    page: Path | None  # None without Jinja2
    left_out: dict[str, str]


def reproduce(
    experiments: Sequence[Experiment],
    plan: Plan,
    *,
    jobs: int = 1,
    say: Say = lambda text: None,
    progress: Progress = lambda done, total, words: None,
) -> Reproduced:
    """Run experiments and write their tables, plots and page. Existing results are reused.

    Ctrl-C keeps what is finished; the same call resumes.

    Parameters
    ----------
    experiments : sequence of Experiment
        From `frigate.experiments.named`.
    plan : Plan
        From `make_plan`: the city, the results folder, the sensors and the effort.
    jobs : int
        Models to fit at once, each in its own process.
    say : callable, optional
        Called with a line of text for every model and table.
    progress : callable, optional
        Called with the models done, the total, and a short text.

    Returns
    -------
    Reproduced
        The page, and the models that could not be fitted, with the reason.
    """
    if jobs < 1:
        raise SettingsError(f"jobs = {jobs}: must be at least 1")
    _refuse_other_plan(plan)
    scored = Scored(plan)
    while wanted := _missing(experiments, plan, scored):
        scored.left_out |= _run_trials(plan, wanted, jobs, say, progress)
    for experiment in experiments:
        _write(experiment, plan, scored, say)
    page = None
    try:
        page = write_page(plan.results, order=[experiment.name for experiment in EXPERIMENTS])
    except MissingExtraError as error:
        say(f"no page: {error}")
    return Reproduced(page, scored.left_out)


def _refuse_other_plan(plan: Plan) -> None:
    """Refuse a folder with results of another city or effort: they must not be mixed."""
    wanted = as_json(
        {
            "city": plan.city.name,
            "network": plan.city.network.fingerprint,
            "readings": plan.city.stream.digest,
            "settings": plan.effort.changes,
            "stride": plan.effort.stride,
            "trees": plan.effort.trees,
            "splits": plan.splits and plan.splits.name,
        }
    )
    path = plan.results / PLAN
    try:
        if not path.exists():
            write_file(path, wanted)
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{plan.results}: {error.strerror}. Choose another folder with -o") from None
    except ValueError:
        raise SettingsError(f"{path}: damaged. Choose another folder with -o") from None
    others = [name for name, value in json.loads(wanted).items() if recorded.get(name) != value]
    if others:
        raise SettingsError(
            f"{plan.results} has results with different {' and '.join(others)}. Choose another folder with -o"
        )


def _missing(experiments: Sequence[Experiment], plan: Plan, scored: Scored) -> dict[Recipe, list[InputChange]]:
    wanted: dict[Recipe, list[InputChange]] = {}
    asked = dict.fromkeys(trial for experiment in experiments for trial in experiment.trials(plan, scored))
    for trial in asked:
        if not scored.settled(trial):
            wanted.setdefault(trial.recipe, []).append(trial.change)

    def cost(recipe: Recipe) -> int:
        return 2 if recipe.model == "default" or recipe.roads else int(recipe.trained)

    # Longest first, so that parallel jobs end at about the same time.
    return {recipe: wanted[recipe] for recipe in sorted(wanted, key=cost, reverse=True)}


def _run_trials(
    plan: Plan, wanted: dict[Recipe, list[InputChange]], jobs: int, say: Say, progress: Progress
) -> dict[str, str]:
    """Fit and score. Returns the recipes that failed for reasons that the user can fix."""
    left_out: dict[str, str] = {}
    began = time.perf_counter()
    done = 0

    def finish(recipe: Recipe, error: str | None) -> None:
        nonlocal done
        done += 1
        if error is not None:
            left_out[recipe.name] = error
        outcome = "done" if error is None else f"left out: {error}"
        say(f"{recipe.name}: {outcome} ({done}/{len(wanted)}, {time.perf_counter() - began:.0f} s)")
        progress(done, len(wanted), "")

    if jobs == 1:
        for recipe, changes in wanted.items():
            progress(done, len(wanted), recipe.name)

            def on_step(step: StepReport, name: str = recipe.name) -> None:
                progress(done, len(wanted), f"{name}, epoch {step.epoch + 1}/{step.epochs}")

            finish(recipe, _attempt(plan, recipe, changes, on_step))
        return left_out
    if plan.city.folder is None:
        raise SettingsError("jobs > 1 needs a city on disk. Write it with write_city first")
    context = multiprocessing.get_context("spawn")  # a process that has used a GPU cannot be forked
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        options = {name: value for name, value in vars(plan).items() if name != "city"}
        futures: dict[Future[str | None], Recipe] = {
            pool.submit(_in_process, plan.city.folder, options, recipe, changes, 1 / jobs): recipe
            for recipe, changes in wanted.items()
        }
        try:
            for future in as_completed(futures):
                finish(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return left_out


def _attempt(plan: Plan, recipe: Recipe, changes: list[InputChange], on_step: OnStep | None) -> str | None:
    """None, or why it failed, if the user can fix it."""
    try:
        carry_out(plan, recipe, changes, on_step)
    except FrigateError as error:
        return str(error)
    except cuda.OutOfMemoryError as error:
        return f"out of memory: {str(error).partition('. ')[0]}"
    return None


_open_once = lru_cache(maxsize=1)(open_city)


def _in_process(
    folder: Path, options: dict[str, Any], recipe: Recipe, changes: list[InputChange], share: float
) -> str | None:
    """Run a recipe in a worker process with a share of the GPU's memory. `options`: the plan's fields but the city."""
    plan = Plan(city=_open_once(folder), **options)
    if best_device(plan.device).type == "cuda":
        cuda.set_per_process_memory_fraction(share)
    return _attempt(plan, recipe, changes, None)


def _write(experiment: Experiment, plan: Plan, scored: Scored, say: Say) -> None:
    """Write NAME.json and NAME.csv, and the plot if matplotlib is installed."""
    path = plan.results / f"{experiment.name}.json"
    trials = experiment.trials(plan, scored)
    asked = _asked(plan, experiment)
    table = read_table(path)
    if trials or isinstance(table, str) or table.more.get("asked") != asked:  # from trials, it is quick to remake
        began = time.perf_counter()
        table = experiment.measure(plan, scored)
        recipes = dict.fromkeys(trial.recipe for trial in trials)
        why = scored.left_out
        missing = [f"Left out: {each.label} ({why[each.name]})." for each in recipes if each.name in why]
        notes = [*table.notes, *dict.fromkeys(missing)]
        about = _about(experiment, plan, trials, scored)
        about |= {"seconds": round(time.perf_counter() - began, 3), "asked": asked}
        table = replace(table, notes=notes, more={**about, **table.more})
        write_file(path, as_json(table.to_json()))
        write_file(path.with_suffix(".csv"), table.to_csv())
        table = ResultTable.from_json(json.loads(path.read_text(encoding="utf-8")))
    if not table.rows:
        say(f"{experiment.name}: nothing to show")
        return
    try:
        plots.save(lambda: experiment.draw(table), path.with_suffix(""), title=table.caption)
    except MissingExtraError as error:
        say(f"{experiment.name}: no plot: {error}")
    say(f"{experiment.name}: {path}")


def _asked(plan: Plan, experiment: Experiment) -> str:
    """Sixteen hex digits that identify the experiment and its options."""
    options = [experiment.name, plan.seen, asdict(plan.effort), plan.models, str(best_device(plan.device))]
    return hashlib.sha256(json.dumps(options).encode()).hexdigest()[:16]


def _about(experiment: Experiment, plan: Plan, trials: list[Trial], scored: Scored) -> dict[str, Any]:
    """Everything needed to repeat the experiment."""
    stream = plan.city.stream
    effort = plan.effort
    this_machine = environment(best_device(plan.device))
    facts = {trial.recipe.name: scored.facts(trial.recipe) for trial in trials if scored.has(trial)}
    machines = [{name: each[name] for name in this_machine if name in each} for each in facts.values()]
    machines = machines or [this_machine]
    machines = [machine for at, machine in enumerate(machines) if machine not in machines[:at]]
    return {
        "city": plan.city.name,
        "command": _command(experiment, plan),
        "unit": unit_text(stream.quantity, stream.unit, stream.step_s),
        "seen": plan.seen,
        "seeds": list(effort.seeds),
        "effort": asdict(effort),
        "splits": plan.splits and plan.splits.name,
        "hardware": ", ".join(dict.fromkeys(machine["hardware"] for machine in machines)),
        "machines": machines,  # fitted and scored the models
        "versions": this_machine["versions"],  # made this table
        "settings": {name: each["settings"] for name, each in facts.items() if "settings" in each},
    }


def _command(experiment: Experiment, plan: Plan) -> str:
    """The command as a user would type it, with folder names instead of paths."""
    words = ["frigate", "reproduce", experiment.name, plan.city.name, "--seen", f"{plan.seen:.0%}"]
    words += ["--seeds", ",".join(map(str, plan.effort.seeds))]
    words += ["--splits", plan.splits.name] if plan.splits is not None else []
    words += ["--models", ",".join(plan.models)] if plan.models else []
    quick = plan.effort.stride == QUICK.stride
    usual = QUICK if quick else Effort()
    size, default = (effort.changes.get("train", {}).get("batch_size") for effort in (plan.effort, usual))
    words += [] if size == default else ["--batch-size", str(size)]
    return shlex.join([*words, *(["--quick"] if quick else [])])
