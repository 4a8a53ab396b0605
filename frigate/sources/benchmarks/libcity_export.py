"""Write a city as LibCity's atomic files.

Times are UTC and marked as such. There is a row for every node and snapshot, as LibCity expects, empty where nothing
was observed. Under "frigate", config.json keeps what LibCity has no field for, so that an import restores it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.network_tables import edge_frame
from frigate.city.stream import RoadNetworkStream
from frigate.reading.columns import INTEGER_ID
from frigate.reading.files import check_replaceable
from frigate.reading.notices import Notices
from frigate.reading.tables import CSV_TIME, writing

CELLS_AT_ONCE = 1_000_000


def export_libcity(city: City, folder: str | Path, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write a city as LibCity's atomic files.

    Parameters
    ----------
    city
        The city.
    folder
        A new folder, or one with atomic files that Frigate wrote, which are replaced.
    overwrite
        Whether to replace atomic files that Frigate did not write.

    Returns
    -------
    Sentences about what atomic files cannot store.
    """
    target = Path(folder).resolve()

    def is_ours(path: Path) -> bool:
        return path.is_file() and (path.name == "config.json" or path.suffix in (".geo", ".rel", ".dyna"))

    check_replaceable(target, is_ours, "atomic files", overwrite=overwrite)
    stream = city.stream
    network = city.network
    notices = Notices()
    if len(stream.networks) > 1:
        notices.add("Networks over time, of which LibCity stores only the last", len(stream.networks))
    notices.add("Closed roads, which LibCity cannot store", len(network.closed))
    notices.add("Removed nodes, written without roads", int((~network.present).sum()))
    notices.add("Forbidden turns, which LibCity cannot store", len(city.forbidden_turns))
    stem = re.sub(r"[^\w-]+", "_", city.name).strip("_") or "city"
    feature = f"traffic_{'flow' if stream.quantity == 'count' else re.sub(r'[^a-z0-9]+', '_', stream.quantity.lower())}"
    with writing(target) as new:
        _write_network(network, new, stem)
        with (new / f"{stem}.dyna").open("wb") as file:
            _write_readings(stream, file, feature)
        config = _config(city, stem, feature)
        (new / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return tuple(notices.sentences())


def _write_network(network: RoadNetwork, folder: Path, stem: str) -> None:
    places = [json.dumps([lon, lat]) for lon, lat in zip(network.lon.tolist(), network.lat.tolist(), strict=True)]
    geo = pl.DataFrame({"geo_id": network.node_ids, "type": ["Point"] * len(places), "coordinates": places})
    geo.write_csv(folder / f"{stem}.geo")
    rel = edge_frame(network.edges, network.node_ids).rename({"source": "origin_id", "target": "destination_id"})
    rel = rel.with_columns(pl.col(c).bin.encode("hex") for c, t in rel.schema.items() if t == pl.Binary)
    lead = pl.DataFrame({"rel_id": range(rel.height), "type": ["geo"] * rel.height})
    pl.concat([lead, rel], how="horizontal").write_csv(folder / f"{stem}.rel")


def _write_readings(stream: RoadNetworkStream, file: IO[bytes], feature: str) -> None:
    """Write all snapshots of one node after the other, as LibCity expects; empty where nothing was observed."""
    S, N = stream.values.shape
    times = pl.Series(stream.times_s * 1_000_000, dtype=pl.Int64).cast(pl.Datetime("us"))
    at_once = max(1, CELLS_AT_ONCE // max(1, S))
    ids = pl.Series(stream.node_ids)
    for first in range(0, N if S else 1, at_once):
        nodes = np.arange(first, min(N, first + at_once)) if S else np.zeros(0, np.int64)
        seen = stream.observed[:, nodes].T.reshape(-1)
        value = pl.Series(stream.values[:, nodes].T.reshape(-1).astype(np.float32))
        frame = pl.DataFrame(
            {
                "dyna_id": pl.Series(np.arange(len(value), dtype=np.int64) + first * S),
                "type": pl.Series(["state"] * len(value), dtype=pl.String),
                "time": times.gather(np.tile(np.arange(S), len(nodes))),
                "entity_id": ids.gather(np.repeat(nodes, S)),
                feature: value.set(pl.Series(~seen), None),
            }
        )
        frame.write_csv(file, include_header=first == 0, datetime_format=CSV_TIME)


def _config(city: City, stem: str, feature: str) -> dict[str, Any]:
    stream = city.stream
    text = stream.node_ids.dtype.kind == "U" and all(re.fullmatch(INTEGER_ID, x) for x in stream.node_ids.tolist())
    return {
        "geo": {"including_types": ["Point"], "Point": {}},
        "rel": {"including_types": ["geo"], "geo": {"length_m": "num"}},
        "dyna": {"including_types": ["state"], "state": {"entity_id": "geo_id", feature: "num"}},
        "info": {
            "data_col": [feature],
            "weight_col": "length_m",
            "data_files": [stem],
            "geo_file": stem,
            "rel_file": stem,
            "output_dim": 1,
            "time_intervals": stream.step_s,
            "init_weight_inf_or_zero": "inf",
            "set_weight_link_or_dist": "dist",
            "calculate_weight_adj": True,
            "weight_adj_epsilon": 0.1,
        },
        "frigate": {
            "name": city.name,
            "step_s": stream.step_s,
            "timezone": stream.timezone,
            "quantity": stream.quantity,
            "unit": stream.unit,
            **({"node_ids": "text"} if text else {}),
        },
    }
