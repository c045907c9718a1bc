"""Messages: one identified, immutable value shared by inbox, log, derived history and model request.

Who produced a message (`source`) and what shape of information it is (`form`) are independent: several producers may
share one form, one producer may use several. A form says what the content is, never how it looks; none at all, or one
nobody knows, is legal and means opaque content.

What a value of this file says of itself is checked as it is made, the types of its members by `Message.check`, which
whoever makes a record durable calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from .blocks import ContentBlock, TextBlock, block_from_json, block_to_json, check_block
from .ids import MessageId, message_id
from .json import FrozenDict, Json, MalformedValueError, array, frozen, make_whole, member, optional
from .kinds import Extension, Kinds

Role: TypeAlias = Literal["system", "user", "assistant"]

ROLES = frozenset(get_args(Role))

# -- forms


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions out of workspace files, which the model is to follow."""

    form: ClassVar = "instructions"


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is available in this session; published again when it changes."""

    form: ClassVar = "catalog"


@dataclass(frozen=True, slots=True)
class SnapshotSection:
    """One contribution to a snapshot: who, and its exact text."""

    name: str
    text: str

    def __post_init__(self) -> None:
        make_whole(self, "name", "text")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Current state. A later snapshot of the same producer takes the place of its meaning."""

    sections: tuple[SnapshotSection, ...]
    """In the order of assembly."""
    form: ClassVar = "snapshot"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sections", tuple(self.sections))


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that just happened. It replaces nothing."""

    summary: str
    """One line, shown where the content is not."""
    form: ClassVar = "notice"

    def __post_init__(self) -> None:
        make_whole(self, "summary")
        if not self.summary.strip() or self.summary.splitlines() != [self.summary]:
            raise MalformedValueError(f"the summary of a notice is one line that says something, not {self.summary!r}")


@dataclass(frozen=True, slots=True)
class Relay:
    """A message another agent addressed to this one."""

    form: ClassVar = "relay"


@dataclass(frozen=True, slots=True)
class Recall:
    """Material lifted out of another session's log."""

    form: ClassVar = "recall"


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A form that has no class here, kept as it was written. Raises `MalformedValueError` for one that has."""

    form: str
    data: FrozenDict

    def __post_init__(self) -> None:
        make_whole(self, "form")
        data = frozen(self.data, f"data of form {self.form!r}")
        if self.form in FORMS:
            raise MalformedValueError(f"the form {self.form!r} has a class of its own")
        if type(data) is not FrozenDict:
            raise MalformedValueError(f"the data of form {self.form!r} is {type(data).__name__}, not an object")
        taken = [name for name in ("kind", "plugin", "form") if name in data]
        if taken:
            raise MalformedValueError(f"the data of form {self.form!r} may not have a member {taken[0]!r}")
        object.__setattr__(self, "data", data)


ContextForm: TypeAlias = Instructions | Catalog | Snapshot | Notice | Relay | Recall | OtherForm

_CORE_FORMS = (Instructions, Catalog, Snapshot, Notice, Relay, Recall)

FORMS = frozenset(each.form for each in _CORE_FORMS)
"""The forms that have classes."""

# -- sources


@dataclass(frozen=True, slots=True)
class UserSource:
    """A person, or whoever speaks for one."""

    kind: ClassVar = "user"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin, and what shape of information it supplied."""

    plugin: str
    form: ContextForm | None = None
    kind: ClassVar = "plugin"

    def __post_init__(self) -> None:
        make_whole(self, "plugin")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The route and model that produced an assistant message.

    `replay_state` is the adapter's own, lossless JSON; the service shows it to an adapter only if that instance owns
    this provider as well as the one that is asked.
    """

    provider: str
    model: str
    replay_state: Json = None
    kind: ClassVar = "model"

    def __post_init__(self) -> None:
        make_whole(self, "provider", "model")
        object.__setattr__(self, "replay_state", frozen(self.replay_state, "replay state"))


@dataclass(frozen=True, slots=True)
class ToolSource:
    """The tool whose result it is."""

    tool: str
    kind: ClassVar = "tool"

    def __post_init__(self) -> None:
        make_whole(self, "tool")


MessageSource: TypeAlias = UserSource | PluginSource | ModelSource | ToolSource | Extension

_CORE_SOURCES = (UserSource, PluginSource, ModelSource, ToolSource)

SOURCES = frozenset(each.kind for each in _CORE_SOURCES)
"""The kinds of sources that have classes."""


def source_to_json(source: MessageSource) -> dict[str, Json]:
    """The JSON object of a source, `kind` first."""
    match source:
        case UserSource():
            return {"kind": "user"}
        case PluginSource(plugin, None):
            return {"kind": "plugin", "plugin": plugin}
        case PluginSource(plugin, form):
            return {"kind": "plugin", "plugin": plugin, **_form_to_json(form)}
        case ModelSource(provider, model, state):
            replay = {} if state is None else {"replay_state": state}
            return {"kind": "model", "provider": provider, "model": model, **replay}
        case ToolSource(tool):
            return {"kind": "tool", "tool": tool}
        case Extension():
            return source.to_json("kind")


def source_from_json(data: Json, known: Collection[str] | None = None) -> MessageSource:
    """The source a JSON object stands for; of another kind than the core's, an `Extension`.

    Raises `MalformedValueError`, and `UnknownKindError` for a required kind that is not among `known`.
    """
    kind = member(data, "kind", str, "a message source")
    what = f"a {kind} source"
    match kind:
        case "user":
            return UserSource()
        case "plugin":
            return PluginSource(member(data, "plugin", str, what), _form_from_json(data))
        case "model":
            provider, model = member(data, "provider", str, what), member(data, "model", str, what)
            return ModelSource(provider, model, data.get("replay_state"))
        case "tool":
            return ToolSource(member(data, "tool", str, what))
        case _:
            return Extension.from_json(data, "kind", "a message source", known)


def check_source(source: object, what: str, kinds: Kinds | None = None) -> None:
    """Raise `MalformedValueError`, beginning with `what`, for anything that would not be read back from a record."""
    if type(source) not in _SOURCE_CLASSES:
        raise MalformedValueError(f"{what}: {type(source).__name__} is no message source")
    match source:
        case PluginSource(plugin, form):
            fine = type(plugin) is str and (form is None or _is_fine(form))
        case ModelSource(provider, model, _):
            fine = type(provider) is str and type(model) is str
        case ToolSource(tool):
            fine = type(tool) is str
        case Extension():
            source.check(what, "kind", SOURCES, kinds)
            fine = True
        case _:
            fine = True
    if not fine:
        raise MalformedValueError(f"{what}: a member of a {type(source).__name__} is of another type than declared")


def _is_fine(form: object) -> bool:
    """Whether this is a form whose members are of the types declared."""
    match form:
        case Snapshot(sections):
            return type(form) is Snapshot and all(
                type(part) is SnapshotSection and type(part.name) is str and type(part.text) is str for part in sections
            )
        case OtherForm(name, _):
            return type(form) is OtherForm and type(name) is str
        case _:
            return type(form) in _FORM_CLASSES


_SOURCE_CLASSES = frozenset({*_CORE_SOURCES, Extension})
_FORM_CLASSES = frozenset({*_CORE_FORMS, OtherForm})
_PLAIN_FORMS: dict[str, ContextForm] = {
    "instructions": Instructions(), "catalog": Catalog(), "relay": Relay(), "recall": Recall(),
}  # fmt: skip


def _form_to_json(form: ContextForm | None) -> dict[str, Json]:
    match form:
        case None:
            return {}
        case Snapshot(sections):
            return {"form": "snapshot", "sections": [{"name": s.name, "text": s.text} for s in sections]}
        case Notice(summary):
            return {"form": "notice", "summary": summary}
        case OtherForm(name, data):
            return {"form": name, **data}
        case _:
            return {"form": form.form}


def _form_from_json(data: Json) -> ContextForm | None:
    name = optional(data, "form", str, "a plugin source")
    if name is None:
        return None
    if name in _PLAIN_FORMS:
        return _PLAIN_FORMS[name]
    if name == "snapshot":
        what = "a section of a snapshot"
        parts = array(data, "sections", "a snapshot", required=True)
        return Snapshot(
            tuple(SnapshotSection(member(p, "name", str, what), member(p, "text", str, what)) for p in parts)
        )
    if name == "notice":
        return Notice(member(data, "summary", str, "a notice"))
    return OtherForm(name, FrozenDict({k: v for k, v in data.items() if k not in ("kind", "plugin", "form")}))


# -- messages


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message. Its id stays the same wherever it appears.

    Two are equal when all they say is, whether or not one of them is a `UserMessage`: that is a narrower type for the
    checker, not another message.
    """

    id: MessageId
    role: Role
    content: tuple[ContentBlock, ...]
    source: MessageSource

    def __post_init__(self) -> None:
        make_whole(self, "id")
        object.__setattr__(self, "content", tuple(self.content))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.id, self.role, self.content, self.source) == (other.id, other.role, other.content, other.source)

    def __hash__(self) -> int:
        return hash(self.id)

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "role": self.role,
            "content": [block_to_json(block) for block in self.content],
            "source": source_to_json(self.source),
        }

    def check(self, what: str, blocks: Kinds | None = None, sources: Kinds | None = None) -> None:
        """Raise `MalformedValueError`, beginning with `what`, for anything that would not be read back from a record.

        What comes from plugins may lie: members are of other types than declared, an extension claims a core kind.
        `blocks` and `sources` are the registered kinds, which check their data, also in tool results.
        """
        if type(self) is not Message and type(self) is not UserMessage:
            raise MalformedValueError(f"{what}: {type(self).__name__} is no message")
        identity: object = self.id
        role: object = self.role
        if type(identity) is not str or not identity or type(role) is not str or role not in ROLES:
            raise MalformedValueError(
                f"{what}: a message has an id, and a role that is one of {', '.join(get_args(Role))}"
            )
        for block in self.content:
            check_block(block, what, blocks)
        check_source(self.source, what, sources)


