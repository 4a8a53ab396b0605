"""Write the tables of the documents from the JSON files in benchmarks/results.

    python benchmarks/tables.py            rewrite what stands between the markers
    python benchmarks/tables.py --check    change nothing; status 1 where a document is out of date

A document holds `<!-- table: NAME -->` and, below it, `<!-- end -->`. No number between them is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from textwrap import fill
from typing import Any

import bench_tables
import placement_tables
from bench_tables import RESULTS, ROOT, not_measured, table

DOCUMENTS = (
    "README.md",
    "docs/accuracy.md",
    "docs/demand.md",
    "docs/operations.md",
    "docs/paper-to-code.md",
    "docs/performance.md",
    "docs/place.md",
    "docs/results.md",
)
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PRESETS = ("default", "paper")
OURS = "frigate (default)"
OWN = "own median (a sensor there)"
NAIVE = ("zero", "constant median", "clock profile", "nearest sensors", "label propagation")
STANDINGS = {  # the rows of demand/accuracy-h200.json: city, and which sensors
    "sf-taxi-core-30": "sf-taxi-core, 30 %",
    "sf-taxi-core-10": "sf-taxi-core, 10 %",
    "sf-taxi-10": "sf-taxi, 10 %",
    "lux-sim-30": "lux-sim, 30 %",
    "sf-taxi-core-region-75": "sf-taxi-core, none in a quarter of the area",
}


@dataclass(frozen=True)
class Result:
    """One file of benchmarks/results/accuracy: a run trained and evaluated."""

    split: str  # "sf-taxi-core-30-0": the file of seen nodes
    variant: str
    seed: int
    data: dict[str, Any]

    @property
    def city(self) -> str:
        return self.split.rsplit("-", 2)[0]

    @property
    def model(self) -> dict[str, Any]:
        row: dict[str, Any] = self.data["evaluation"]["rows"][0]
        return row

    def row(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = next(row for row in self.data["evaluation"]["rows"] if row["name"] == name)
        return row


def read_results(folder: Path) -> list[Result]:
    found = []
    for path in sorted(folder.glob("*.json")):
        match = re.fullmatch(r"(.+-\d+-\d+)-(.+)-seed(\d+)", path.stem)
        if match:
            found.append(Result(match[1], match[2], int(match[3]), json.loads(path.read_text(encoding="utf-8"))))
    return found


def chosen(results: Iterable[Result], *, city: str | None = None, variant: str | None = None) -> list[Result]:
    return [r for r in results if city in (None, r.city) and variant in (None, r.variant)]


def cities(results: Iterable[Result]) -> list[str]:
    return sorted({r.city for r in results}, reverse=True)


def number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def measured(measure: dict[str, float]) -> str:
    return f"{number(measure['value'])} [{number(measure['low'])}, {number(measure['high'])}]"


def percent(measure: dict[str, float]) -> str:
    return f"{100 * measure['value']:.0f} % [{100 * measure['low']:.0f}, {100 * measure['high']:.0f}]"


def maes(results: list[Result]) -> list[float]:
    return [r.model["unseen"]["mae"]["value"] for r in results]


def clear(r: Result) -> bool:
    """Whether the interval of the model's MAE lies below the interval of every naive baseline's."""
    return all(r.model["unseen"]["mae"]["high"] < r.row(name)["unseen"]["mae"]["low"] for name in NAIVE)


def with_demand(of: str) -> list[dict[str, Any]]:
    """The rows of each split of a city and share of sensors, as `frigate evaluate` gave them."""
    rows = json.loads((RESULTS / "demand" / "accuracy-h200.json").read_text(encoding="utf-8"))["rows"]
    return [row for split, row in rows.items() if split.rsplit("-", 1)[0] == of]


def lightgbm() -> dict[str, dict[str, Any]]:
    """LightGBM on splits that `frigate reproduce` did not fit it on, by split."""
    rows: dict[str, dict[str, Any]] = json.loads((RESULTS / "demand" / "lightgbm.json").read_text("utf-8"))["rows"]
    return rows


def mean_mae(splits: list[dict[str, Any]], name: str, where: str = "unseen") -> float:
    return float(mean(split[name][where]["value"] for split in splits))


def three(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def summary(results: list[Result]) -> str:
    """Every kind of forecaster in every city, means over the splits."""
    names = cities(results)
    found = [with_demand(f"{city}-30") for city in names]
    papers = [chosen(results, city=city, variant="paper") for city in names]

    def trees(name: str) -> list[str]:
        means = []
        for city in names:
            runs = (run for run in reproduced("accuracy")[city]["runs"] if run["model"] == name)
            others = (row[name] for split, row in lightgbm().items() if split.startswith(f"{city}-30-") and name in row)
            means.append(mean([*(r["unseen"]["mae"]["value"] for r in runs), *(r["unseen"]["value"] for r in others)]))
        return [*map(number, means)]

    def of_splits(name: str) -> list[float]:
        return [mean_mae(splits, name) for splits in found]

    def naive_best(splits: list[dict[str, Any]]) -> float:
        return min(mean_mae(splits, name) for name in NAIVE)

    def ours(splits: list[dict[str, Any]]) -> str:
        zero = mean(split[OURS]["of_zero"] for split in splits)
        share = mean(split[OURS]["share_of_sensor"]["value"] for split in splits)
        return f"**{mean_mae(splits, OURS):.3f}** ({zero:.3f}, {100 * share:.0f} %)"

    rows = [
        ["Frigate, `default`", *(ours(splits) for splits in found)],
        ["demand alone, nothing learned", *map(number, of_splits("demand alone"))],
        ["LightGBM with demand", *trees("LightGBM with demand")],
        ["LightGBM without demand", *trees("LightGBM")],
        ["LightGBM on map and clock, without readings", *trees("LightGBM, map and clock alone")],
        ["the paper's model, `paper`", *(number(mean(maes(runs))) for runs in papers)],
        ["best naive baseline", *(number(naive_best(splits)) for splits in found)],
        ["*each node's own median (a sensor there)*", *map(number, of_splits(OWN))],
    ]
    return table(["MAE at nodes without a sensor", *names], rows)


def standing(_: list[Result]) -> str:
    """Where `default` stands: means of three splits."""
    rows = []
    for of, label in STANDINGS.items():
        splits = with_demand(of)
        zero = [split[OURS]["of_zero"] for split in splits]
        naive_best = min(mean_mae(splits, name) for name in NAIVE)
        sensor = mean(split[OURS]["share_of_sensor"]["value"] for split in splits)
        rows.append(
            [
                label,
                f"{naive_best:.3f}",
                *(f"{mean_mae(splits, name):.3f}" for name in ("demand alone", OURS)),
                f"{mean(zero):.3f} ({three(zero)})",
                f"{100 * sensor:.0f} %",
            ]
        )
    head = ["sensors", "best naive baseline", "demand alone", "`default`", "of predict-zero", "share of a sensor"]
    return table(head, rows)


def areas(_: list[Result]) -> str:
    """Where a quarter of the area has no sensor: `default` beside LightGBM, by seed."""
    splits = with_demand("sf-taxi-core-region-75")
    beside = [row for split, row in lightgbm().items() if split.startswith("sf-taxi-core-region-75-")]
    found = {
        "`default`": [split[OURS]["unseen"]["value"] for split in splits],
        "demand alone": [split["demand alone"]["unseen"]["value"] for split in splits],
        "LightGBM with demand": [row["LightGBM with demand"]["unseen"]["value"] for row in beside],
        "LightGBM": [row["LightGBM"]["unseen"]["value"] for row in beside],
        "forecasting 0": [split["zero"]["unseen"]["value"] for split in splits],
    }
    rows = [[name, *(f"{mae:.3f}" for mae in [*maes, mean(maes)])] for name, maes in found.items()]
    return table(["MAE where no sensor is near", "seed 0", "seed 1", "seed 2", "mean"], rows)


def stopping(_: list[Result]) -> str:
    """By split: the best epoch at unseen nodes of each training of eight epochs, and what the eighth loses to it."""
    splits = json.loads((RESULTS / "demand" / "stopping-h200.json").read_text(encoding="utf-8"))["splits"]
    rows = []
    for split, trainings in sorted(splits.items()):
        seeds = [k for k in range(3) if f"a8-{k} last" in trainings]
        eight = [trainings[f"training a8-{k}"]["unseen_mae"] for k in seeds]
        best = [1 + errors.index(min(errors)) for errors in eight]
        lost = [errors[-1] / min(errors) - 1 for errors in eight]
        sixteen = trainings["a16 last"]["unseen_mae"] / mean(trainings[f"a8-{k} last"]["unseen_mae"] for k in seeds) - 1
        city, share, seed = split.rsplit("-", 2)
        cells = [
            ", ".join(map(str, best)),
            ", ".join(f"{100 * each:.1f} %" for each in lost),
            f"{100 * sixteen:+.1f} %",
        ]
        rows.append([f"{city} {share}-{seed}", *cells])
    head = ["split", "best epoch of eight", "lost by keeping the eighth", "sixteen epochs against eight"]
    return table(head, rows)


def at_sensors(_: list[Result]) -> str:
    """`default` at sensors beside what a sensor's own past can do, split by split."""
    names = (OURS, "demand alone", OWN, "last hour", "last week", "persistence")
    rows = []
    for of, label in STANDINGS.items():
        splits = with_demand(of)
        rows.append([label, *(three(s[name]["at_sensors"]["value"] for s in splits) for name in names)])
    head = ["at sensors, splits 0, 1, 2", "`default`", "demand alone", "own median", "last hour", "last week"]
    return table([*head, "last value"], rows)


