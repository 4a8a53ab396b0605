"""The time zone of a map, where nobody names one: that of the place."""

from __future__ import annotations

import numpy as np

from frigate.data.network import RoadNetwork
from frigate.data.notices import Notices
from frigate.data.stream import zone
from frigate.errors import CityError

AT_SEA = "Etc/"


def timezone_of(network: RoadNetwork, given: str | None, notices: Notices) -> str:
    """The time zone given, which has to exist, or else that of the middle of the network, which is reported."""
    if given is not None:
        zone(given)
        return given
    import tzfpy

    here = network.present
    name = tzfpy.get_tz(float(np.median(network.lon[here])), float(np.median(network.lat[here])))
    try:
        zone(name)
    except CityError:  # one that this machine's database does not know yet
        name = AT_SEA
    if name.startswith(AT_SEA):
        notices.add("Maps that lie in no time zone: UTC is used. Pass --timezone for another", 1)
        return "UTC"
    notices.add(f"Time zones taken from where the map lies ({name}), as none was given", 1)
    return name