@dataclass(frozen=True, slots=True, eq=False)
class UserMessage(Message):
    """A message in the role of the user: the one shape of inbox, pre-step and log. Anybody may be its source."""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.role != "user":
            raise MalformedValueError(f"a user message has the role 'user', not {self.role!r}")


def user_message(
    content: str | Iterable[ContentBlock], source: MessageSource | None = None, id: MessageId | None = None
) -> UserMessage:
    """A user message of text or blocks, with a new id unless one is given, from a person unless another source is."""
    blocks = (TextBlock(content),) if isinstance(content, str) else tuple(content)
    return UserMessage(message_id() if id is None else id, "user", blocks, UserSource() if source is None else source)


def message_from_json(
    data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
) -> Message:
    """The message a JSON object stands for, a `UserMessage` in that role.

    `blocks` and `sources` are the kinds somebody registers, `None` if that is not to be asked. Raises
    `MalformedValueError`, and `UnknownKindError` for a required kind that is not among them.
    """
    role = member(data, "role", str, "a message")
    if role not in ROLES:
        raise MalformedValueError(f"a message has the role {role!r}; there are {', '.join(get_args(Role))}")
    identity = member(data, "id", str, "a message")
    if not identity:
        raise MalformedValueError("a message has an empty id")
    content = [block_from_json(part, blocks) for part in array(data, "content", "a message", required=True)]
    source = source_from_json(data.get("source"), sources)
    if role == "user":
        return UserMessage(MessageId(identity), "user", tuple(content), source)
    return Message(MessageId(identity), "system" if role == "system" else "assistant", tuple(content), source)


def user_message_from_json(
    data: Json, blocks: Collection[str] | None = None, sources: Collection[str] | None = None
) -> UserMessage:
    """The same where only a user message can stand. Raises `MalformedValueError` for another role."""
    message = message_from_json(data, blocks, sources)
    if not isinstance(message, UserMessage):
        raise MalformedValueError(f"a user message has the role {message.role!r}")
    return message
