"""Which requests are an agent's own: remembered by object identity, for as long as the object lives."""

from __future__ import annotations

from weakref import WeakSet

from dshd.capabilities.llm import GenerateOptions


class Conversations:
    """A face over the set of marked requests, which outlives it. Two requests are never equal."""

    __slots__ = ("_marked",)

    def __init__(self, marked: WeakSet[GenerateOptions]) -> None:
        self._marked = marked

    def add(self, request: GenerateOptions) -> None:
        self._marked.add(request)

    def pass_on(self, request: GenerateOptions, copy: GenerateOptions) -> None:
        """`copy` stands for `request` from here on."""
        if copy is not request and request in self._marked:
            self._marked.add(copy)

    def __contains__(self, request: GenerateOptions) -> bool:
        return request in self._marked