def runs(results: list[Result]) -> str:
    """Every run of both presets, with its intervals."""
    rows = []
    for city in cities(results):
        for variant in PRESETS:
            for r in chosen(results, city=city, variant=variant):
                progress = r.data["progress"]
                rows.append(
                    [
                        f"{r.split}, `{r.variant}`",
                        str(r.seed),
                        measured(r.model["unseen"]["mae"]),
                        measured(r.model["unseen"]["rmse"]),
                        f"{r.model['relative_to_zero']:.3f}",
                        percent(r.model["share_of_sensor"]),
                        "yes" if clear(r) else "no",
                        f"{r.model['at_sensors']['mae']['value']:.3f}",
                        f"{progress['best_epoch']} of {progress['epoch']}",
                        f"{r.data['train_seconds']:.0f} s",
                    ]
                )
    head = ["split, preset", "seed", "MAE", "RMSE", "of zero", "share of a sensor", "clear of naive"]
    return table([*head, "MAE at sensors", "best epoch", "training"], rows)


def naive(results: list[Result]) -> str:
    """The baselines and the yardstick, at the unseen nodes of each split."""
    first = {r.split: r for r in chosen(results, variant="default")}
    rows = [[name, *(measured(r.row(name)["unseen"]["mae"]) for r in first.values())] for name in (*NAIVE, OWN)]
    return table(["forecaster", *first], rows)


