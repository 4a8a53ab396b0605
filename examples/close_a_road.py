"""Close a bridge in the demo city.

Simulate a small town, train on sensors at a third of its intersections, then forecast the evening rush twice: as the
roads are, and with one of the bridges over the river closed. Nothing is trained again for the second forecast.

    python examples/close_a_road.py
"""

import numpy as np

import frigate as fg

BRIDGE = "Old Bridge"

# A town, its streets and five days of counts at every intersection, all from one seed.
city = fg.demo_city(seed=0, intersections=100, days=5)
network = city.network

# A model small enough for a minute on a laptop. `fg.preset("default")` alone is the one to use for a real city.
small = fg.change(
    fg.preset("default"),
    {
        "model": {"width": 16, "layers": 3},
        "train": {"epochs": 3, "steps_per_epoch": 10, "batch_size": 4, "warmup_steps": 10, "masks": 4},
    },
)
run = fg.train(city, seen=0.3, settings=small)
score = fg.evaluate(run, city, stride=12)
print(f"Mean error without a sensor: {score.model.unseen.mae} vehicles per 5 minutes")
print(f"A sensor everywhere would reach 100 %, this model {score.model.share_of_sensor.value:.0%}")

# Roads are one-way and named by their two ends, so a bridge is two of them.
ends = network.node_ids[[network.senders, network.receivers]].T
bridge = [(int(a), int(b)) for a, b in ends[network.edges.name == BRIDGE]]
print(f"{BRIDGE}: {bridge}")

rush_hour = "2024-03-08T17:00"  # Friday, the last day
now = fg.forecast(run, network, city, at=rush_hour)
closed = fg.forecast(run, network.close(bridge), city, at=rush_hour)

change_per_hour = (closed.values - now.values).sum(axis=0)  # [node], over twelve steps of five minutes
for node in np.argsort(-np.abs(change_per_hour))[:5]:
    before = now.values[:, node].sum()
    print(f"intersection {now.node_ids[node]}: {before:.0f} vehicles an hour, {change_per_hour[node]:+.0f} when closed")
closed.write("closed.geojson")
print("closed.geojson shows the forecast in any map program")
