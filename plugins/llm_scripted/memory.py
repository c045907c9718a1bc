"""What is remembered of conversations between requests: plain counts, which outlive the row's instances."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

from dshd import Context, SharedKey
from dshd.capabilities.llm import LLM

Conversation: TypeAlias = "tuple[str, str]"
"""A session's id, empty without one, and the purpose of auxiliary calls."""

Counts: TypeAlias = "dict[str, int]"
Kept: TypeAlias = "dict[Conversation, Counts]"

MOST = 10_000
"""Conversations that are remembered; the one that was silent for longest is forgotten first."""


class Memory:
    """Counts by conversation, over the data of the keeper."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept: Kept = {} if kept is None else kept

    def of(self, conversation: Conversation) -> Counts:
        """The counts of one conversation, to be read and changed in one synchronous section."""
        counts = self._kept.pop(conversation, {})
        self._kept[conversation] = counts
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return counts


async def remembered(ctx: Context) -> Memory:
    """The memory of a row, the same for all its instances.

    It belongs to the row path and to the realm of the service: the same sessions live there. Nothing of the config is
    in the key, for counts of rules and scripts go by their content.
    """
    kept = await ctx.shared(SharedKey[Kept]("llm_scripted", (ctx.fiber.path, ctx.realm(LLM))), _open)
    return Memory(kept)


async def _open(ctx: Context) -> AsyncIterator[Kept]:
    yield {}