def hops(results: list[Result]) -> str:
    """MAE of the default preset by roads to the nearest sensor."""
    runs = [r for r in chosen(results, variant="default") if r.seed == int(r.split.rsplit("-", 1)[1])]
    names = list(dict.fromkeys(name for r in runs for name in r.model["by_hops"]))

    def cell(r: Result, name: str) -> str:
        group = r.model["by_hops"].get(name)
        return f"{group['mae']['value']:.3f} ({group['nodes']})" if group else "-"

    rows = [[name, *(cell(r, name) for r in runs)] for name in names]
    return table(["roads to the nearest sensor", *(r.split for r in runs)], rows)


def facts(results: list[Result]) -> str:
    """What was scored, on what, with what."""
    lines = []
    for city in cities(results):
        r = chosen(results, city=city, variant="paper")[0]
        test = r.data["evaluation"]["test"]
        unseen = r.model["unseen"]
        lines.append(
            f"- {city}: {test['windows']:,} windows of {test['past']} past and {test['horizon']} future steps of "
            f"{test['step_s'] // 60} minutes from {test['start']} to {test['end']}, at {unseen['nodes']:,} nodes."
        )
    for variant in PRESETS:
        of = chosen(results, variant=variant)
        size = ", ".join(f"{n:,}" for n in sorted({r.data["parameters"] for r in of}))
        lines.append(f"- `{variant}`: {size} parameters in every city.")
    machine = results[0].data
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    lines.append(f"- Trained and evaluated on one {machine['hardware']} ({versions}).")
    return "\n".join(fill(line, 118, subsequent_indent="  ") for line in lines)


