"""What the tags of an OpenStreetMap way mean for cars: whether it is drivable, direction, speed, number of lanes.

A way is kept if its `highway` is wanted, unless it has `area=yes` or is closed to cars by the most specific of
`motorcar`, `motor_vehicle`, `vehicle`, `access` (destination, customers, permissive, delivery and the like stay open).
If service roads are wanted, driveways, parking aisles, drive-throughs and emergency accesses are still left out.

`oneway` (or its form for cars) decides the direction; without it, roundabouts, motorways and motorway links are
one-way. Reversible and alternating roads are kept in both directions, as they carry both in the course of a day.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from frigate.reading.notices import MAX_PLACES, Notices

# Public roads for through traffic: no service roads, tracks, busways or pedestrian streets, and none that are under
# construction, proposed or abandoned (their `highway` says so).
DRIVABLE: tuple[str, ...] = (
    "motorway",
    "motorway_link",
    "trunk",
    "trunk_link",
    "primary",
    "primary_link",
    "secondary",
    "secondary_link",
    "tertiary",
    "tertiary_link",
    "unclassified",
    "residential",
    "living_street",
    "road",
)

# Other known values of `highway`.
NOT_FOR_CARS = {
    "service",
    "track",
    "pedestrian",
    "footway",
    "path",
    "steps",
    "cycleway",
    "bridleway",
    "corridor",
    "busway",
    "bus_guideway",
    "escape",
    "raceway",
    "construction",
    "proposed",
    "planned",
    "platform",
    "elevator",
    "via_ferrata",
    "ladder",
    "rest_area",
    "services",
    "emergency_bay",
    "bus_stop",
    "crossing",
    "traffic_island",
    "turning_circle",
    "street_lamp",
    "toll_gantry",
    "trailhead",
    "abandoned",
    "disused",
    "razed",
    "demolished",
    "removed",
    "no",
    "none",
}
UNKNOWN = "Ways left out because their value of highway is unknown (keep them with --highways)"

NO_THROUGH_SERVICE = {"driveway", "parking_aisle", "drive-through", "emergency_access"}
CLOSED = {
    "no",
    "private",
    "agricultural",
    "forestry",
    "military",
    "emergency",
    "psv",
    "bus",
    "foot",
    "bicycle",
    "use_sidepath",
    "restricted",
}
ACCESS = ("motorcar", "motor_vehicle", "vehicle", "access")  # the most specific first
ONEWAY = ("oneway:motorcar", "oneway:motor_vehicle", "oneway:vehicle", "oneway")

FORWARD_ONLY = (True, False)
BACKWARD_ONLY = (False, True)
BOTH = (True, True)
DIRECTIONS = {
    **dict.fromkeys(("yes", "true", "1"), FORWARD_ONLY),
    **dict.fromkeys(("-1", "reverse"), BACKWARD_ONLY),
    **dict.fromkeys(("no", "false", "0"), BOTH),
}
CHANGING = {"reversible", "alternating"}

KPH_OF_UNIT = {"": 1.0, "km/h": 1.0, "kmh": 1.0, "kph": 1.0, "mph": 1.609344, "knots": 1.852}
MAX_KPH = 200.0
MAX_LANES = 20.0
MAX_NAME = 60  # characters: in a numpy array every name is as wide as the longest
WALK_KPH = 7.0
NO_LIMIT_KPH = 130.0  # for "none": the speed recommended where there is no limit
# For values such as "RO:urban": by country if listed, else by the second word.
IMPLICIT_KPH = {
    "urban": 50.0,
    "rural": 90.0,
    "trunk": 100.0,
    "motorway": 130.0,
    "living_street": 20.0,
    "bicycle_road": 30.0,
    "nsl_restricted": 30 * 1.609344,
    "nsl_single": 60 * 1.609344,
    "nsl_dual": 70 * 1.609344,
    "DE:rural": 100.0,
    "AT:rural": 100.0,
    "PL:motorway": 140.0,
    "RU:urban": 60.0,
    "RU:motorway": 110.0,
    "FR:rural": 80.0,
    "CH:rural": 80.0,
    "CH:motorway": 120.0,
    "BE:motorway": 120.0,
    "ES:motorway": 120.0,
    "FI:rural": 80.0,
    "FI:motorway": 120.0,
    "SE:rural": 70.0,
    "SE:motorway": 110.0,
    "NL:rural": 80.0,
    "GB:urban": 30 * 1.609344,
    "GB:rural": 60 * 1.609344,
    "GB:motorway": 70 * 1.609344,
}

# No other tags are decoded.
KEYS: tuple[str, ...] = (
    "highway",
    "name",
    "ref",
    "area",
    "service",
    "junction",
    "lanes",
    "lanes:forward",
    "lanes:backward",
    "lanes:both_ways",
    "maxspeed",
    "maxspeed:forward",
    "maxspeed:backward",
    "zone:maxspeed",
    "maxspeed:type",
    "source:maxspeed",
    *ACCESS,
    *ONEWAY,
)


@dataclass(frozen=True)
class RoadKind:
    """Attributes of a way. Unknown numbers are 0, not NaN, so that equal kinds compare equal."""

    road_class: str
    forward: bool
    backward: bool
    lanes_forward: float
    lanes_backward: float
    speed_forward_kph: float
    speed_backward_kph: float
    name: str


def road_kind(tags: Mapping[str, str], *, highways: Collection[str], notices: Notices) -> RoadKind | None:
    """The kind of road, or None if it is not drivable. A notice says why if its `highway` is wanted."""
    words = [word.strip() for word in tags.get("highway", "").split(";")]
    road_class = next((word for word in words if word in highways), None)
    if road_class is None:
        if not NOT_FOR_CARS.union(DRIVABLE).intersection(words):
            notices.add(UNKNOWN, 1)
            values = notices.places.setdefault(UNKNOWN, [])
            value = f"highway={';'.join(words)[:MAX_NAME]}"
            values += [value] if value not in values and len(values) < MAX_PLACES else []
        return None
    why = _closed(tags, road_class)
    if why:
        notices.add(why, 1)
        return None
    forward, backward = _directions(tags, road_class, notices)
    lanes_forward, lanes_backward = _lanes(tags, both=forward and backward, notices=notices)
    usual = _speed(tags, ("maxspeed", "zone:maxspeed", "maxspeed:type", "source:maxspeed"), notices)
    return RoadKind(
        road_class,
        forward,
        backward,
        lanes_forward,
        lanes_backward,
        _speed(tags, ("maxspeed:forward",), notices) or usual,
        _speed(tags, ("maxspeed:backward",), notices) or usual,
        _name(tags, notices),
    )


def _name(tags: Mapping[str, str], notices: Notices) -> str:
    name = (tags.get("name", "") or tags.get("ref", "")).replace("\0", "").strip()
    notices.add(f"Names of roads cut to {MAX_NAME} characters", int(len(name) > MAX_NAME))
    return name[:MAX_NAME].strip()


def _closed(tags: Mapping[str, str], road_class: str) -> str:
    """Why a road is left out; "" if it is not."""
    if tags.get("area", "").strip().lower() == "yes":
        return "Areas that look like roads were left out"
    if road_class == "service" and tags.get("service", "").strip() in NO_THROUGH_SERVICE:
        return "Service roads that are driveways, parking aisles or emergency accesses were left out"
    for key in ACCESS:
        if key in tags:
            words = {word.strip().lower() for word in tags[key].split(";")}
            return "Roads closed to cars or private were left out" if words <= CLOSED else ""
    return ""


def _directions(tags: Mapping[str, str], road_class: str, notices: Notices) -> tuple[bool, bool]:
    """Whether cars may drive along the way, and against it."""
    value = next((tags[key].strip().lower() for key in ONEWAY if tags.get(key, "").strip()), "")
    if value in DIRECTIONS:
        return DIRECTIONS[value]
    if value in CHANGING:
        notices.add("Ways whose direction changes (reversible, alternating) were kept both ways", 1)
        return BOTH
    if value:
        notices.add("Unknown values of oneway were ignored", 1)
    implied = tags.get("junction", "") in ("roundabout", "circular") or road_class in ("motorway", "motorway_link")
    return FORWARD_ONLY if implied else BOTH


def _lanes(tags: Mapping[str, str], *, both: bool, notices: Notices) -> tuple[float, float]:
    """Lanes along the way and against it, 0 if unknown. On a two-way road, `lanes` counts both directions."""

    def number(key: str) -> float:
        if not tags.get(key, "").strip():
            return 0.0
        found = re.findall(r"-?\d{1,6}(?:\.\d+)?", tags[key])
        lanes = min((float(x) for x in found), default=0.0)  # "2;3": the smaller
        if not 0 < lanes <= MAX_LANES:
            notices.add("Unreadable values of lanes were treated as unknown", 1)
            return 0.0
        return lanes

    total = number("lanes")
    middle = number("lanes:both_ways")
    forward = number("lanes:forward")
    backward = number("lanes:backward")
    if not both:
        return forward or total, backward or total
    if total and forward and not backward:
        backward = max(total - forward - middle, 1.0)
    elif total and backward and not forward:
        forward = max(total - backward - middle, 1.0)
    half = max((total - middle) / 2, 1.0) if total else 0.0  # both directions share a single lane
    return forward or half, backward or half


def _speed(tags: Mapping[str, str], keys: Collection[str], notices: Notices) -> float:
    """The speed in the first of these tags that has one, else 0."""
    for key in keys:
        if tags.get(key, "").strip():
            kph = speed_kph(tags[key])
            if not math.isnan(kph):
                return kph
            if key.startswith("maxspeed") and key != "maxspeed:type":
                notices.add("Unreadable speed limits were treated as unknown", 1)
    return 0.0


def speed_kph(text: str) -> float:
    """A tagged speed limit in km/h: "50", "30 mph", "RO:urban", "walk", "none". NaN if it is not a speed.

    If there are several ("50;30", or by lane "100|80"), the lowest.
    """
    found = [kph for part in re.split(r"[;|,]", text) if not math.isnan(kph := _one_speed(part.strip()))]
    return min(found, default=math.nan)


def _one_speed(word: str) -> float:
    lower = word.lower()
    if lower in ("walk", "walking"):
        return WALK_KPH
    if lower == "none":
        return NO_LIMIT_KPH
    number = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(km/h|kmh|kph|mph|knots|)", lower)
    if number:
        kph = round(float(number[1]) * KPH_OF_UNIT[number[2]], 3)
        return kph if 0 < kph <= MAX_KPH else math.nan
    zone = re.fullmatch(r"[a-z]{2}:(?:zone:?)?(\d{1,3})", lower)  # "DE:zone:30", "FR:zone30", and zone:maxspeed "DE:30"
    if zone:
        mph = KPH_OF_UNIT["mph"] if lower.startswith(("gb:", "us:")) else 1.0
        return float(zone[1]) * mph if 0 < float(zone[1]) * mph <= MAX_KPH else math.nan
    place = re.fullmatch(r"([a-z]{2})(?:-[a-z]+)?:([a-z_]+)", lower)
    if place:
        return round(IMPLICIT_KPH.get(f"{place[1].upper()}:{place[2]}", IMPLICIT_KPH.get(place[2], math.nan)), 3)
    return math.nan
