"""The right uses of the public names. `tests/test_typing.py` has mypy check this file: no error is expected.

Nothing here runs; it is read by the type checker only.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, assert_never, assert_type

from dshd import (
    Bail,
    Config,
    Context,
    Emit,
    Fiber,
    Next,
    Parallel,
    Plugin,
    Registry,
    RegistryKey,
    Serial,
    ServiceKey,
    SharedKey,
    Stage,
    Waterfall,
    plugin,
)
from dshd.capabilities.llm.stream import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from dshd.capabilities.values import (
    BLOCK_KINDS,
    CallId,
    ContentBlock,
    Extension,
    Kind,
    Kinds,
    Message,
    ReasoningBlock,
    SessionId,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    block_from_json,
    call_id,
    message_from_json,
    session_id,
    user_message,
)


class Llm(Protocol):
    def complete(self, prompt: str) -> str: ...


class Parrot:
    def complete(self, prompt: str) -> str:
        return prompt


class Ear(Config):
    loudness: int = 3


class Tool:
    name: str


class SharpTool(Tool):
    pass


@dataclass(frozen=True)
class Heard:
    text: str


LLM = ServiceKey[Llm]("llm")
TOOLS = RegistryKey[Tool]("tools")
WORDS = SharedKey[list[str]]("words")
SAID = Emit[Heard]("said")
WRITTEN = Parallel[Heard]("written")
ALLOWED = Bail[Heard, bool]("allowed")
TRANSLATED = Serial[Heard, str]("translated")
ENDED = Serial[Heard, None]("ended", answers=False)
ANSWERED = Waterfall[Heard, str]("answered", policy=True)


async def words(ctx: Context) -> AsyncIterator[list[str]]:
    yield []


@plugin("returns", inject=[LLM])
async def returns(ctx: Context, config: Config) -> None:
    assert_type(ctx[LLM], Llm)
    assert_type(ctx.get(LLM), Llm | None)


@plugin("yields", config=Ear, provides=[LLM], pinned=[LLM])
async def yields(ctx: Context, config: Ear) -> AsyncIterator[None]:
    ctx.provide(LLM, Parrot())
    ctx.provide_each(LLM, lambda consumer: Parrot())
    yield


assert_type(returns, Plugin[Config])
assert_type(yields, Plugin[Ear])


async def contribute(ctx: Context, stage: Stage) -> None:
    assert_type(ctx.registry(TOOLS), Registry[Tool])
    ctx.registry(TOOLS).add("sharp", SharpTool()).set(SharpTool())
    assert_type(ctx.registry(TOOLS)["sharp"], Tool)
    assert_type(ctx.registry(TOOLS).get("sharp"), Tool | None)
    assert_type(await ctx.shared(WORDS, words), list[str])
    assert_type(ctx.plugin(returns), Fiber)
    ctx.plugin(yields)
    ctx.plugin(yields, Ear(loudness=1))
    ctx.plugin(yields, {"loudness": 1}, stage=stage, optional=True, id="ear")
    with ctx.leased("a step") as view:
        assert_type(view[LLM], Llm)
    assert_type(ctx.intercepted(LLM, Ear()), Ear)


def on_said(heard: Heard) -> None: ...
async def on_written(heard: Heard) -> None: ...
def on_allowed(heard: Heard) -> bool | None: ...
def always(heard: Heard) -> bool:
    return True


async def on_translated(heard: Heard) -> str | None: ...
async def on_ended(heard: Heard) -> None: ...
async def inner(heard: Heard) -> str:
    return heard.text


async def on_answered(heard: Heard, next: Next[str]) -> str:
    assert_type(await next(), str)
    return heard.text


def about_anything(payload: object) -> None: ...


async def listen(ctx: Context) -> None:
    ctx.on(SAID, on_said)
    ctx.on(SAID, about_anything)
    ctx.on(SAID, lambda heard: print(heard.text), prepend=True)
    ctx.on(WRITTEN, on_written, priority=3)
    ctx.on(ALLOWED, on_allowed)
    ctx.on(ALLOWED, always)
    ctx.on(TRANSLATED, on_translated)
    ctx.on(ENDED, on_ended)
    ctx.on(ANSWERED, on_answered)
    ctx.once(SAID, on_said)
    ctx.once(ANSWERED, on_answered)


async def speak(ctx: Context) -> None:
    heard = Heard("hello")
    ctx.emit(SAID, heard)
    await ctx.parallel(WRITTEN, heard)
    assert_type(ctx.bail(ALLOWED, heard), bool | None)
    assert_type(await ctx.serial(TRANSLATED, heard), str | None)
    assert_type(await ctx.serial(ENDED, heard), None)
    assert_type(await ctx.waterfall(ANSWERED, heard, inner), str)


async def own(ctx: Context, fiber: Fiber) -> None:
    async def work(number: int) -> None: ...

    ctx.spawn(work, 1, name="work", while_open=True)
    ctx.defer(lambda: None)
    await ctx.defer(fiber.dispose, "the other").dispose()
    assert_type(await fiber.update(Ear()), Fiber)
    assert_type(await fiber.update({"loudness": 2}), Fiber)


# -- values: ids are text of a type of their own, unions are matched to the end


def take_text(text: str) -> str:
    return text


def use_ids() -> None:
    assert_type(session_id(), SessionId)
    assert_type(call_id("c"), CallId)
    take_text(session_id())
    assert_type(ToolResultBlock(call_id("c"), ()).tool_call_id, CallId)


def length(chunk: StreamChunk) -> int:
    match chunk:
        case TextDelta(_, text) | ReasoningDelta(_, text):
            return len(text)
        case ToolCallDelta(_, arguments):
            return len(arguments)
        case BlockStart() | BlockEnd() | UsageReport() | Finish():
            return 0
        case _:
            assert_never(chunk)


def name_of(block: ContentBlock) -> str:
    match block:
        case TextBlock() | ReasoningBlock() | ToolCallBlock() | ToolResultBlock():
            return block.type
        case Extension(kind):
            return kind
        case _:
            assert_never(block)


def check(ctx: Context, message: Message, kinds: dict[str, Kind]) -> None:
    known: Kinds = ctx.registry(BLOCK_KINDS)
    message.check("user/message", known, kinds)
    message_from_json({}, ctx.registry(BLOCK_KINDS), kinds)
    assert_type(block_from_json({}, ctx.registry(BLOCK_KINDS)), ContentBlock)
    later: Message = user_message("hello")
    message.check(later.id)