def history(results: list[Result]) -> str:
    """How the preset `paper` learns and then forgets its neighbours."""
    rows = []
    for r in chosen(results, variant="paper"):
        epochs = r.data["history"]
        steps = r.data["settings"]["train"]["steps_per_epoch"]
        best = min(epochs, key=lambda epoch: epoch["validation_mae"])
        left_out = sum(epoch["skipped_steps"] for epoch in epochs)
        maes = (epochs[0]["validation_mae"], best["validation_mae"], epochs[-1]["validation_mae"])
        losses = (epochs[0]["loss"], best["loss"], epochs[-1]["loss"])
        rows.append(
            [
                f"{r.split}, seed {r.seed}",
                " / ".join(f"{x:.3f}" for x in maes),
                " / ".join(f"{x:.3f}" for x in losses),
                f"{steps} / {best['epoch'] * steps} / {len(epochs) * steps}",
                str(left_out),
            ]
        )
    head = ["run", "validation MAE: first, best, last", "training loss: the same", "after steps", "steps left out"]
    return table(head, rows)


def kernels(_: list[Result]) -> str:
    """The same trainings with the kernels and with the reference."""
    found = read_results(RESULTS / "kernels")
    rows = []
    if not found:
        return not_measured(["kernels/*"])
    for variant in PRESETS:
        fused = chosen(found, variant=variant)
        plain = chosen(found, variant=f"{variant}-reference")
        for a, b in zip(fused, plain, strict=True):
            rows.append([f"{a.split}, `{variant}`", *(measured(r.model["unseen"]["mae"]) for r in (a, b))])
        rows.append([f"mean, `{variant}`", *(f"{mean(maes(each)):.3f}" for each in (fused, plain))])
    return table(["split, preset", "MAE, kernels", "MAE, `--kernels reference`"], rows)


def reproduced(name: str) -> dict[str, dict[str, Any]]:
    """What `frigate reproduce NAME` found, by city."""
    paths = sorted((RESULTS / "reproduce").glob(f"*/{name}.json"), reverse=True)
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def by_city(name: str, key: str, cell: Callable[[dict[str, Any]], str]) -> str:
    """A row for each value of `key`, a column for each city; a cell of the first row that has both."""
    found = reproduced(name)
    keys = list(dict.fromkeys(row[key] for data in found.values() for row in data["rows"]))
    rows = []
    for each in keys:
        cells = [next((cell(row) for row in data["rows"] if row[key] == each), "-") for data in found.values()]
        rows.append([str(each), *cells])
    return table([key.replace("_", " "), *found], rows)


def mae_cell(row: dict[str, Any]) -> str:
    spread = "" if row.get("mae_spread") is None else f" ± {number(row['mae_spread'])}"
    return f"{number(row['mae'])}{spread} [{number(row['mae_low'])}, {number(row['mae_high'])}]"


def repetitions(results: list[Result], variant: str) -> dict[str, dict[str, float]]:
    """The trainings of one preset that differ in nothing but when they were run: MAE by split, by where they are."""
    again = {}
    for city, data in reproduced("accuracy").items():
        for run in data["runs"]:
            if run["model"] == f"Frigate ({variant})":
                again[f"{city}-{100 * data['seen']:.0f}-{run['seed']}"] = run["unseen"]["mae"]["value"]

    mine = chosen(results, variant=variant)
    return {
        "Every run; README": dict(zip([r.split for r in mine], maes(mine), strict=True)),
        "The paper's baselines, and all below them": again,
    }


