"""The surface of a log, and the messages a model sees of it. Kept as the log grows; a derivation from scratch is equal.

The surface is a row of nodes, each one event. An event is put at its end, or takes the place of a range of it. So a
node that replaced others has a higher number than those behind it: what is where is a matter of order, not of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from dshd.capabilities.values.message import Message, PluginSource, Snapshot

from .event import SessionEvent
from .surface import SURFACE, AssistantMessage, Replace, SurfaceData


class History:
    """The surface of one log, and the derived history: adding a message costs the same however long it is."""

    __slots__ = ("_derived", "_messages", "_nodes", "_snapshots")

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Message | None]] = []
        self._messages: list[Message] = []
        self._derived: tuple[Message, ...] | None = ()
        self._snapshots: dict[str, Message] = {}

    def place_of(self, op: Replace) -> slice:
        """Where on the surface the nodes stand that `op` replaces.

        Raises `ValueError` unless both ends are on the surface, in this order.
        """
        seqs = [seq for seq, _ in self._nodes]
        try:
            first, last = seqs.index(op.start), seqs.index(op.end)
        except ValueError:
            gone = op.end if op.start in seqs else op.start
            raise ValueError(f"event {gone} is not on the surface; it makes no message or was replaced") from None
        if first > last:
            raise ValueError(f"event {op.end} stands before event {op.start} on the surface")
        return slice(first, last + 1)

    def add(self, seq: int, data: SurfaceData, place: slice | None = None) -> None:
        """Put an event at the end, or in the place of what stands there."""
        message = data.message
        shown = None if isinstance(data, AssistantMessage) and not message.content else message
        self._derived = None
        if place is None:
            self._nodes.append((seq, shown))
            if shown is not None:
                self._messages.append(shown)
                self._note(shown)
            return
        self._nodes[place] = [(seq, shown)]
        self._messages = [shown for _, shown in self._nodes if shown is not None]
        self._snapshots.clear()
        for shown in self._messages:
            self._note(shown)

    def _note(self, message: Message) -> None:
        source = message.source
        if type(source) is PluginSource and type(source.form) is Snapshot:
            self._snapshots[source.plugin] = message

    def messages(self) -> tuple[Message, ...]:
        """User messages and tool results as they are, assistant messages unless they are empty; in surface order."""
        if self._derived is None:
            self._derived = tuple(self._messages)
        return self._derived

    def seqs(self) -> tuple[int, ...]:
        """The numbers of the events on the surface, in order."""
        return tuple(seq for seq, _ in self._nodes)

    def latest_snapshot(self, plugin: str) -> Message | None:
        """The last snapshot of a plugin on the surface."""
        return self._snapshots.get(plugin)


def derive(events: Iterable[SessionEvent]) -> tuple[Message, ...]:
    """The history that a log, or its beginning, comes to; worked out from scratch.

    Raises `ValueError` for a replacement of what is not on the surface.
    """
    history = History()
    for event in events:
        if isinstance(event.data, SURFACE):
            op = event.surface_op
            history.add(event.seq, event.data, history.place_of(op) if isinstance(op, Replace) else None)
    return history.messages()
