"""Nodes: configuration data in which every value knows where it was written.

Nodes are immutable in spirit: steps build new ones and share what they keep, so an alias used twenty times is one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from .issues import Mark

Scalar: TypeAlias = "bool | int | float | str | None"


class Node:
    """A scalar, a list of nodes or a mapping of nodes, with the place of the value and of each key.

    `quoted` is true for text that was quoted, or written as a block: it is text whatever it looks like.
    """

    __slots__ = ("keys", "mark", "quoted", "value")

    def __init__(
        self,
        value: Scalar | list[Node] | dict[str, Node],
        mark: Mark,
        keys: dict[str, Mark] | None = None,
        quoted: bool = False,
    ) -> None:
        self.value = value
        self.mark = mark
        self.keys = keys if keys is not None else {}
        self.quoted = quoted

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        if self.value is None:
            return "nothing"
        kinds = {dict: "a mapping", list: "a list", bool: "true or false", str: "text"}
        return kinds.get(type(self.value), "a number")

    def mapping(self) -> dict[str, Node]:
        """The members of a mapping; none for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    def items(self) -> list[Node]:
        """The members of a list; none for anything else."""
        return self.value if isinstance(self.value, list) else []

    def get(self, key: str) -> Node | None:
        return self.mapping().get(key)

    def at(self, path: tuple[str | int, ...]) -> Mark:
        """The place of the innermost part of `path` that exists: of its key where it has one, else of the value."""
        node, mark = self, self.mark
        for part in path:
            if isinstance(node.value, dict) and str(part) in node.value:
                mark = node.keys.get(str(part), node.value[str(part)].mark)
                node = node.value[str(part)]
            elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.mark
            else:
                break
        return mark

    def plain(self) -> Any:
        """The data without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def leaves(self, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        """Every scalar (and every empty list or mapping) with its path."""
        if isinstance(self.value, dict) and self.value:
            for key, node in self.value.items():
                yield from node.leaves((*path, key))
        elif isinstance(self.value, list) and self.value:
            for index, node in enumerate(self.value):
                yield from node.leaves((*path, index))
        else:
            yield path, self

    def __repr__(self) -> str:
        return f"<node of {self.kind} at {self.mark}>"  # never the value: it may be a secret


def merge(below: Node | None, above: Node) -> Node:
    """RFC 7396: mappings merge, anything else is replaced whole, `null` takes a key out."""
    if not above.is_mapping:
        return above
    base = below if below is not None and below.is_mapping else Node({}, above.mark)
    value, keys = dict(base.mapping()), dict(base.keys)
    for key, node in above.mapping().items():
        if node.value is None:
            value.pop(key, None)
            keys.pop(key, None)
        else:
            value[key] = merge(value.get(key), node)
            keys[key] = above.keys.get(key, node.mark)
    return Node(value, base.mark if base.mapping() else above.mark, keys)