def repeated(results: list[Result]) -> str:
    """What training the same model again changes."""
    splits = sorted({r.split for r in chosen(results, variant="paper")}, key=lambda s: (not s.startswith("sf"), s))
    of_core = [split for split in splits if split.startswith("sf-taxi-core")]
    rows = []
    for variant in PRESETS[::-1]:
        found = repetitions(results, variant)
        for where, mae in found.items():
            cells = [number(mae[split]) if split in mae else "-" for split in splits]
            rows.append([f"`{variant}`", where, *cells, number(mean(mae[split] for split in of_core))])
        columns = [[mae[split] for mae in found.values() if split in mae] for split in splits]
        over = [f"{100 * (max(column) / min(column) - 1):.0f} %" for column in columns]
        rows.append([f"`{variant}`", "largest over least", *over, "-"])
    return table(["preset", "shown under", *splits, "mean of sf-taxi-core"], rows)


def baselines(_: list[Result]) -> str:
    """MAE of every model in every city, worst first in the first city."""
    return by_city("accuracy", "model", mae_cell)


def baselines_more(_: list[Result]) -> str:
    """The paper's other two measures, and ours."""

    def cell(row: dict[str, Any]) -> str:
        share = "-" if row["share_of_sensor"] is None else f"{100 * row['share_of_sensor']:.0f} %"
        sensors = number(row["mae_at_sensors"])
        return f"{row['smape']:.1f} / {number(row['rmse'])} / {row['of_zero']:.3f} / {share} / {sensors}"

    return by_city("accuracy", "model", cell)


def reproduced_facts(_: list[Result]) -> str:
    lines = []
    for city, data in reproduced("accuracy").items():
        seeds = ", ".join(map(str, data["seeds"]))
        lines.append(f"- {city}: {data['seen']:.0%} of the nodes seen, seeds {seeds}; {data['hardware']}.")
    return "\n".join(fill(line, 118, subsequent_indent="  ") for line in lines)


def ablation(_: list[Result]) -> str:
    def cell(row: dict[str, Any]) -> str:
        return f"{number(row['mae'])} ({row['more_percent']:+.1f} %)"

    return by_city("ablation", "replaced", cell)


def irregular(_: list[Result]) -> str:
    rows = [
        [city, row["model"], row["past"], mae_cell(row), f"{row['more_percent']:+.1f} %"]
        for city, data in reproduced("irregular").items()
        for row in data["rows"]
    ]
    return table(["city", "model", "past", "MAE", "more"], rows)


def seen_sweep(_: list[Result]) -> str:
    """MAE over all steps ahead, and that of zero's; a column for each share of sensors."""
    [(_city, data)] = reproduced("seen-sweep").items()
    whole = [row for row in data["rows"] if row["step"] is None]
    shares = list(dict.fromkeys(row["seen"] for row in whole))
    found = {(row["model"], row["seen"]): f"{mae_cell(row)} / {row['of_zero']:.3f}" for row in whole}
    models = list(dict.fromkeys(row["model"] for row in whole))
    return table(
        ["model", *(f"{share:g} % seen" for share in shares)],
        [[model, *(found[model, share] for share in shares)] for model in models],
    )


def layers(_: list[Result]) -> str:
    [(_city, data)] = reproduced("layers").items()
    return table(
        ["layers", *(str(row["layers"]) for row in data["rows"])],
        [
            ["MAE", *(number(row["mae"]) for row in data["rows"])],
            ["of zero", *(f"{row['of_zero']:.3f}" for row in data["rows"])],
        ],
    )


def topology(_: list[Result]) -> str:
    [(_city, data)] = reproduced("topology").items()
    shares = list(dict.fromkeys(row["changed"] for row in data["rows"]))
    rows = []
    for model in dict.fromkeys(row["model"] for row in data["rows"]):
        mine = [row for row in data["rows"] if row["model"] == model]
        rows.append([model, *(f"{number(row['mae'])} ({row['more_percent']:+.1f} %)" for row in mine)])
    return table(["model", *(f"{share:g} % changed" for share in shares)], rows)


