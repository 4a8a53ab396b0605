"""The documents say what the code does: places, commands, settings, messages, numbers and links are looked up.

`python tests/test_docs.py` writes the line numbers of docs/paper-to-code.md anew, after code has moved.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer.main

import frigate
from frigate.cli.main import app
from frigate.config import PRESETS, Settings, change, preset
from frigate.simulate.streets import build_town
from frigate.sources.benchmarks.importer import KINDS, PEMS
from frigate.sources.osm.tags import DRIVABLE
from tests.support.documents import table_rows as rows

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "docs" / "paper-to-code.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACE = re.compile(r"`(?P<path>(?:frigate|tests|benchmarks)/[\w/]+\.py):(?P<line>\d+)`\s+`(?P<words>[^`]+)`")
LABELS = (
    "eq:mae", "eq:hl", "eq:aggregation_out", "eq:aggregation_in", "eq:sigmoid", "eq:edgescalar", "eq:edgeposition",
    "eq:h0", "eq:lstm", "eq:decoder", "def:lipschitz", "def:distortion", "lem:metric_dist", "lem:position", "lem:1wl",
    "thm:bourgain",
)  # fmt: skip
TABLE_1 = {  # the paper's: partial sensing, network updates, no history
    **dict.fromkeys(("AGCRN", "STGODE", "DSTAGNN", "STFGNN", "G2S", "GMSDR"), ("no", "no", "no")),
    **dict.fromkeys(("Z-GCNETs", "STSGCN", "GraphWaveNet", "GMAN", "MTGNN"), ("no", "no", "yes")),
    "TISV": ("yes", "no", "yes"),
    **dict.fromkeys(("STGCN", "DCRNN", "STNN", "LocaleGN", "ST-GAN"), ("yes", "yes", "yes")),
}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# The map from the paper to the code


def lines_with(path: Path, words: str) -> list[int]:
    return [i for i, line in enumerate(read(path).splitlines(), 1) if words in line] if path.exists() else []


def places() -> list[tuple[str, int, str]]:
    return [(m["path"], int(m["line"]), m["words"]) for m in PLACE.finditer(read(MAP))]


@pytest.mark.parametrize(("path", "line", "words"), places())
def test_every_place_of_the_map_is_there(path: str, line: int, words: str) -> None:
    found = lines_with(ROOT / path, words)
    near = any(abs(line - there) <= 1 for there in found)
    assert near, f"{path}:{line}: {words!r} is at {found or 'no line'}. Write all anew with: python tests/test_docs.py"


def test_every_place_has_its_words() -> None:
    named = re.findall(r"`(?:frigate|tests|benchmarks)/[\w/]+\.py:\d+`", read(MAP))
    assert len(named) == len(places()) > 60


def test_every_label_and_line_of_the_paper_is_in_the_map() -> None:
    text = read(MAP)
    assert [label for label in LABELS if f"`{label}`" not in text] == []
    section = text.split("## Algorithm 1")[1].split("\n## ")[0]
    numbered = {int(n) for row in rows(section) for n in re.findall(r"\d+", row[0])}
    assert numbered == set(range(1, 15))


def test_every_label_stands_where_its_equation_is() -> None:
    source = "\n".join(read(path) for path in sorted((ROOT / "frigate").rglob("*.py")))
    lemmas = ("lem:position", "lem:1wl")  # these are about the whole model: only tests show them
    assert [label for label in LABELS if label not in source and label not in lemmas] == []


def refreshed(text: str) -> str:
    """The map with the line, and the file where it has moved, at which each place's words stand now."""

    def moved(match: re.Match[str]) -> str:
        path, line, words = match["path"], int(match["line"]), match["words"]
        found = lines_with(ROOT / path, words)
        if not found:
            others = [p for p in sorted((ROOT / path.split("/")[0]).rglob("*.py")) if lines_with(p, words)]
            if len(others) != 1:
                print(f"{path}: {words!r} is in {len(others)} files; say which by hand")
                return match[0]
            path, found = others[0].relative_to(ROOT).as_posix(), lines_with(others[0], words)
        nearest = min(found, key=lambda there: abs(there - line))
        return match[0].replace(f"{match['path']}:{match['line']}", f"{path}:{nearest}")

    return PLACE.sub(moved, text)


