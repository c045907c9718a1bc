"""Durations as people write them: a field of type `Duration` takes `250ms`, `60s`, `5m`, `2h` or seconds."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


def seconds(value: object) -> object:
    """A duration such as `250ms`, `60s`, `5m`, `2h` in seconds; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    found = PATTERN.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{value!r} is no duration; write 250ms, 60s, 5m, 2h, or a number of seconds")
    return float(found[1]) * UNITS[found[2] or "s"]


Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(seconds),
    Field(ge=0, allow_inf_nan=False),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{PATTERN.pattern}$"}]}
    ),
]
"""Seconds, written with or without a unit."""