def parameters(_: list[Result]) -> str:
    rows = [
        [row["model"], f"{row['parameters']:,}", "-" if row.get("paper") is None else f"{row['paper']:,}"]
        for row in next(iter(reproduced("parameters").values()))["rows"]
    ]
    return table(["model", "parameters", "in the paper"], rows)


def inference_time(_: list[Result]) -> str:
    [(city, data)] = reproduced("inference-time").items()
    rows = [
        [
            row["model"],
            f"{1000 * row['median_s']:.1f} ms",
            "-" if row["paper_s"] is None else f"{1000 * row['paper_s']:.1f} ms",
        ]
        for row in data["rows"]
    ]
    where = f"{city}: {data['nodes']:,} nodes, one window, {data['environment']['hardware']}, medians.\n\n"
    return where + table(["model", "ours", "the paper's"], rows)


def baseline_check(_: list[Result]) -> str:
    data = json.loads((RESULTS / "baseline-check-graph-wavenet.json").read_text(encoding="utf-8"))
    found = {**data["mae"], "GraphWaveNet's paper, four months": data["published on four months"]}
    steps = list(data["published on four months"])
    rows = [[name, *(f"{maes[step]:.2f}" for step in steps)] for name, maes in found.items()]
    return table(["MAE, mph", *steps], rows)


def closures(_: list[Result]) -> str:
    """What is left of the change that a closure makes, by scenario."""
    data = json.loads((RESULTS / "demand" / "closures.json").read_text(encoding="utf-8"))
    keys = [f"left_of_change{when}{where}" for when in ("", "_with_readings") for where in ("", "_at_affected")]
    rows = [
        [each["name"], str(each.get("roads", "")), *(f"{each[key]:.2f}" for key in keys)]
        for each in [*data["scenarios"], {"name": "mean", **data["mean"]}]
    ]
    head = ["", "roads closed", "left of the change: foreseen", "at affected nodes", "with the day's readings"]
    return table([*head, "at affected nodes"], rows)


def closures_told(_: list[Result]) -> str:
    """The next hour at affected nodes, told of the closure or not."""
    data = json.loads((RESULTS / "demand" / "closures.json").read_text(encoding="utf-8"))
    keys = "not_told", "told", "last_value", "on_the_open_day", "weekday_profile"
    rows = [
        [
            each["name"],
            *(f"{each[f'mae_{key}']:.1f}" for key in keys),
            *(f"{each[f'mae_{key}_half_an_hour_ahead']:.1f}" for key in keys[:4]),
        ]
        for each in data["scenarios"]
    ]
    head = ["not told", "told", "last value", "without a closure"]
    return table(["", *head, "profile", f"half an hour ahead: {head[0]}", *head[1:]], rows)


def serve_load(_: list[Result]) -> str:
    """What a service bore: its store in memory, and on a disk."""
    both = [json.loads((RESULTS / f"serve-load{where}.json").read_text(encoding="utf-8")) for where in ("", "-disk")]

    def milliseconds(took: dict[str, float]) -> str:
        return ", ".join(f"{took[key]:.0f} ms" for key in ("p50", "p99", "p100"))

    def memory(data: dict[str, Any]) -> str:
        full = [each["mib"] for each in data["memory_mib"] if each["second"] >= data["window_full_s"]]
        return f"{median(full[:6]):,.0f} MiB, {median(full[-6:]):,.0f} MiB" if full else "-"

    rows = [
        ["minutes, a forecast every", *(f"{d['asked']['minutes']:.0f}, {d['size']['step_s']} s" for d in both)],
        ["requests, of which failed", *(f"{d['requests']:,}, {d['requests'] - d['answers']['200']}" for d in both)],
        ["readings stored", *(f"{d['stored_rows']:,}" for d in both)],
        ["answer to a batch: median, 99th percentile, slowest", *(milliseconds(d["ingest_ms"]) for d in both)],
        ["the disk alone, one page: p50, p99, slowest", *(milliseconds(d["disk_ms"]) for d in both)],
        ["forecasts, steps without one", *(f"{d['forecasts']}, {d['missed_ticks']}" for d in both)],
        ["time of a forecast", *(f"{d['forecast_s']:.1f} s" for d in both)],
        ["memory once the window is full, and half a minute before the end", *map(memory, both)],
    ]
    return table(["measured", "store in memory", "on a disk of a shared machine"], rows)


