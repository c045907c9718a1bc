"""One reply as it is written: what is thought, said and called, how it arrives, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from dshd import Config, Duration
from dshd.capabilities.llm import FailureCode
from dshd.capabilities.values import Json, frozen

from .mistakes import Mistakes, Place

Name: TypeAlias = Annotated[str, Field(min_length=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


def _json(value: Json) -> Json:
    return frozen(value, "it")


Arguments: TypeAlias = Annotated[dict[str, Any], AfterValidator(_json)]
Replay: TypeAlias = Annotated[Any, AfterValidator(_json)]


class Call(Config):
    """A tool call."""

    tool: Name
    """The tool. Templates count here, in the texts of `arguments`, and in `raw`."""
    arguments: Arguments = Field(default_factory=dict)
    """Its arguments."""
    raw: str | None = None
    """The text of the arguments in place of `arguments`, as it is: broken JSON, or a number out of a template."""
    id: str | None = None
    """The id of the call, for ids that are repeated or empty; by default a new one."""

    @model_validator(mode="after")
    def _one_text(self) -> Call:
        mistakes = Mistakes()
        if self.raw is not None and "arguments" in self.model_fields_set:
            mistakes.add(("raw",), "stands in place of `arguments`; give one of them")
        mistakes.report(self)
        return self


class Fail(Config):
    """A failure of the call."""

    code: Name = FailureCode.PROVIDER
    """Its code, such as `RATE_LIMITED`, `TIMEOUT`, `AUTH`, `CONTEXT_WINDOW_EXCEEDED`; `ABORTED` is a cancelled call."""
    message: str = "the script says so"
    """What happened, a template."""
    status: int | None = None
    """The HTTP status."""
    retry_after: Duration | None = None
    """How long the provider asks to wait."""
    request_id: str | None = None
    """The provider's name for the request."""
    raises: bool = False
    """Raise it, as an adapter may, in place of ending the stream with it."""


class Usage(Config):
    """Token counts in place of the estimated ones, each by itself."""

    input: Count | None = None
    """Uncached input."""
    output: Count | None = None
    """Output, reasoning included."""
    cache_read: Count | None = None
    """Input read from the cache."""
    cache_write: Count | None = None
    """Input written to the cache."""
    reasoning: Count | None = None
    """The part of the output that was thought."""


class Reply(Config):
    """What is answered: thinking, then text, then tool calls, then an end. Texts are templates."""

    think: str | None = None
    """Reasoning, before anything visible."""
    say: str | None = None
    """Visible text; empty for an answer without content."""
    call: Call | tuple[Call, ...] | None = None
    """A tool call, or a list of them that run in parallel."""
    finish: Name | None = None
    """Why it stops: `stop`, `tool-calls`, `max-tokens` or a kind of your own; by default as the content implies."""
    usage: Usage | Literal["none"] | None = None
    """Token counts; `none` for a provider that reports none, by default an estimate."""
    replay: Replay = None
    """State that the next request shows again, any JSON."""
    delay: Duration | None = None
    """How long nothing comes."""
    pace: Duration | None = None
    """The pause between two chunks."""
    chunk: Positive | None = None
    """Characters a chunk."""
    bare: bool = False
    """Leave out the starts and ends of blocks, as some providers do."""
    interleave: bool = False
    """Let the blocks arrive at once, a chunk of each in turn."""
    fail: Fail | None = None
    """End with a failure."""
    stall: bool = False
    """Never end."""
    drop: bool = False
    """End without saying why, like a lost connection."""
    after: Count | None = None
    """How many chunks come before `fail`, `stall` or `drop`; by default all."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Its tool calls."""
        return (self.call,) if isinstance(self.call, Call) else self.call or ()

    @property
    def plays_script(self) -> bool:
        """Whether the answer is written elsewhere."""
        return False

    def texts(self) -> Iterator[tuple[Place, str]]:
        """Its templates, with their places."""
        for field in ("think", "say"):
            if getattr(self, field) is not None:
                yield (field,), getattr(self, field)
        for index, call in enumerate(self.calls):
            place: Place = ("call",) if isinstance(self.call, Call) else ("call", index)
            yield (*place, "tool"), call.tool
            yield (*place, "raw"), call.raw or ""
            yield from _texts((*place, "arguments"), call.arguments)
        if self.fail is not None:
            yield ("fail", "message"), self.fail.message

    @model_validator(mode="after")
    def _holds_together(self) -> Reply:
        mistakes = Mistakes()
        content = {"think", "say", "call", "finish", "usage", "replay", "fail", "stall", "drop"}
        if not self.plays_script and not content & self.model_fields_set:
            mistakes.add((), 'answers nothing; give it `say`, `call`, `fail` …, or `say: ""` for an empty answer')
        ends = [name for name in ("finish", "fail", "stall", "drop") if getattr(self, name)]
        if len(ends) > 1:
            mistakes.add((ends[1],), f"is another end than `{ends[0]}`; give one of them")
        if self.after is not None and not set(ends) - {"finish"}:
            mistakes.add(("after",), "says when `fail`, `stall` or `drop` happens; give one of them")
        if self.finish in ("error", "aborted"):
            mistakes.add(("finish",), "is a failure; use `fail`, with `code: ABORTED` for a cancelled call")
        mistakes.report(self)
        return self


def _texts(place: Place, value: Json) -> Iterator[tuple[Place, str]]:
    match value:
        case str():
            yield place, value
        case Mapping():
            for key, member in value.items():
                yield from _texts((*place, key), member)
        case list() | tuple():
            for index, part in enumerate(value):
                yield from _texts((*place, index), part)
