"""`python -m frigate.experiments`: what `frigate reproduce` does, with nothing installed but the compute path."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from frigate.data.city import open_city
from frigate.errors import FrigateError
from frigate.experiments import named
from frigate.experiments.plan import make_plan
from frigate.experiments.runner import reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m frigate.experiments", description="The paper's tables and figures.")
    parser.add_argument("names", metavar="NAME", help="an experiment, several with commas, or all")
    parser.add_argument("city", metavar="CITY", help="a city folder, or its cache")
    parser.add_argument("-o", "--output", metavar="RESULTS", required=True)
    parser.add_argument("--seen", default="30%", help="share of the nodes with a sensor; 30%% if not said")
    parser.add_argument("--seeds", help="0,1,2 if not said")
    parser.add_argument("--quick", action="store_true", help="small models, few steps: does it work at all?")
    parser.add_argument("--splits", metavar="FOLDER", help="files CITY-SHARE-SEED.txt of seen node ids")
    parser.add_argument("--models", help="only these, with commas")
    parser.add_argument("--batch-size", type=int, help="windows of a training step; each preset's own if not said")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--device", help="cpu or cuda; what there is if not said")
    said = parser.parse_args(arguments)
    try:
        experiments = named(said.names)
        plan = make_plan(
            open_city(said.city), said.output, seen=said.seen, seeds=said.seeds, quick=said.quick, splits=said.splits,
            models=said.models, batch_size=said.batch_size, device=said.device,
        )  # fmt: skip
        done = reproduce(experiments, plan, jobs=said.jobs, say=lambda text: print(text, flush=True))
    except FrigateError as error:
        print(f"frigate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("frigate: stopped; the same command goes on", file=sys.stderr)
        return 130
    print(f"Report: {done.page or said.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
