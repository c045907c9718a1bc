"""Counts, as configs and logs hold them: whole numbers that every JSON reader reads as the same number."""

from __future__ import annotations

from dshd.capabilities.values.json import MalformedValueError

LARGEST_SAFE = 2**53 - 1
"""Counts above it are not the same number in every JSON reader."""


def check_count(what: str, value: object, least: int = 0) -> None:
    """Raise `MalformedValueError` for what is no whole number from `least` to `LARGEST_SAFE`."""
    if type(value) is not int or not least <= value <= LARGEST_SAFE:
        raise MalformedValueError(f"{what} is a whole number from {least} to {LARGEST_SAFE}, not {_shown(value)}")


def check_optional_count(what: str, value: object, least: int = 0) -> None:
    """The same, where `None` stands for none."""
    if value is not None:
        check_count(what, value, least)


def _shown(value: object) -> str:
    """What was given; of a number too long to be read, or even to be written, only that it is."""
    return "one beyond that" if isinstance(value, int) and abs(value) > LARGEST_SAFE else repr(value)