def serve_pages(_: list[Result]) -> str:
    """Two hours of a service with 50 maps: what it had half an hour after the start, and at the end."""
    data = json.loads((RESULTS / "serve-load-two-hours.json").read_text(encoding="utf-8"))
    of_maps = {key: n for key, n in data["answers"].items() if key[-3:].isdigit() and not key.startswith("readings ")}
    failed = sum(n for key, n in data["answers"].items() if " " in key and key[-3:] not in ("200", "304"))
    full = [each for each in data["samples"] if each["second"] >= max(1800, data["window_full_s"])]

    def both(key: str) -> str:
        """The medians of the first and the last ten minutes."""
        times = [each["second"] for each in full]
        early = [each[key] for each in full if each["second"] < times[0] + 600]
        late = [each[key] for each in full if each["second"] > times[-1] - 600]
        return f"{median(early):,.0f}, {median(late):,.0f}, {max(each[key] for each in full):,.0f}"

    readings = sum(data["answers"][name] for name in ("accepted", "duplicate", "corrected", "refused"))
    rows = [
        [
            "minutes, open maps, a forecast every",
            f"{data['minutes']:.0f}, {data['asked']['pages']}, {data['size']['step_s']} s",
        ],
        ["nodes, sensors", f"{data['size']['nodes']:,}, {data['size']['sensors']:,}"],
        ["batches of readings, requests of the maps", f"{data['requests']:,}, {sum(of_maps.values()):,}"],
        ["of them failed, or answered with 4xx or 5xx", f"{failed:,}"],
        ["readings answered, stored", f"{readings:,}, {data['stored_rows']:,}"],
        ["forecasts, steps without one", f"{data['forecasts']}, {data['missed_ticks']}"],
        ["descriptors after half an hour, at the end, at most", both("descriptors")],
        ["memory in MiB, the same", both("mib")],
        ["threads, the same", both("threads")],
        [
            "answer to a batch, as a multiple of the disk's own time for a page: median, 99th percentile",
            f"{data['ingest_to_disk']['p50']:.1f}, {data['ingest_to_disk']['p99']:.1f}",
        ],
        [
            "other work on the machine: load average, median",
            f"{median(each['load_1min'] for each in data['samples']):.0f}",
        ],
    ]
    return table(["measured", "two hours"], rows)


TABLES: dict[str, Callable[[list[Result]], str]] = {
    "serve-load": serve_load,
    "serve-pages": serve_pages,
    "summary": summary,
    "standing": standing,
    "at-sensors": at_sensors,
    "areas": areas,
    "stopping": stopping,
    "closures": closures,
    "closures-told": closures_told,
    "facts": facts,
    "runs": runs,
    "repeated": repeated,
    "naive": naive,
    "hops": hops,
    "history": history,
    "kernels": kernels,
    "baselines": baselines,
    "baselines-more": baselines_more,
    "reproduced": reproduced_facts,
    "ablation": ablation,
    "irregular": irregular,
    "seen-sweep": seen_sweep,
    "layers": layers,
    "topology": topology,
    "parameters": parameters,
    "inference-time": inference_time,
    "baseline-check": baseline_check,
    "placement": placement_tables.placement,
    **bench_tables.TABLES,
}


def filled(text: str, results: list[Result]) -> str:
    """A document with its tables as the results have them."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m['name']](results)}\n\n{m[3]}", text)


def main() -> int:
    results = read_results(RESULTS / "accuracy")
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = filled(old, results)
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(new, encoding="utf-8")
    if not stale:
        print("All tables are up to date.")
    elif "--check" in sys.argv[1:]:
        print(f"Out of date: {', '.join(stale)}. Run: python benchmarks/tables.py")
        return 1
    else:
        print(f"Written: {', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
