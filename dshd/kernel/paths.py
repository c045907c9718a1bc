"""Row paths: where a fiber stands in the tree, as text for people and as a key for ordering."""

from __future__ import annotations

import heapq
from typing import TypeAlias

Identity: TypeAlias = "tuple[str, int]"
"""A name among siblings and its number, which is 1 unless several were mounted under one name."""

Order: TypeAlias = "tuple[Identity, ...]"
"""Identities from the row under the root down to a fiber; compares parents before children, by name, then number."""


def text_of(order: Order) -> str:
    """`tools/shell`, or `tools#2/shell` where a number is needed."""
    return "/".join(name if number == 1 else f"{name}#{number}" for name, number in order)


class Names:
    """The identities in use under one parent. Instances of several generations may share one."""

    __slots__ = ("_free", "_next", "_uses")

    def __init__(self) -> None:
        self._uses: dict[Identity, int] = {}
        self._next: dict[str, int] = {}
        self._free: dict[str, list[int]] = {}

    def vacant(self, name: str) -> Identity:
        """The lowest number under which `name` is free."""
        freed = self._free.get(name)
        while freed:
            number = heapq.heappop(freed)
            if (name, number) not in self._uses:
                return name, number
        number = self._next.get(name, 1)
        while (name, number) in self._uses:
            number += 1
        self._next[name] = number
        return name, number

    def taken(self, identity: Identity) -> bool:
        return identity in self._uses

    def take(self, identity: Identity) -> None:
        self._uses[identity] = self._uses.get(identity, 0) + 1

    def release(self, identity: Identity) -> None:
        left = self._uses[identity] - 1
        if left:
            self._uses[identity] = left
            return
        del self._uses[identity]
        name, number = identity
        if number < self._next.get(name, 1):
            heapq.heappush(self._free.setdefault(name, []), number)
