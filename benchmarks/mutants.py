"""How many small mistakes in demand, forecasting and serve the tests notice, and which they do not.

    make mutants                              # or the two steps:
    python benchmarks/mutants.py measure      # which tests run which line; again only for files of tests that changed
    python benchmarks/mutants.py run [MODULE ...] [--per-module 6] [--seed 0] [--resume]
    python benchmarks/mutants.py again        # those that were not noticed, with the tests of today

A mistake (`benchmarks/mutant_drawing.py`) is tried on the quick tests that run its line, then on the whole files of
tests that do. The results list what was drawn, and whether a test noticed. Of what survived, write there by hand, as
"verdict" and "why", whether it is "equivalent" (nothing that a user could notice), a "setting" (a number that could as
well be another, which no test should repeat) or a "hole" that needs a test; both are kept when the command runs again.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mutant_drawing import Mutant, draw, lines_that_tell
from mutant_runs import Job, Outcome, copies, run_all
from mutant_tests import TestMap, measure, read_map

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
MAP = ROOT / "build" / "mutants"
PACKAGES = ("frigate/demand", "frigate/forecasting", "frigate/serve")
TESTS = (
    *("tests/demand", "tests/forecasting", "tests/serve", "tests/evaluation", "tests/training/test_leaks.py"),
    *("tests/nn/test_network_views.py", "tests/nn/test_second_writing_of_default.py", "tests/cli/test_serve.py"),
    *("tests/cli/test_commands.py", "tests/pages/test_demand_page.py", "tests/pages/test_run_page.py"),
)
QUICK_S, THOROUGH_S, LEAST_S = 10.0, 100.0, 40.0  # of tests, as they were measured; processor time that any run has
NOTICED, SURVIVED = "noticed", "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "run", "again"))
    parser.add_argument("modules", nargs="*", help=f"files (default: all of {', '.join(PACKAGES)})")
    parser.add_argument("--per-module", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted, or draw more")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.step == "measure":
        measure(ROOT, test_files(), MAP)
        return
    tests = read_map(ROOT, test_files(), MAP)
    known = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {"mutants": []}
    if args.step == "again":
        found = [Found.of(each) for each in known["mutants"]]
        chosen = [each for each in found if each.first == SURVIVED and each.verdict in ("", "hole")]
        drawn = {key: known[key] for key in ("per_module", "seed")}
    else:
        judged = {(each["file"], each["before"], each["after"]): each for each in known["mutants"]}
        modules = args.modules or module_files()
        mutants = [mutant for file in modules for mutant in draw(ROOT, file, args.per_module, args.seed)]
        found = [known_as(judged, mutant, resume=args.resume) for mutant in mutants]
        chosen = [each for each in found if not each.now]
        drawn = {"per_module": args.per_module, "seed": args.seed}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        try_all(chosen, tests, copies(ROOT, Path(folder), args.jobs), lambda: write(args.results, found, drawn))
    print(f"{sum(each.now == NOTICED for each in found)} of {len(found)} are noticed: {args.results}")


@dataclass
class Found:
    """A mutant, whether the tests noticed it when it was first tried and do now, and what a person says of it."""

    mutant: Mutant
    verdict: str = ""
    why: str = ""
    first: str = ""
    now: str = ""
    test: str | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Found:
        names = Mutant.__dataclass_fields__
        rest = {name: value for name, value in row.items() if name not in names}
        return cls(Mutant(**{name: row[name] for name in names}), **rest)

    def row(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("mutant"), **{name: value for name, value in row.items() if value}}


def known_as(judged: dict[tuple[str, str, str], dict[str, Any]], mutant: Mutant, *, resume: bool) -> Found:
    """A mutant, with the verdict it had; to resume, also with what came of it."""
    row = judged.get((mutant.file, mutant.before, mutant.after), {})
    kept = ("verdict", "why", "first", "now", "test") if resume else ("verdict", "why")
    return Found(mutant, **{key: row[key] for key in kept if key in row})


def module_files() -> list[str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def test_files() -> list[str]:
    found = (
        path for name in TESTS for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("test_*.py"))
    )
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def try_all(chosen: list[Found], tests: TestMap, places: list[Path], save: Callable[[], None]) -> None:
    """Set what came of each, and save it as it comes."""
    of_name = {str(k): each for k, each in enumerate(chosen)}
    thorough = set[str]()

    def told(job: Job, outcome: Outcome) -> Job | None:
        each = of_name[job.name]
        if outcome.result == "passed" and job.name not in thorough:
            thorough.add(job.name)
            if files := thorough_tests(tests, each.mutant):
                return Job(job.name, files, limit_s(THOROUGH_S), job.file, job.text)
        each.now = {"passed": SURVIVED, "failed": NOTICED, "over time": NOTICED}.get(outcome.result, "not tried")
        each.test = outcome.test if outcome.result == "failed" else None if each.now == SURVIVED else outcome.result
        print(
            f"{each.now}: {each.mutant.file}:{each.mutant.line} {each.mutant.operator} [{outcome.cpu_s:.0f} s]",
            flush=True,
        )
        each.first = each.first or each.now
        save()
        return None

    jobs = []
    for name, each in of_name.items():
        text = (ROOT / each.mutant.file).read_text(encoding="utf-8")
        changed = each.mutant.apply(text)
        if changed is None:
            print(f"gone: {each.mutant.file}:{each.mutant.line}")
            continue
        quick = tests.quick(each.mutant.file, lines_that_tell(text, each.mutant), most_s=QUICK_S)
        if not quick:  # in a process that a test starts, or compiled
            thorough.add(name)
            quick = thorough_tests(tests, each.mutant)
        if quick:
            jobs.append(Job(name, quick, limit_s(QUICK_S), each.mutant.file, changed))
        else:
            each.first, each.now, each.test = each.first or SURVIVED, SURVIVED, None
    run_all(jobs, places, told)
    save()
    noticing = sorted({each.test for each in chosen if each.test in tests.seconds})

    def checked(job: Job, outcome: Outcome) -> None:
        if outcome.result != "passed":
            print(f"NOT TO BE TRUSTED: without any mistake, {outcome.test or outcome.result} fails")

    run_all([Job("clean", noticing, 10 * limit_s(THOROUGH_S))] if noticing else [], places, checked)


def thorough_tests(tests: TestMap, mutant: Mutant) -> list[str]:
    """Files of tests, quick ones first, as many as fit in the time."""
    left_s, chosen = THOROUGH_S, list[str]()
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    every = range(1, len(text.splitlines()) + 1)
    lines = lines_that_tell(text, mutant)
    for name in tests.thorough(mutant.file, lines) or tests.thorough(mutant.file, every):
        left_s -= tests.file_seconds(name)
        if chosen and left_s < 0:
            break
        chosen.append(name)
    return chosen


def limit_s(tests_s: float) -> float:
    return LEAST_S + 3 * tests_s


def write(path: Path, found: list[Found], drawn: dict[str, int]) -> None:
    first, now = (Counter(getattr(each, when) for each in found) for when in ("first", "now"))
    verdicts = Counter(each.verdict for each in found if each.now == SURVIVED)
    summary = {
        "command": "make mutants",
        "mutmut": version("mutmut"),
        "python": platform.python_version(),
        **drawn,
        "drawn": len(found),
        "noticed_first": first[NOTICED],
        "noticed_now": now[NOTICED],
        "survivors": {verdict or "not judged": count for verdict, count in sorted(verdicts.items())},
        "by_package": {
            package: Counter(each.now for each in found if each.mutant.file.startswith(package)) for package in PACKAGES
        },
    }
    rows = ",\n".join(f"  {json.dumps(each.row(), ensure_ascii=False)}" for each in found)
    text = json.dumps(summary, indent=1)[:-2] + f',\n "mutants": [\n{rows}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
