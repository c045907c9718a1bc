"""The entries of a session's log. The class of `data` says the type of an event; `match` on it.

Three types make messages and are on the *surface*: `user/message`, `assistant/message`, `tool/result`. Everything else
is log-only and contributes nothing to derived history. An event whose type is none of these is an `Extension`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from dshd.capabilities.values.json import Json, MalformedValueError, array, member, optional
from dshd.capabilities.values.kinds import (
    BLOCK_KINDS,
    EVENT_KINDS,
    FINISH_KINDS,
    SOURCE_KINDS,
    Extension,
    UnknownKindError,
)
from dshd.kernel.context import Context

from .activity import AssistantChunk, InboxSpliced, RequestContext, RequestHeader, ToolCalled
from .boundary import CompactEnd, CompactStart, CompactSummary, EndSeed, StepEnd, StepStart, TurnEnd, TurnStart, count
from .surface import (
    SURFACE,
    AssistantMessage,
    SurfaceData,
    SurfaceOp,
    op_from_json,
    op_to_json,
)

LogData: TypeAlias = (
    TurnStart | TurnEnd | StepStart | StepEnd | AssistantChunk | ToolCalled | RequestHeader | RequestContext
    | InboxSpliced | EndSeed | CompactStart | CompactSummary | CompactEnd | Extension
)  # fmt: skip
"""What is only logged."""

EventData: TypeAlias = SurfaceData | LogData


def type_of(data: EventData) -> str:
    """The type of an event with this data."""
    return data.kind if isinstance(data, Extension) else data.type


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One immutable entry: `seq` counts from 0 without gaps, `time` is in milliseconds since the epoch.

    `surface_op` and `source_event_seqs` are on surface events only. The latter names the events a message was made of;
    an empty one, on an assistant message only, means a stream known to be empty, `None` that nothing was recorded.
    """

    seq: int
    time: int
    data: EventData
    surface_op: SurfaceOp | None = None
    source_event_seqs: tuple[int, ...] | None = None
    ignorable: bool = False
    """Whether a reader that does not know the type may skip it."""

    @property
    def type(self) -> str:
        return type_of(self.data)

    def to_json(self) -> dict[str, Json]:
        """The JSON object of this entry, as stores and the API write it."""
        data = self.data
        written: dict[str, Json] = {
            "seq": self.seq,
            "time": self.time,
            "type": type_of(data),
            "data": data.data if isinstance(data, Extension) else data.to_json(),
        }
        if self.surface_op is not None:
            written["surface_op"] = op_to_json(self.surface_op)
        if self.source_event_seqs is not None:
            written["source_event_seqs"] = list(self.source_event_seqs)
        if self.ignorable:
            written["ignorable"] = True
        return written


_set_seq, _set_time, _set_data, _set_op, _set_sources, _set_ignorable = (
    getattr(SessionEvent, each.name).__set__ for each in fields(SessionEvent)
)


def new_event(
    seq: int, time: int, data: EventData, op: SurfaceOp | None, sources: tuple[int, ...] | None, ignorable: bool
) -> SessionEvent:
    """A `SessionEvent`, made in half the time that the constructor of a frozen class takes: there is one a chunk."""
    event = object.__new__(SessionEvent)
    _set_seq(event, seq)
    _set_time(event, time)
    _set_data(event, data)
    _set_op(event, op)
    _set_sources(event, sources)
    _set_ignorable(event, ignorable)
    return event


class KnownKinds(NamedTuple):
    """The kinds somebody registers, by union; `None` where that is not to be asked."""

    events: Collection[str] | None = None
    blocks: Collection[str] | None = None
    sources: Collection[str] | None = None
    finishes: Collection[str] | None = None

    @classmethod
    def registered(cls, ctx: Context) -> KnownKinds:
        """Those registered now, as `ctx` sees it."""
        keys = EVENT_KINDS, BLOCK_KINDS, SOURCE_KINDS, FINISH_KINDS
        return cls(*(frozenset(ctx.registry(key)) for key in keys))


_Read: TypeAlias = Callable[[Json, KnownKinds], Any]


def _plain(cls: Any) -> _Read:
    return lambda data, known: cls.from_json(data)


def _with_messages(cls: Any) -> _Read:
    return lambda data, known: cls.from_json(data, known.blocks, known.sources)


_PLAIN = (
    TurnStart, TurnEnd, StepStart, StepEnd, ToolCalled, RequestHeader, RequestContext, EndSeed, CompactStart,
    CompactSummary, CompactEnd,
)  # fmt: skip

CLASSES = frozenset({*_PLAIN, *SURFACE, InboxSpliced, AssistantChunk})
"""The classes of the core's data."""

CORE: Mapping[str, _Read] = {
    **{cls.type: _plain(cls) for cls in _PLAIN},
    **{cls.type: _with_messages(cls) for cls in (*SURFACE, InboxSpliced)},
    AssistantChunk.type: lambda data, known: AssistantChunk.from_json(data, known.finishes),
}
"""How the data of each of the core's types is read."""

ANY_KIND = KnownKinds()


def event_from_json(data: Json, known: KnownKinds = ANY_KIND) -> SessionEvent:
    """The entry a JSON object stands for.

    An event of a type that is not the core's is kept as an `Extension`, marked required unless it is `ignorable`.
    Members that the core's types do not have are dropped: what must not be lost comes as a type of its own, and what is
    stored is never rewritten. Raises `UnknownKindError` for what is required and not among the `known` kinds, which
    names type and seq, and `MalformedValueError` for anything of another shape.
    """
    what = "a session event"
    seq, kind = count(data, "seq", what), member(data, "type", str, what)
    what = f"event {seq} ({kind})"
    ignorable = optional(data, "ignorable", bool, what) or False
    read = CORE.get(kind)
    if read is None and not ignorable and known.events is not None and kind not in known.events:
        raise UnknownKindError(f"event {seq}", kind)
    try:
        if read is not None:
            content = read(data.get("data"), known)
        else:
            content = Extension(kind, member(data, "data", dict, what), required=not ignorable)
        op, sources = _enclosed(data, content, seq)
        return SessionEvent(seq, count(data, "time", what), content, op, sources, ignorable)
    except UnknownKindError as exc:
        raise UnknownKindError(f"{exc.what} in {what}", exc.kind) from None
    except ValueError as exc:
        raise MalformedValueError(f"{what}: {exc}") from exc


def _enclosed(data: Json, content: EventData, seq: int) -> tuple[SurfaceOp | None, tuple[int, ...] | None]:
    """The members of the envelope that only surface events have."""
    op, sources = data.get("surface_op"), data.get("source_event_seqs")
    if not isinstance(content, SURFACE):
        if op is not None or sources is not None:
            raise MalformedValueError("it is no surface event, but has a surface operation or sources")
        return None, None
    if sources is not None:
        sources = array(data, "source_event_seqs", "the event")
        check_sources(sources, content, seq)
    return op_from_json(op), sources


def check_sources(sources: tuple[int, ...], content: EventData, seq: int) -> None:
    """Raise `MalformedValueError` unless these may be the sources of an event that is to be number `seq`."""
    if not sources and not isinstance(content, AssistantMessage):
        raise MalformedValueError("only an assistant message may have an empty list of sources")
    for source in sources:
        if type(source) is not int or not 0 <= source < seq:
            raise MalformedValueError(f"its source {source!r} is no earlier event of this log")
