"""Which requests are an agent's own: remembered by object identity, for as long as the object lives."""

from __future__ import annotations

import weakref

from dshd.capabilities.llm import GenerateOptions


class Conversations:
    """A set of requests. Two requests are never equal, so this is about the very object."""

    def __init__(self) -> None:
        self._marked: weakref.WeakSet[GenerateOptions] = weakref.WeakSet()

    def add(self, request: GenerateOptions) -> None:
        self._marked.add(request)

    def __contains__(self, request: GenerateOptions) -> bool:
        return request in self._marked

    def __len__(self) -> int:
        return len(self._marked)
