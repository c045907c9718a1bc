"""The wrong uses of the public names, each with the mypy error it must give. Read by `tests/test_typing.py`; never run.

`misc` is mypy's code for a type parameter that no type fits: the key says one, the value another.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, assert_never

from dshd import (
    Bail,
    Config,
    Context,
    Emit,
    Next,
    Parallel,
    RegistryKey,
    Serial,
    ServiceKey,
    SharedKey,
    Waterfall,
    plugin,
)
from dshd.capabilities.jobs import TaskId
from dshd.capabilities.llm.stream import (
    BlockEnd,
    BlockStart,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from dshd.capabilities.values import (
    CallId,
    Message,
    MessageId,
    ReasoningEffortId,
    SessionId,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMessage,
    UserSource,
    user_message,
)


class Llm(Protocol):
    def complete(self, prompt: str) -> str: ...


class Deaf:
    pass


class Ear(Config):
    loudness: int = 3


class Eye(Config):
    colour: str = "red"


@dataclass(frozen=True)
class Heard:
    text: str


@dataclass(frozen=True)
class Seen:
    colour: str


LLM = ServiceKey[Llm]("llm")
NUMBERS = RegistryKey[int]("numbers")
WORDS = SharedKey[list[str]]("words")
SAID = Emit[Heard]("said")
WRITTEN = Parallel[Heard]("written")
ALLOWED = Bail[Heard, bool]("allowed")
TRANSLATED = Serial[Heard, str]("translated")
ENDED = Serial[Heard, None]("ended", answers=False)
ANSWERED = Waterfall[Heard, str]("answered")


def hears(heard: Heard) -> None: ...
async def hears_later(heard: Heard) -> None: ...
def sees(seen: Seen) -> None: ...
async def sees_later(seen: Seen) -> None: ...
def answers_text(heard: Heard) -> str:
    return heard.text


async def answers_number(heard: Heard) -> int:
    return 1


async def answers_text_later(heard: Heard) -> str:
    return heard.text


async def inner(heard: Heard) -> str:
    return heard.text


async def inner_of_seen(seen: Seen) -> str:
    return seen.colour


async def inner_number(heard: Heard) -> int:
    return 1


async def words(ctx: Context) -> AsyncIterator[list[str]]:
    yield []


async def numbers(ctx: Context) -> AsyncIterator[list[int]]:
    yield []


# -- the mode belongs to the event


async def wrong_verbs(ctx: Context, heard: Heard) -> None:
    ctx.emit(WRITTEN, heard)  # E: arg-type
    ctx.emit(ALLOWED, heard)  # E: arg-type
    await ctx.parallel(SAID, heard)  # E: arg-type
    ctx.bail(TRANSLATED, heard)  # E: arg-type
    await ctx.serial(ALLOWED, heard)  # E: arg-type
    await ctx.serial(ANSWERED, heard)  # E: arg-type
    await ctx.waterfall(TRANSLATED, heard, inner)  # E: arg-type
    await ctx.bail(ALLOWED, heard)  # E: misc
    await ctx.emit(SAID, heard)  # E: func-returns-value, misc


# -- one payload, one type


async def wrong_payloads(ctx: Context, seen: Seen) -> None:
    ctx.emit(SAID, seen)  # E: misc
    await ctx.parallel(WRITTEN, seen)  # E: misc
    ctx.bail(ALLOWED, seen)  # E: misc
    await ctx.serial(TRANSLATED, seen)  # E: misc
    await ctx.waterfall(ANSWERED, seen, inner)  # E: misc
    ctx.emit(SAID)  # E: call-arg


# -- listeners: their colour, what they take and what they answer


async def takes_no_next(heard: Heard) -> str:
    return heard.text


async def answers_seen(heard: Heard, next: Next[str]) -> Seen:
    return Seen(await next())


async def takes_other_next(heard: Heard, next: Next[int]) -> str:
    return str(await next())


def answers_now(heard: Heard, next: Next[str]) -> str:
    return heard.text


async def abstains(heard: Heard, next: Next[str]) -> str | None:
    return None


def wrong_listeners(ctx: Context) -> None:
    ctx.on(WRITTEN, hears)  # E: arg-type
    ctx.on(ALLOWED, hears_later)  # E: arg-type
    ctx.on(TRANSLATED, answers_text)  # E: arg-type
    ctx.on(SAID, sees)  # E: arg-type
    ctx.on(WRITTEN, sees_later)  # E: arg-type
    ctx.on(ALLOWED, answers_text)  # E: arg-type
    ctx.on(TRANSLATED, answers_number)  # E: arg-type
    ctx.on(ENDED, answers_text_later)  # E: misc
    ctx.on(ANSWERED, takes_no_next)  # E: arg-type
    ctx.on(ANSWERED, answers_seen)  # E: arg-type
    ctx.on(ANSWERED, takes_other_next)  # E: arg-type
    ctx.on(ANSWERED, answers_now)  # E: arg-type
    ctx.on(ANSWERED, abstains)  # E: arg-type
    ctx.on(SAID, hears_later)  # E: arg-type
    ctx.once(WRITTEN, hears)  # E: arg-type
    ctx.once(SAID, sees)  # E: arg-type
    ctx.on("said", hears)  # E: call-overload


# -- a waterfall: `next()` takes nothing, answers are of one type


async def changes_the_payload(heard: Heard, next: Next[str]) -> str:
    return await next(Heard("other"))  # E: call-arg


async def forgets_to_wait(heard: Heard, next: Next[str]) -> str:
    return next()  # E: return-value


async def wrong_inner(ctx: Context, heard: Heard) -> None:
    await ctx.waterfall(ANSWERED, heard, inner_of_seen)  # E: arg-type
    await ctx.waterfall(ANSWERED, heard, inner_number)  # E: arg-type


# -- answers


async def wrong_answers(ctx: Context, heard: Heard) -> None:
    allowed: bool = ctx.bail(ALLOWED, heard)  # E: assignment
    text: str = await ctx.serial(TRANSLATED, heard)  # E: assignment
    number: int = await ctx.waterfall(ANSWERED, heard, inner)  # E: arg-type
    print(allowed, text, number)


# -- services


def wrong_services(ctx: Context) -> None:
    ctx.provide(LLM, Deaf())  # E: misc
    ctx.provide_each(LLM, lambda consumer: Deaf())  # E: arg-type, return-value
    ctx.provide_each(LLM, Deaf())  # E: arg-type
    ctx[LLM].listen()  # E: attr-defined
    number: int = ctx[LLM]  # E: assignment
    ctx.get(LLM).complete("x")  # E: union-attr
    ctx["llm"]  # E: index
    print(number)


# -- registries and keepers


async def wrong_contributions(ctx: Context) -> None:
    ctx.registry(NUMBERS).add("one", "1")  # E: arg-type
    ctx.registry(NUMBERS).add("one", 1).set("1")  # E: arg-type
    text: str = ctx.registry(NUMBERS)["one"]  # E: assignment
    number: int = ctx.registry(NUMBERS).get("one")  # E: assignment
    ctx.registry(LLM)  # E: arg-type
    await ctx.shared(WORDS, numbers)  # E: arg-type
    kept: list[int] = await ctx.shared(WORDS, words)  # E: arg-type
    print(text, number, kept)


# -- plugins and their config


@plugin("ear", config=Ear)
async def ear(ctx: Context, config: Ear) -> None: ...


@plugin("wrong model", config=Ear)  # E: arg-type
async def wrong_model(ctx: Context, config: Eye) -> None: ...


@plugin("not a coroutine")  # E: arg-type
def not_a_coroutine(ctx: Context, config: Config) -> None: ...


@plugin("yields a value")  # E: arg-type
async def yields_a_value(ctx: Context, config: Config) -> AsyncIterator[int]:
    yield 1


@plugin("a string for a key", inject=["llm"])  # E: list-item
async def a_string_for_a_key(ctx: Context, config: Config) -> None: ...


@plugin("a registry for a service", inject=[NUMBERS])  # E: list-item
async def a_registry_for_a_service(ctx: Context, config: Config) -> None: ...


@plugin("no model", config=int)  # E: arg-type, type-var
async def no_model(ctx: Context, config: Config) -> None: ...


def wrong_configs(ctx: Context) -> None:
    ctx.plugin(ear, Eye())  # E: misc
    ctx.plugin(ear, "loud")  # E: arg-type
    ctx.plugin(wrong_configs)  # E: arg-type
    ear(ctx, Ear())  # E: operator


# -- effects


def wrong_effects(ctx: Context) -> None:
    ctx.spawn(hears, Heard("x"))  # E: arg-type
    ctx.enter(open)  # E: arg-type
    ctx.compose("both", [ctx.defer(lambda: None), hears])  # E: list-item
    ctx.scoped("agent")  # E: arg-type


# -- ids are of different types though all of them are text


def wrong_ids(session: SessionId, call: CallId, message: MessageId, task: TaskId, effort: ReasoningEffortId) -> None:
    ToolResultBlock(session, ())  # E: arg-type
    ToolCallBlock(message, "shell", "{}")  # E: arg-type
    ToolCallBlock("c", "shell", "{}")  # E: arg-type
    user_message("hello", id=call)  # E: arg-type
    wanted: SessionId = call  # E: assignment
    other: TaskId = session  # E: assignment
    third: CallId = effort  # E: assignment
    bare: SessionId = "session-1"  # E: assignment
    calls: dict[CallId, int] = {}
    calls[session]  # E: index
    print(wanted, other, third, bare, task)


# -- messages


def wrong_messages(message: Message) -> None:
    Message(MessageId("m"), "user", (TextBlock("x"),))  # E: call-arg
    Message(MessageId("m"), "tool", (), UserSource())  # E: arg-type
    Message(MessageId("m"), "user", ("x",), UserSource())  # E: arg-type
    mine: UserMessage = message  # E: assignment
    message.content = ()  # E: misc
    TextBlock("x").text = "y"  # E: misc
    print(mine)


# -- a closed union: a case that is forgotten or mistyped


def forgets_one(chunk: StreamChunk) -> int:
    match chunk:
        case TextDelta() | ReasoningDelta() | ToolCallDelta():
            return chunk.index
        case BlockStart() | BlockEnd() | UsageReport():
            return 0
        case _:
            assert_never(chunk)  # E: arg-type


def forgets_to_say_so(chunk: StreamChunk) -> int:  # E: return
    match chunk:
        case TextDelta() | ReasoningDelta() | ToolCallDelta() | BlockStart() | BlockEnd():
            return chunk.index
        case UsageReport():
            return 0


def mistypes_one(chunk: StreamChunk) -> int:
    match chunk:
        case TextDeltas():  # noqa: F821  # E: name-defined
            return 1
        case TextDelta(index=_, texts=_):  # E: misc
            return 2
        case _:
            return 3
