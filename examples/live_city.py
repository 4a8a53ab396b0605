"""Your own city, live.

Import a street map and a table of counts, train on them, then feed new counts in as they arrive and forecast the next
half hour at places that have no detector. The map and the counts are made up here; with your own files, start at
`fg.import_osm`.

    python examples/live_city.py
"""

import math
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

import frigate as fg

ZONE = "Europe/Luxembourg"
MONDAY = datetime(2024, 3, 4, tzinfo=ZoneInfo(ZONE))
STEP = timedelta(minutes=15)
SIDE = 7  # streets each way
MAIN = 3  # the one in the middle is a main street

crossings = {1 + SIDE * row + column: (row, column) for row in range(SIDE) for column in range(SIDE)}
detectors = [node for node, (row, column) in crossings.items() if (row + column) % 2]


def count(node: int, time: datetime) -> int:
    """Vehicles at a crossing in one step: two rush hours, and three times as many on the main streets."""
    hour = time.hour + time.minute / 60
    rush = math.exp(-((hour - 8) ** 2) / 3) + math.exp(-((hour - 17) ** 2) / 5)
    return round((5 + 30 * rush) * (3 if MAIN in crossings[node] else 1))


def lon_lat(node: int) -> tuple[float, float]:
    row, column = crossings[node]
    return round(6.1 + 0.003 * column, 4), round(49.6 + 0.002 * row, 4)


def write_map(path: str) -> None:
    """The streets, as OpenStreetMap's XML has them."""
    xml = ['<node id="{}" lon="{}" lat="{}"/>'.format(node, *lon_lat(node)) for node in crossings]
    for axis in (0, 1):
        for street in range(SIDE):
            nodes = "".join(f'<nd ref="{node}"/>' for node, at in crossings.items() if at[axis] == street)
            kind = "primary" if street == MAIN else "residential"
            xml.append(f'<way id="{1 + SIDE * axis + street}">{nodes}<tag k="highway" v="{kind}"/></way>')
    Path(path).write_text(f'<osm version="0.6">{"".join(xml)}</osm>')


def write_counts(path: str, times: list[datetime]) -> None:
    """A row for each detector and time: local time, place, vehicles."""
    with open(path, "w") as file:
        file.write("time,lon,lat,value\n")
        for time in times:
            for node in detectors:
                lon, lat = lon_lat(node)
                file.write(f"{time:%Y-%m-%dT%H:%M},{lon},{lat},{count(node, time)}\n")


write_map("town.osm")
write_counts("counts.csv", [MONDAY + k * STEP for k in range(4 * 96)])  # Monday to Thursday

# From files to a model. `seen="all"`: every detector is an input and none is held out for scoring.
city = fg.import_tables(network=fg.import_osm("town.osm", timezone=ZONE), readings="counts.csv")
small = fg.change(
    fg.preset("default"),
    {
        "task": {"past": 4, "horizon": 2},
        "model": {"width": 16, "layers": 2, "demand": False},  # these counts are made up: no trips stand behind them
        "train": {
            "epochs": 8,
            "steps_per_epoch": 20,
            "batch_size": 4,
            "warmup_steps": 10,
            "learning_rate": 0.005,
            "average": 0.9,
        },
    },
)
run = fg.train(city, seen="all", settings=small)

# A snapshot has a value for each node, in the order of the network, and NaN where nothing was measured.
network = city.network
live = fg.Live(run, network, sensors=detectors)
time = MONDAY + timedelta(days=4)
while time < MONDAY + timedelta(days=4, hours=8):  # Friday, until the morning rush
    snapshot = np.full(network.num_nodes, np.nan)
    snapshot[network.rows_of(detectors)] = [count(node, time) for node in detectors]
    live.push(int(time.timestamp()), snapshot)
    time += STEP

ahead = live.forecast()
print(ahead.summary())
for name, node in (("main street", 23), ("side street", 9)):  # neither has a detector
    for step, local_time in enumerate(ahead.local_times()):
        value = ahead.values[step, network.row_of(node)]
        print(f"{name}, {local_time[11:16]}: {value:.0f} vehicles, in truth {count(node, time + step * STEP)}")

# Roads are one-way, from node to node. One closes from the next snapshot on; another is only asked about.
live.change(network.close([(23, 24)]))
asked = live.what_if(network.close([(24, 23)]))
print(f"What if it closed: {asked.values[0, network.row_of(23)]:.0f} vehicles on the main street")