# Tables and numbers


@pytest.fixture(scope="module")
def written() -> Iterator[ModuleType]:
    """benchmarks/tables.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setitem(sys.modules, "tables", module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def test_tables_are_those_of_the_results(written: ModuleType) -> None:
    results = written.read_results(written.RESULTS / "accuracy")
    assert results
    shown = set()
    for name in written.DOCUMENTS:
        text = read(ROOT / name)
        shown |= {m["name"] for m in written.BLOCK.finditer(text)}
        assert written.filled(text, results) == text, f"{name} is out of date: python benchmarks/tables.py"
    assert shown == set(written.TABLES)


def test_a_changed_number_is_noticed(written: ModuleType) -> None:
    results = written.read_results(written.RESULTS / "accuracy")
    text = read(ROOT / "README.md")
    block = written.BLOCK.search(text)
    assert block is not None
    assert written.filled(text.replace(block[0], block[0].replace("0.", "1.", 1)), results) == text


def test_what_the_results_are_said_to_show(written: ModuleType) -> None:
    results = written.read_results(written.RESULTS / "accuracy")
    default, paper = (written.chosen(results, variant=name) for name in PRESETS[::-1])
    assert all(written.clear(r) for r in default)  # "in every run, with intervals that do not touch"
    assert len(paper) / 2 < sum(written.clear(r) for r in paper) < len(paper)  # "in most runs, not in all"

    def share(runs: list[Any]) -> float:
        return float(np.mean([r.model["share_of_sensor"]["value"] for r in runs]))

    for city in written.cities(results):
        ours, theirs = written.chosen(default, city=city), written.chosen(paper, city=city)
        assert share(theirs) < share(ours) / 2  # "less than half of what `default` does"
    assert share(written.chosen(default, city="lux-sim")) > share(written.chosen(default, city="sf-taxi-core")) > 0.72
    for r in paper:
        history = r.data["history"]
        maes, losses = ([epoch[k] for epoch in history] for k in ("validation_mae", "loss"))
        steps = r.data["settings"]["train"]["steps_per_epoch"]
        assert 50 <= (1 + int(np.argmin(maes))) * steps <= 90
        assert maes[-1] > 0.97 * maes[0]  # "rises back to where it was"
        assert losses[-1] < min(losses[0], losses[int(np.argmin(maes))])  # "goes on falling"
        assert not any(epoch["skipped_steps"] for epoch in history)
    gate = written.chosen(results, variant=written.GATE)
    without = {r.split: r for r in default if r.city == "sf-taxi-core"}
    means = np.mean(written.maes(gate)), np.mean(written.maes(without.values()))
    assert len(gate) == 3 and abs(means[0] - means[1]) < np.ptp(written.maes(without.values()))
    assert {tuple(r.data["settings"]["train"]["hide"]) for r in gate} == {(0.2, 0.8)}


def test_the_results_reach_what_was_asked_of_them() -> None:
    """The limits that were set before anything was trained: MAE of that of forecasting zero, mean of three runs."""
    folder = ROOT / "benchmarks" / "results"

    def mean(pattern: str, name: str) -> float:
        files = sorted(folder.glob(f"accuracy/{pattern}"))
        models = [json.loads(read(path))["evaluation"]["rows"][0] for path in files]
        assert len(models) == 3
        found = [m[name] if name == "relative_to_zero" else m[name]["value"] for m in models]
        return sum(found) / 3

    assert mean("sf-taxi-core-30-?-paper-seed?.json", "relative_to_zero") <= 0.87
    assert mean("sf-taxi-core-30-?-default-seed?.json", "relative_to_zero") <= 0.70
    assert mean("sf-taxi-core-30-?-default-seed?.json", "share_of_sensor") >= 0.70
    assert mean("lux-sim-30-0-default-seed?.json", "relative_to_zero") <= 0.55

    def bench(name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(read(folder / f"bench-{name}.json"))["presets"]["paper"]
        return told

    for name, windows, step_ms, step_gb, forecast_ms in (("chengdu", 32, 20, 10, 1.5), ("beijing", 4, 25, 12, 3)):
        told = bench(f"h200-{name}")
        assert told["windows"] == windows and told["ours"]["forecast_graph_ms"] <= forecast_ms
        for step in ("step", "step_every"):
            assert told["ours"][f"{step}_ms"] <= step_ms and told["ours"][f"{step}_peak_bytes"] <= step_gb * 1e9
    faster = bench("cpu-chengdu")["usual_to_ours"]
    assert faster["forecast"] >= 3 and faster["tick"] >= 5 and faster["step"] >= 5


def test_the_kernels_are_as_accurate_as_the_reference(written: ModuleType) -> None:
    """Within what the seeds and splits differ by."""
    results = written.read_results(written.RESULTS / "kernels")
    for variant in PRESETS:
        pairs = [written.chosen(results, variant=v) for v in (variant, f"{variant}-reference")]
        fused, plain = (written.maes(runs) for runs in pairs)
        assert len(fused) == len(plain) == 3
        assert abs(np.mean(fused) - np.mean(plain)) < max(np.ptp(fused), np.ptp(plain))
        for a, b in zip(*pairs, strict=True):
            one, other = (r.model["unseen"]["mae"] for r in (a, b))
            assert one["low"] < other["high"] and other["low"] < one["high"]


def test_the_benchmarks_are_of_the_settings_that_are_documented(written: ModuleType) -> None:
    for r in written.read_results(written.RESULTS / "accuracy"):
        if r.variant in PRESETS:
            used = Settings.from_json(r.data["settings"])  # a newer setting stands as it was then
            now = change(preset(r.variant), {"train": {"seed": r.seed}})
            assert used == now, f"{r.data['name']} was trained with other settings than the preset has"


# Settings, messages, commands


@pytest.mark.parametrize("part", ["task", "model", "train"])
def test_every_setting_is_there_with_its_values(part: str) -> None:
    def toml(value: object) -> str:
        return "not set" if value is None else json.dumps(list(value) if isinstance(value, tuple) else value)

    text = read(ROOT / "docs" / "formats.md").split("## Settings")[1]
    table = text.split(f"| [{part}] |")[1].split("\n\n")[0]
    told = {row[0].strip("`"): row[1:3] for row in rows(table)}
    default, paper = (getattr(preset(name), part) for name in PRESETS[::-1])
    known = {f.name: [toml(getattr(default, f.name)), toml(getattr(paper, f.name))] for f in fields(default)}
    assert {name: value for name, value in told.items() if name != "---"} == known


def test_every_settings_file_is_accepted() -> None:
    blocks = [b for path in DOCUMENTS for b in re.findall(r"```toml\n(.*?)```", read(path), re.DOTALL)]
    assert len(blocks) >= 2
    for block in blocks:
        assert change(preset("default"), tomllib.loads(block)) != preset("default")


def test_every_message_is_one_that_the_code_says() -> None:
    source = "\n".join(read(path) for path in sorted((ROOT / "frigate").rglob("*.py")))
    text = read(ROOT / "docs" / "formats.md").split("## What is accepted and what is refused")[1].split("\n## ")[0]
    messages = [m for row in rows(text) for m in re.findall(r"`([^`]+)`", row[-1]) if set(row[-1]) != {"-"}]
    assert len(messages) > 55
    assert [m for m in messages if m not in source] == []


def test_every_source_has_its_page_and_its_rules_on_it() -> None:
    kinds = set(typer.main.get_command(app).commands["import"].commands)  # type: ignore[attr-defined]
    pages = {path.stem: read(path) for path in (ROOT / "docs" / "sources").glob("*.md")}
    assert {kind.replace("benchmark", "benchmarks") for kind in kinds - {"matrix"}} == set(pages)
    for kind in sorted(kinds - {"matrix"}):
        page = pages[kind.replace("benchmark", "benchmarks")]
        for step in (f"import {kind}", "check", "train", "evaluate", "forecast"):
            assert re.search(rf"^frigate {step} ", page, re.MULTILINE), f"{kind}: {step}"
    roads = pages["osm"].split("## Which roads")[1].split("```")[0]
    named = set(re.findall(r"`([a-z_]{4,})`", roads)) - {"highway", "_link"}
    assert {word.removesuffix("_link") for word in DRIVABLE} == named
    told = {row[0].strip("`"): row for row in rows(pages["benchmarks"])}
    assert set(KINDS) <= set(told)
    units = {"m": "metres", "mi": "miles"}
    assert {(k, told[k][3], told[k][4]) for k in PEMS} == {
        (k, units[facts.length_unit], f"from {facts.start}") for k, facts in PEMS.items()
    }


def shell_lines() -> Iterator[str]:
    for path in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", read(path), re.DOTALL):
            whole = block.replace("\\\n", " ")
            yield from (line.split("  #")[0].strip() for line in whole.splitlines() if line.strip())


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("frigate ")])
def test_every_command_can_be_parsed(line: str) -> None:
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    context = command.make_context("frigate", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        context = command.make_context(words[0], [], parent=context, resilient_parsing=True)
        command, words = command.commands[words[0]], words[1:]
    command.make_context("it", words, parent=context)  # raises where an option is not known


@pytest.mark.parametrize("name", ["frigate.training.train", "frigate.evaluation.evaluate"])
def test_every_option_of_the_bare_commands_is_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(name).main(["--help"])
    told = capsys.readouterr().out
    lines = [line for line in shell_lines() if line.startswith(f"python -m {name} ")]
    assert lines
    assert [o for line in lines for o in re.findall(r"--[\w-]+", line) if o not in told] == []


def test_every_command_of_the_readme_is_there() -> None:
    app_commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = {m for row in rows(read(ROOT / "README.md")) for m in re.findall(r"`frigate (\w+)", row[0])}
    assert named == app_commands
    targets = re.findall(r"^(\w+):", read(ROOT / "Makefile"), re.MULTILINE)
    assert {m for line in shell_lines() for m in re.findall(r"^make (\w+)", line)} <= set(targets)


def test_the_python_of_the_readme_fits_the_package() -> None:
    code = ast.parse(re.findall(r"```python\n(.*?)```", read(ROOT / "README.md"), re.DOTALL)[0])
    assert len(ast.unparse(code).splitlines()) <= 14
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    ours = [call for call in calls if ast.unparse(call.func).startswith("fg.")]
    assert {ast.unparse(call.func) for call in ours} == {"fg.read_city", "fg.train", "fg.evaluate", "fg.forecast"}
    for call in ours:
        function = getattr(frigate, call.func.attr)  # type: ignore[attr-defined]
        inspect.signature(function).bind(*call.args, **{k.arg or "": k.value for k in call.keywords})
    town = build_town(np.random.default_rng([0, 0]), intersections=400).network
    for call in (call for call in calls if call.func.attr == "close"):  # type: ignore[attr-defined]
        town.close(ast.literal_eval(call.args[0]))  # raises where the demo's town has no such road


# Words and links


def test_every_link_leads_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)]+)\)", read(path)):
            name, _, anchor = target.partition("#")
            if name.startswith("https://"):
                continue
            there = path.parent / name if name else path
            assert there.exists(), f"{path.name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.+)$", read(there), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
                assert anchor in slugs, f"{path.name}: {target}"


def test_the_readme_begins_with_what_it_is() -> None:
    lines = read(ROOT / "README.md").splitlines()
    screen = "\n".join(lines[:40])
    assert lines[0] == "# Frigate"
    for part in ("every intersection", "docs/images/demo.png", "make demo", "make test", "```python"):
        assert part in screen
    assert "badge" not in read(ROOT / "README.md")


def test_table_1_is_the_papers() -> None:
    text = read(ROOT / "docs" / "related-work.md")
    told = {row[0]: tuple(row[1:4]) for row in rows(text) if row[0] in TABLE_1 and len(row) == 5}
    assert told == TABLE_1 and len(TABLE_1) == 17


if __name__ == "__main__":
    MAP.write_text(refreshed(read(MAP)), encoding="utf-8")
