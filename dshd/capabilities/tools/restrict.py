"""Which inherited tools a scope may see. Several restrictions intersect; a scope's own tools stay visible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Restriction:
    """Patterns of tool names: those allowed (`None` for no statement), less those denied."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.allow is not None:
            object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "deny", tuple(self.deny))

    def permits(self, name: str) -> bool:
        """Whether this restriction alone lets the tool through."""
        allowed = self.allow is None or any(fnmatchcase(name, pattern) for pattern in self.allow)
        return allowed and not any(fnmatchcase(name, pattern) for pattern in self.deny)


def permitted(name: str, restrictions: Iterable[Restriction]) -> bool:
    """Whether a scope under these restrictions may see an inherited tool: all permit it and at least one names it."""
    found = list(restrictions)
    return any(each.allow is not None for each in found) and all(each.permits(name) for each in found)
