"""How the readings of a city were imported, so that more of them are read in the same way (--append)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frigate.errors import CityError


@dataclass(frozen=True)
class ReadingOptions:
    """Options of `import_tables`; None, or empty: not given."""

    encoding: str | None = None
    date_order: str | None = None
    bearing: str | None = None
    snap_m: float | None = None
    rename: Mapping[str, str] = field(default_factory=dict)  # column of a file -> ours

    def or_else(self, before: ReadingOptions) -> ReadingOptions:
        """These options; those not given, as before."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        known = {theirs: ours for theirs, ours in before.rename.items() if ours not in self.rename.values()}
        return ReadingOptions(**asdict(before) | given | {"rename": known | dict(self.rename)})

    def to_json(self) -> dict[str, Any]:
        """What is given."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    @classmethod
    def of(cls, data: Any, *, where: str) -> ReadingOptions:
        """The inverse of `to_json`, from a file."""
        example = 'encoding = "latin-1" and rename = {"Zeit" = "time"}'
        if not isinstance(data, dict) or set(data) - set(cls.__dataclass_fields__):
            unknown = sorted(set(data) - set(cls.__dataclass_fields__)) if isinstance(data, dict) else []
            raise CityError(f"{where}: {unknown[0] if unknown else data!r} is not known. Write, for example, {example}")
        for name, value in data.items():
            texts = [value] if name in ("encoding", "date_order", "bearing") else []
            texts = [*value, *value.values()] if name == "rename" and isinstance(value, dict) else texts
            number = (
                isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
            )
            right = number if name == "snap_m" else bool(texts) and all(isinstance(text, str) for text in texts)
            if not right and value != {}:
                raise CityError(f"{where}: {name} = {value!r} is not understood. Write, for example, {example}")
        return cls(**data)
