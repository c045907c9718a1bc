"""The system prompt: who contributes to it, and how it is assembled for one step of one agent."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from dshd.capabilities.llm.request import ToolSchema
from dshd.capabilities.session.log import Session
from dshd.capabilities.values.ids import SessionId
from dshd.capabilities.values.json import EMPTY, frozen
from dshd.capabilities.values.message import SnapshotSection, UserMessage
from dshd.kernel.effects import Effect, Scope
from dshd.kernel.errors import DshdError
from dshd.kernel.events import Emit, Waterfall
from dshd.kernel.keys import RegistryKey, ServiceKey
from dshd.kernel.registry import RegistryChange

T = TypeVar("T")

PERSONA = "deployment:persona"
"""The section that says who the agent is; one of this name in an agent's scope takes its place for that agent."""

PERSONA_PRIORITY = -1000
"""The priority of a section of that name, wherever it comes from: it opens the prompt."""


class PromptError(DshdError):
    """A prompt could not be assembled. `rows` are the row paths of those whose fault it is."""

    def __init__(self, message: str, *rows: str) -> None:
        self.rows = rows
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleContext:
    """What a prompt is assembled for."""

    scope: Scope | None = None
    """The agent. Without one it is the scope of whoever asks."""
    session_id: SessionId | None = None
    variables: Mapping[str, str] = EMPTY
    """Values for `{{name}}` in sections: `provider`, `model` and `cwd` from the loop, others from plugins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", _texts(self.variables))


def assemble_context_for(session: Session, **variables: str | None) -> AssembleContext:
    """What a step of the agent of `session` is assembled for; variables without a value are left out."""
    given = {name: value for name, value in variables.items() if value is not None}
    if session.header.cwd is not None:
        given.setdefault("cwd", session.header.cwd)
    return AssembleContext(scope=session.scope, session_id=session.id, variables=given)


Text: TypeAlias = "str | Callable[[AssembleContext], str | Awaitable[str | None] | None]"
"""Text, or what gives it at each assembly, sync or async. `None` leaves it out, and so does blank text of a section."""

ToolProvider: TypeAlias = "Callable[[AssembleContext], Sequence[ToolSchema]]"


@dataclass(frozen=True, slots=True)
class Section:
    """One named text of an assembly. Raises `TypeError` for anything but text."""

    name: str
    text: str

    def __post_init__(self) -> None:
        for value in (self.name, self.text):
            if not isinstance(value, str):
                raise TypeError(f"a section is a name and a text; {value!r} is neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAssembly:
    """A prompt before it is rendered. Listeners return changed copies and answer for their coherence.

    Raises `TypeError` for members of other types than declared, where it is made and not only where it is used.
    """

    context: AssembleContext
    sections: tuple[Section, ...] = ()
    """In order."""
    tools: tuple[ToolSchema, ...] = ()
    """In the order in which they are sent."""
    snapshot: tuple[SnapshotSection, ...] = ()
    """Dynamic context, which does not enter the prompt but the history, and only when it changed."""
    variables: Mapping[str, str] = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "sections", _all(Section, self.sections))
        object.__setattr__(self, "tools", _all(ToolSchema, self.tools))
        object.__setattr__(self, "snapshot", _all(SnapshotSection, self.snapshot))
        object.__setattr__(self, "variables", _texts(self.variables))

    def render(self) -> str:
        """The text of the system slot: sections with their variables filled in, a blank line between them."""
        return "\n\n".join(text for section in self.sections if (text := fill(section.text, self.variables).strip()))


def _all(kind: type[T], values: Iterable[T]) -> tuple[T, ...]:
    found = tuple(values)
    for value in found:
        if not isinstance(value, kind):
            raise TypeError(f"a prompt assembly has a {type(value).__name__} where a {kind.__name__} belongs")
    return found


def _texts(variables: Mapping[str, str]) -> Mapping[str, str]:
    checked: Mapping[str, str] = frozen(variables, "prompt variable")
    for name, value in checked.items():
        if type(value) is not str:
            raise TypeError(f"the prompt variable {name!r} is {type(value).__name__}, not text")
    return checked


_VARIABLE = re.compile(r"\{\{([\w.:/-]+)\}\}")


def is_variable(name: str) -> bool:
    """Whether a variable may have this name, so that `{{name}}` finds it."""
    return _VARIABLE.fullmatch(f"{{{{{name}}}}}") is not None


def fill(text: str, variables: Mapping[str, str]) -> str:
    """`text` with each `{{name}}` replaced by its variable; a name without a value stays as it is.

    One pass from left to right: braces that a value brings along are text.
    """
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text) if "{{" in text else text


class SystemPrompt(Protocol):
    """The service, as one consumer sees it: what is contributed through it belongs to the consumer and its scope.

    Names are not empty; contributing raises `ValueError` for one that is, `TypeError` for what can give no text, and
    `EntryConflictError` for a name that is taken. In an agent's scope a contribution shadows the global one of the same
    name for that agent, and stands at its own place, not at that of the other.
    """

    def section(self, name: str, text: Text, *, priority: int | None = None) -> Effect:
        """Contribute a section.

        Sections stand in the order of priority (lower first, 0 by default, `PERSONA_PRIORITY` for the persona), then
        of row paths, then of the calls in a body.
        """

    def tools(self, name: str, provider: ToolProvider) -> Effect:
        """Contribute tool schemas, asked for at each assembly. A tool that two contribute fails the assembly."""

    def variable(self, name: str, value: Text) -> Effect:
        """Give `{{name}}` a value; one that comes with the assembly's context wins.

        A name consists of letters, digits and `_ . : / -`. Empty text is a value, `None` is none.
        """

    def dynamic(self, name: str, text: Text, *, priority: int = 0) -> Effect:
        """Contribute context that changes: it enters the history as a message, when it has changed.

        Its text is taken as it is, without variables. The order is that of sections.
        """

    async def assemble(self, context: AssembleContext) -> PromptAssembly:
        """Ask all contributors, one after the other, and then the listeners of `system-prompt/assemble`.

        Who contributes is read through the consumer's view and the scope of `context`, or that of the consumer if
        `context` has none; it stays the same, and open, until the assembly is done. Raises `PromptError`, which names
        the contribution and its row, and what listeners raise.
        """

    def snapshot(self, session: Session, assembly: PromptAssembly) -> UserMessage | None:
        """The message by which the dynamic context of `assembly` enters the history of `session`.

        `None` if the history already has it word for word, or if there is none and never was. When all of it is gone
        the message says so, once.
        """


PROMPT = ServiceKey[SystemPrompt]("prompt")

PROMPT_CHANGED = Emit[RegistryChange]("system-prompt/change")
"""A section or a provider of tools came, went or was replaced."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What the registries of sections, variables and dynamic contexts hold. Raises `TypeError` for no text."""

    text: Text = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) and not callable(self.text):
            raise TypeError(f"a prompt consists of text, or of functions that give text, not of {self.text!r}")


SECTIONS = RegistryKey[Contribution]("prompt section", of=PROMPT, changed=PROMPT_CHANGED)
TOOL_PROVIDERS = RegistryKey[ToolProvider]("prompt tool provider", of=PROMPT, changed=PROMPT_CHANGED)
VARIABLES = RegistryKey[Contribution]("prompt variable", of=PROMPT)
DYNAMIC = RegistryKey[Contribution]("dynamic context", of=PROMPT)

ASSEMBLE = Waterfall[AssembleContext, PromptAssembly]("system-prompt/assemble", subject=lambda context: context.scope)
"""`await next()` gives the assembly of the contributions; what the outermost listener returns is rendered."""
