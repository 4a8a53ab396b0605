"""Whether two names mean the same street: "Hauptstr. 12" and "Hauptstraße", "Av_de_Clichy" and "Avenue de Clichy"."""

from __future__ import annotations

import re

from frigate.reading.column_names import plain

SHORT_FORMS = {
    **{"street": "st", "saint": "st", "sankt": "st", "avenue": "av", "ave": "av", "road": "rd", "square": "sq"},
    **{"boulevard": "bd", "blvd": "bd", "bvd": "bd", "drive": "dr", "lane": "ln", "highway": "hwy", "route": "rte"},
    **{"place": "pl", "platz": "pl", "strasse": "str", "chemin": "ch", "allee": "al", "rue": "r", "quai": "q"},
}
ENDINGS = {"strasse": "str", "platz": "pl"}  # of one word, as in Hauptstrasse
MIN_LETTERS = 5  # of a street's name that is found inside another text


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case and in their short forms."""
    words = [SHORT_FORMS.get(word, word) for word in plain(name).split("_") if word]
    for long, short in ENDINGS.items():
        words = [word.removesuffix(long) + short if word.endswith(long) else word for word in words]
    return words


def names_street(text: str, street: str) -> bool:
    """Whether a text, such as the name of a detector, has the name of a street in it."""
    there = words_of(text)
    wanted = words_of(street)
    if sum(map(len, wanted)) < MIN_LETTERS:
        return False
    return set(wanted) <= set(there) or "".join(wanted) in "".join(there)


def same_street(given: str, street: str) -> bool:
    """Whether a name given for a street, perhaps shortened or with a house number, is that of this street."""
    words = [word for word in words_of(given) if not re.fullmatch(r"\d+[a-z]?", word)]
    wanted = words_of(street)
    if not words or not wanted:
        return False
    shorter = set(words) <= set(wanted) and sum(map(len, words)) >= MIN_LETTERS
    return shorter or words == wanted or names_street(given, street)
