"""Match a table's columns to ours: by the user's map, by our own names, or by common names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from frigate.errors import CityError, did_you_mean

SPEED_KPH = {"_kph": 1.0, "_kmh": 1.0, "_mph": 1.609344, "_mps": 3.6}
LENGTH_M = {"_m": 1.0, "_km": 1000.0, "_mi": 1609.344, "_ft": 0.3048}

# Common names for our columns, in English, German and French, written as `plain` does. The user's map takes precedence.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "node_id": ("node", "nodeid", "id", "osmid", "intersection_id", "junction_id", "knoten", "knoten_id", "noeud"),
    "lon": ("longitude", "lng", "long", "x", "lon_deg", "laengengrad", "geo_laenge", "wgs84_lon"),
    "lat": ("latitude", "y", "lat_deg", "breitengrad", "geo_breite", "wgs84_lat"),
    "source": (
        *("src", "from", "from_node", "u", "start_node", "node_from", "source_id", "from_id"),
        *("von", "von_knoten", "noeud_amont"),
    ),
    "target": (
        *("dst", "to", "to_node", "v", "end_node", "node_to", "target_id", "to_id"),
        *("nach", "nach_knoten", "noeud_aval"),
    ),
    "length_m": (
        *("length", "length_km", "length_mi", "length_ft", "distance_m", "distance", "len_m"),
        *("laenge", "laenge_m", "laenge_km", "longueur", "longueur_m", "longueur_km"),
    ),
    "road_class": ("highway", "class", "fclass", "functional_class", "road_type", "strassenklasse", "classe"),
    "lanes": ("num_lanes", "lane_count", "number_of_lanes", "fahrstreifen", "spuren", "nb_voies"),
    "speed_kph": (
        *(f"{name}_{unit}" for name in ("maxspeed", "max_speed", "speed_limit") for unit in ("kph", "kmh", "mph")),
        *("speed_kmh", "speed_mph", "vmax", "vmax_kmh", "tempolimit", "tempolimit_kmh", "vitesse_max_kmh"),
    ),
    "name": ("street", "street_name", "road_name", "strasse", "strassenname", "nom_rue", "nom_voie", "rue"),
    "geometry": ("wkt", "wkb", "geom", "the_geom", "shape"),
    "direction": ("dir", "richtung", "fahrtrichtung", "sens"),
    "oneway": ("one_way", "einbahn", "einbahnstrasse", "sens_unique"),
    "road_id": ("segment_id", "edge_id", "link_id", "section_id", "street_id"),
    "time": (
        *("timestamp", "datetime", "date_time", "t_unix", "unix", "time_utc", "t", "interval_start", "period_start"),
        *("zeit", "zeitpunkt", "zeitstempel", "uhrzeit", "datum_zeit", "datum_uhrzeit"),
        *("heure", "horodatage", "date_heure", "date_et_heure", "date_et_heure_de_comptage"),
    ),
    "date": ("day", "count_date", "datum", "tag", "jour", "date_comptage"),
    "value": (
        *("count", "flow", "volume", "vehicles", "q", "speed", "reading", "all_motor_vehicles"),
        *("anzahl", "kfz", "fahrzeuge", "verkehrsmenge", "verkehrsstaerke", "messwert", "wert", "geschwindigkeit"),
        *("debit", "debit_horaire", "comptage", "nombre_de_vehicules", "nb_vehicules", "valeur", "vitesse"),
    ),
    "sensor_id": (
        *("sensor", "detector_id", "detector", "station_id", "station", "loop_id", "device_id", "site_id", "site"),
        *("count_point_id", "zaehlstelle", "zaehlstellen_id", "zaehlstellennummer", "messstelle", "messstellen_id"),
        *("detektor", "detektor_id", "zst", "zst_nr", "capteur", "compteur", "identifiant_arc", "id_compteur"),
        *("point_de_comptage", "poste_de_comptage"),
    ),
    "bearing": ("heading", "azimuth", "azimut", "ausrichtung", "cap"),
    "street": ("street_name", "road", "road_name", "strasse", "strassenname", "rue", "nom_rue", "nom_voie", "libelle"),
}
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
UNIT_OF_VALUE = re.compile(r"_(kph|kmh|mph|mps|(kfz|fz|fzg|veh|vehicles|vehicules|uvp)(_h)?)$")
UNITS = {"km/h": "kmh", "mi/h": "mph", "m/s": "mps"}


def plain(name: str) -> str:
    """A column's name as common names are written: "Geschwindigkeit [km/h]" is geschwindigkeit_kmh."""
    text = unicodedata.normalize("NFC", name).casefold().translate(UMLAUTS)
    for written, ours in UNITS.items():
        text = text.replace(written, ours)
    letters = (c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return re.sub(r"[\W_]+", "_", "".join(letters)).strip("_")


def _is_known(name: str, ours: str) -> bool:
    """Whether a column's name is ours or a common one. A column of readings may have its unit in its name."""
    word = plain(name)
    known = (ours, *ALIASES.get(ours, ()))
    return word in known or (ours == "value" and UNIT_OF_VALUE.sub("", word) in known)


def renamed(names: Sequence[str], columns: Sequence[str], rename: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Our columns -> their names in the file, matched by the user's map and by our own names."""
    source_of: dict[str, str] = {}
    for theirs, ours in rename.items():
        if theirs in names and ours in columns and theirs != ours:
            unit_factor(theirs, ours)
            if ours in source_of:
                raise CityError(f"{where}: both {source_of[ours]} and {theirs} are mapped to {ours}")
            source_of[ours] = theirs
    unrenamed = {c: c for c in columns if c in names and c not in source_of and rename.get(c, c) == c}
    return source_of | unrenamed


def guess(
    names: Sequence[str], columns: Sequence[str], rename: Mapping[str, str], source_of: Mapping[str, str], *, where: str
) -> dict[str, str]:
    """The same for columns not matched yet, by common names."""
    guessed: dict[str, str] = {}
    for ours in (c for c in columns if c not in source_of):
        there = [n for n in names if n not in rename and _is_known(n, ours)]
        there = [n for n in there if n not in columns or n == ours]
        if len(there) > 1:
            either = " or ".join(there)
            raise CityError(f"{where}: which column is {ours}: {either}? Choose with --map {there[0]}={ours}")
        if there:
            guessed[ours] = there[0]
    taken = [*source_of.values(), *guessed.values()]
    return {ours: theirs for ours, theirs in guessed.items() if taken.count(theirs) == 1}


def check_rename(rename: Mapping[str, str], names: Sequence[str], ours: Sequence[str]) -> None:
    """Refuse a map (theirs -> ours) from a column that no table has, or to one that is not ours."""
    for theirs, our in rename.items():
        if theirs not in names:
            there = f"The columns are: {', '.join(dict.fromkeys(names))}"
            raise CityError(f'map: no table has a column "{theirs}"{did_you_mean(theirs, names)}. {there}')
        if our not in ours:
            known = f"Frigate's columns are: {', '.join(ours)}"
            raise CityError(f'map: "{our}" is not a column that Frigate reads{did_you_mean(our, ours)}. {known}')


def unit_factor(source: str, target: str) -> float:
    """The unit conversion of a renamed column: 1.609344 for speed_mph=speed_kph, 1e-5 for lon_e5=lon."""
    if target in ("lon", "lat") and (scaled := re.search(r"_e([567])$", plain(source))):
        return float(f"1e-{scaled[1]}")

    def unit(name: str) -> tuple[str, float] | None:
        for kind, units in (("speed", SPEED_KPH), ("length", LENGTH_M)):
            for suffix in sorted(units, key=len, reverse=True):
                if plain(name).endswith(suffix):
                    return kind, units[suffix]
        return None

    theirs = unit(source)
    ours = unit(target)
    if theirs is None or ours is None:
        return 1.0
    if theirs[0] != ours[0]:
        raise CityError(f"{source}={target}: a {theirs[0]} cannot become a {ours[0]}")
    return theirs[1] / ours[1]
