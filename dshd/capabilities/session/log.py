"""`Session`: one append-only log, the single source of truth of a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import overload

from dshd.capabilities.llm.request import EpochHeader
from dshd.capabilities.values.ids import SessionId
from dshd.capabilities.values.kinds import Extension
from dshd.capabilities.values.message import Message
from dshd.kernel.effects import Scope
from dshd.kernel.errors import DshdError

from .activity import AssistantChunk, RequestHeader
from .admission import Registered, admit, nothing_registered
from .boundary import StepEnd, StepStart, TurnEnd, TurnStart
from .event import EventData, LogData, SessionEvent, check_sources, new_event, type_of
from .header import SessionHeader
from .history import History
from .surface import SURFACE, AssistantMessage, Replace, SurfaceData, SurfaceOp, ToolResult, UserMessageAdded

MOST_NESTED = 10_000
"""Appends from within the telling of one event; more are a listener that answers itself."""


class SessionError(DshdError):
    """An append, a seed or a fork that the rules of the log forbid; nothing was changed."""


class EventLog(Sequence[SessionEvent]):
    """The entries of a log as others see them: read-only, and live."""

    __slots__ = ("_events",)

    def __init__(self, events: list[SessionEvent]) -> None:
        self._events = events

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SessionEvent, ...]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | tuple[SessionEvent, ...]:
        return tuple(self._events[index]) if isinstance(index, slice) else self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[SessionEvent]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"<log of {len(self._events)} events>"


class Session:
    """One live log. Only `append` changes it; everything else about the conversation is derived.

    It is plain data: it survives the replacement of the `sessions` row. `scope` is what listeners and entries for this
    conversation's agent are registered under; it is closed by whoever owns the agent, and the log goes on without.
    """

    def __init__(
        self,
        header: SessionHeader,
        seed: Iterable[SessionEvent] = (),
        *,
        tell: Callable[[SessionEvent], None] = lambda _: None,
        clock: Callable[[], int] | None = None,
        kinds: Registered = nothing_registered,
    ) -> None:
        """`seed` is validated and copied; it is not told. `clock` gives milliseconds since the epoch.

        `kinds` gives the registered kinds, which check what plugins add. Raises `SessionError` for a seed that is no
        log.
        """
        self.header = header
        self.scope = Scope(header.id)
        self.entered = False
        """Whether a store has taken it in; no other does, and none does twice."""
        self.sealed = False
        """Whether the session was taken out of its store, so that nothing may be added any more."""
        self._events: list[SessionEvent] = []
        self._view = EventLog(self._events)
        self._history = History()
        self._open_turn: int | None = None
        self._last_turn: int | None = None
        self._open_step: int | None = None
        self._last_step: int | None = None
        self._request_header: EpochHeader | None = None
        self._tell = tell
        self._telling = False
        self._told = self._told_from = 0
        self._clock = clock
        self._kinds = kinds
        for event in seed:
            self._adopt(event)
        self._told = len(self._events)

    @property
    def id(self) -> SessionId:
        return self.header.id

    @property
    def events(self) -> Sequence[SessionEvent]:
        """The whole log, read-only and live; `events[i].seq == i`."""
        return self._view

    # -- growing

    @overload
    def append(
        self,
        data: SurfaceData,
        *,
        surface_op: SurfaceOp | None = None,
        source_event_seqs: Sequence[int] | None = None,
        ignorable: bool | None = None,
    ) -> SessionEvent: ...
    @overload
    def append(self, data: LogData, *, ignorable: bool | None = None) -> SessionEvent: ...
    def append(
        self,
        data: EventData,
        *,
        surface_op: SurfaceOp | None = None,
        source_event_seqs: Sequence[int] | None = None,
        ignorable: bool | None = None,
    ) -> SessionEvent:
        """Add one event and tell everybody who listens, synchronously, with the log already changed.

        A surface event is appended to the surface unless `surface_op` replaces a range of it. An `Extension` is
        ignorable unless it is marked required. Everybody is told in the order of the log: what a listener appends is
        told after the event it is being told of, and its append returns before. Raises `LossyValueError` or
        `MalformedValueError`, naming the type, for data that cannot be stored, and `SessionError` for a surface
        operation where there is none and for a session that was detached; the log is then unchanged.
        """
        events = self._events
        if self.sealed or (self._telling and len(events) - self._told_from > MOST_NESTED):
            raise self._refusal()
        if type(data) is Extension:
            data, ignorable = _marked(data, ignorable)
        data = admit(data, self._kinds)
        now = time.time_ns() // 1_000_000 if self._clock is None else self._clock()
        seq = len(events)  # not before: the checks of registered kinds are code of plugins
        place, sources = None, None
        if isinstance(data, SURFACE):
            surface_op = surface_op or "append"
            place, sources = self._placed(data, seq, surface_op, source_event_seqs)
        elif surface_op is not None or source_event_seqs is not None:
            raise SessionError(f"{type_of(data)} is no surface event, so it has no surface operation and no sources")
        event = new_event(seq, now, data, surface_op, sources, ignorable is True)
        events.append(event)
        if type(data) is not AssistantChunk:  # of which there are hundreds a step
            self._note(event, place)
        if not self._telling:
            self._tell_all()
        return event

    def _tell_all(self) -> None:
        """Tell what was not told, each to everybody before the next."""
        events = self._events
        self._telling = True
        self._told_from = self._told
        try:
            while self._told < len(events):
                event = events[self._told]
                self._told += 1
                self._tell(event)
        finally:
            self._telling = False

    @contextmanager
    def announcing(self, tell: Callable[[SessionEvent], None]) -> Iterator[None]:
        """For stores: in the block the session is announced, from then on `tell` is called with each new event.

        What is appended in the block is told after it, so that everybody learns of the session first, who then knows
        from `events` what he is told. If the block raises, nothing is told.
        """
        telling, self._telling = self._telling, True
        self._told = self._told_from = len(self._events)
        try:
            yield
        finally:
            self._telling = telling
        self._tell = tell
        if not telling:
            self._tell_all()

    def seal(self) -> None:
        """For stores: the session was taken out, and whatever was added now would reach nobody."""
        self.sealed = True

    def _refusal(self) -> SessionError:
        if self.sealed:
            return SessionError(f"session {self.id!r} was detached, so nothing may be added to its log any more")
        return SessionError(
            f"more than {MOST_NESTED} events were appended to session {self.id!r} from within listeners of "
            f"session/event while one was told; a listener that appends must not answer its own events"
        )

    def _placed(
        self, data: SurfaceData, seq: int, op: SurfaceOp, sources: Sequence[int] | None
    ) -> tuple[slice | None, tuple[int, ...] | None]:
        """Where a surface event goes, `None` for the end, and its sources."""
        try:
            known = None if sources is None else tuple(sources)
            if known is not None:
                check_sources(known, data, seq)
            if op == "append":
                return None, known
            ends: tuple[object, ...] = (op.start, op.end)
            if type(op) is not Replace or any(type(end) is not int for end in ends):
                raise ValueError(f"{op!r} is no surface operation")
            return self._history.place_of(op), known
        except (ValueError, TypeError, AttributeError) as exc:
            raise SessionError(f"{data.type} cannot enter session {self.id!r}: {exc}") from None

    def _note(self, event: SessionEvent, place: slice | None) -> None:
        """Keep what is derived in step with the log."""
        match event.data:
            case UserMessageAdded() | AssistantMessage() | ToolResult() as data:
                self._history.add(event.seq, data, place)
            case TurnStart(turn):
                self._open_turn = self._last_turn = turn
                self._open_step = self._last_step = None
            case TurnEnd():
                self._open_turn = self._open_step = None
            case StepStart(_, step):
                self._open_step = self._last_step = step
            case StepEnd():
                self._open_step = None
            case RequestHeader(header):
                self._request_header = header

    @staticmethod
    def _check_envelope(event: object, seq: int) -> None:
        if type(event) is not SessionEvent:
            raise ValueError(f"{type(event).__name__} is no session event")
        if (type(event.seq), type(event.time), type(event.ignorable)) != (int, int, bool) or event.time < 0:
            raise ValueError("a member of the event is of another type than declared")
        if event.source_event_seqs is not None and type(event.source_event_seqs) is not tuple:
            raise ValueError("its sources are no tuple, so they could change")
        if event.seq != seq:
            raise ValueError(f"the number of the event is {event.seq}")

    def _adopt(self, event: SessionEvent) -> None:
        """Take over one event of a seed."""
        seq = len(self._events)
        try:
            self._check_envelope(event, seq)
            data, place = event.data, None
            if admit(data) is not data:
                raise ValueError("a character in it is cut in two")
            if isinstance(data, SURFACE):
                place, _ = self._placed(data, seq, event.surface_op or "append", event.source_event_seqs)
            elif event.surface_op is not None or event.source_event_seqs is not None:
                raise ValueError(f"{event.type} is no surface event, but has a surface operation or sources")
            elif isinstance(data, Extension) and data.required is event.ignorable:
                raise ValueError(f"{event.type} is marked both required and ignorable, or neither")
        except (ValueError, SessionError) as exc:
            raise SessionError(f"the seed of session {self.id!r}, at {seq}: {exc}") from exc
        self._events.append(event)
        self._note(event, place)

    def branch(self, header: SessionHeader, length: int) -> Session:
        """Another session that begins with the first `length` events of this one, as they are."""
        branch = Session(header, kinds=self._kinds, clock=self._clock)
        for event in self._events[:length]:
            op = event.surface_op
            branch._events.append(event)
            branch._note(event, branch._history.place_of(op) if isinstance(op, Replace) else None)
        branch._told = length
        return branch

    def turn_at(self, seq: int) -> int | None:
        """The number of the turn that is open after the event `seq`."""
        for event in reversed(self._events[: seq + 1]):
            match event.data:
                case TurnStart(turn):
                    return turn
                case TurnEnd():
                    return None
        return None

    # -- what follows from it

    def derive_messages(self) -> tuple[Message, ...]:
        """The history a model is to see, in order; worked out as the log grows, not anew."""
        return self._history.messages()

    def surface(self) -> tuple[int, ...]:
        """The numbers of the events on the surface, in order; what a replacement may name."""
        return self._history.seqs()

    @property
    def request_header(self) -> EpochHeader | None:
        """The latest logged header."""
        return self._request_header

    @property
    def open_turn(self) -> int | None:
        """The number of the turn that was started and has not ended."""
        return self._open_turn

    @property
    def last_turn(self) -> int | None:
        """The number of the turn that was started last."""
        return self._last_turn

    @property
    def open_step(self) -> int | None:
        """The number of the step that was started and has not ended."""
        return self._open_step

    @property
    def last_step(self) -> int | None:
        """The number of the step that was started last in the last turn."""
        return self._last_step

    def latest_snapshot(self, plugin: str) -> Message | None:
        """The last snapshot of a plugin that is still on the surface."""
        return self._history.latest_snapshot(plugin)


def _marked(data: Extension, ignorable: bool | None) -> tuple[Extension, bool]:
    """An event of a plugin's kind, with what it says of itself and what the caller says made one."""
    if data.required and ignorable:
        raise SessionError(f"{data.kind!r} is marked required, so it is not ignorable")
    required = data.required or ignorable is False
    return (data if data.required is required else replace(data, required=True)), not required
