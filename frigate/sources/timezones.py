"""The time zone of a map: that of the place, unless one is given."""

from __future__ import annotations

import numpy as np

from frigate.calendar import zone
from frigate.city.network import RoadNetwork
from frigate.errors import CityError
from frigate.reading.notices import Notices

AT_SEA = "Etc/"


def timezone_of(network: RoadNetwork, given: str | None, notices: Notices) -> str:
    """The time zone given, which must exist, or else, with a notice, that of the middle of the network."""
    if given is not None:
        zone(given)
        return given
    import tzfpy

    present = network.present
    name = tzfpy.get_tz(float(np.median(network.lon[present])), float(np.median(network.lat[present])))
    try:
        zone(name)
    except CityError:  # too new for this machine's time-zone database
        name = AT_SEA
    if name.startswith(AT_SEA):
        notices.add("Maps outside any time zone: UTC is used. Pass --timezone for another", 1)
        return "UTC"
    notices.add(f"Time zones taken from the location of the map ({name}), as none was given", 1)
    return name
