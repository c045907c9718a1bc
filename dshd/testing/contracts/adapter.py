"""The contract of `LlmAdapter`: what the `llm` service and everybody behind it take for granted.

Say how your adapter is set up and how its provider is made to answer, most simply by a server on the loopback
interface; the tests come with the class:

    class Mine(AdapterUnderTest):
        def __init__(self, server: FakeServer) -> None:
            self.server, self.adapter = server, MyAdapter(server.url)

        def arrange(self, answer: Answer) -> None:
            self.server.queue(as_my_provider_would_say(answer))
        …

    class TestMine(AdapterContract):
        @asynccontextmanager
        async def opened(self) -> AsyncIterator[AdapterUnderTest]:
            async with FakeServer() as server:
                yield Mine(server)
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from dshd.capabilities.llm.adapter import LlmAdapter
from dshd.capabilities.llm.assembler import Assembled, BlockAssembler
from dshd.capabilities.llm.request import GenerateOptions, ToolSchema
from dshd.capabilities.llm.stream import (
    Aborted,
    Failed,
    Finish,
    StreamChunk,
    TokenUsage,
    UsageReport,
    check_chunk,
    chunk_from_json,
    chunk_to_json,
)
from dshd.capabilities.values.blocks import ToolCallBlock, text_of
from dshd.capabilities.values.json import MalformedValueError
from dshd.capabilities.values.message import user_message

AT_ONCE = 1.0
"""Seconds within which a stream that is cancelled or closed has let go of what it held."""

PATIENCE = 10.0
"""Seconds after which a stream from which nothing comes is taken to hang."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a provider is to answer, in this order: text, calls, usage, and then the end."""

    text: tuple[str, ...] = ()
    """In pieces, each of which goes out as soon as it is there."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls: name and raw arguments."""
    usage: TokenUsage | None = None
    end: Literal["fine", "fail", "drop", "stall"] = "fine"
    """`fail`: the provider says that something went wrong, and where it had said nothing yet, that one may try again;
    `drop`: the connection breaks before the answer is whole; `stall`: it stays open and nothing comes."""


class AdapterUnderTest(ABC):
    """An adapter, and the hands on what is behind it."""

    adapter: LlmAdapter
    provider = "contract"
    """The route that requests name."""
    model = "contract-model"

    @abstractmethod
    def arrange(self, answer: Answer) -> None:
        """Give this answer to the next request that has none yet."""

    @property
    @abstractmethod
    def held(self) -> int:
        """How many connections, responses or other things streams hold now; idle ones of a pool do not count."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """How often the provider has been asked for an answer."""


class AdapterContract(ABC):
    """The suite. Subclass it under a name that begins with `Test`."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[AdapterUnderTest]:
        """A fresh adapter for one test."""

    # -- what an answer is

    async def test_the_text_is_whole_and_one_finish_ends_the_answer(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("Hel", "lo ", "wörld 🌍")))
            chunks = await read(under)
            assert text_of(assembled(chunks).content) == "Hello wörld 🌍", f"the text is not whole: {chunks}"
            assert not failed(chunks), f"an answer without fault does not end with a failure: {chunks[-1]}"

    async def test_usage_comes_before_the_finish(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("yes",), usage=TokenUsage(input_tokens=12, output_tokens=3)))
            chunks = await read(under)
            assert any(isinstance(chunk, UsageReport) for chunk in chunks), f"what the call used is missing: {chunks}"
            usage = assembled(chunks).usage
            assert usage is not None, f"usage comes before the finish: {chunks}"
            found = (usage.billed_input_tokens, usage.output_tokens)
            assert found == (12, 3), f"the call used 12 tokens of input and 3 of output, not {found}"

    async def test_arguments_are_the_raw_text_that_the_model_wrote(self) -> None:
        for arguments in ('{"b" : 1,\t"a":"é\\u00e9", "b":2.0}', '{"path": "a', "{}"):
            async with self.opened() as under:
                under.arrange(Answer(calls=(("read_file", arguments),)))
                found = calls_of(await read(under))
                assert found == [("read_file", arguments)], (
                    f"arguments stay as they are, valid or not; this came: {found}"
                )

    async def test_calls_of_one_answer_stay_apart(self) -> None:
        calls = [("read_file", '{"path":"a"}'), ("read_file", '{"path":"b"}'), ("list", "{}")]
        async with self.opened() as under:
            under.arrange(Answer(text=("I look.",), calls=tuple(calls)))
            chunks = await read(under)
            assert calls_of(chunks) == calls, f"the calls are other ones: {chunks}"
            assert text_of(assembled(chunks).content) == "I look.", (
                f"the text beside the calls is another one: {chunks}"
            )

    async def test_answers_at_the_same_time_do_not_mix(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("a", "b", "c")))
            under.arrange(Answer(text=("1", "2", "3")))
            async with streaming(under) as first, streaming(under) as second:
                chunks: tuple[list[StreamChunk], list[StreamChunk]] = ([], [])
                running = [(first, chunks[0]), (second, chunks[1])]
                while running:
                    for stream, found in list(running):
                        chunk = await following(stream)
                        if chunk is None:
                            running.remove((stream, found))
                        else:
                            found.append(chunk)
            texts = [text_of(assembled(each).content) for each in chunks]
            assert texts == ["abc", "123"], f"two answers at the same time came as {texts}"

    # -- how one fails

    async def test_a_failure_ends_the_stream_in_one_of_the_two_ways(self) -> None:
        for answer in (Answer(end="fail"), Answer(text=("par", "tial"), end="fail")):
            await self._fails(answer)

    async def test_an_answer_that_breaks_off_is_a_failure(self) -> None:
        for answer in (Answer(text=("par", "tial"), end="drop"), Answer(calls=(("list", "{"),), end="drop")):
            await self._fails(answer)

    async def _fails(self, answer: Answer) -> None:
        """Whether it ends with a failure as its last chunk, or with an exception in place of a finish."""
        async with self.opened() as under:
            under.arrange(answer)
            async with streaming(under) as stream:
                chunks, error = await outcome(stream)
            if error is None:
                check_shape(chunks)
                assert failed(chunks), f"{answer} ended as if nothing had happened: {chunks}"
            else:
                finished = any(isinstance(chunk, Finish) for chunk in chunks)
                assert isinstance(error, Exception), f"an adapter raises exceptions only, not {error!r}"
                assert not finished, f"nothing comes after a finish, neither does {error!r}: {chunks}"

    async def test_one_stream_is_one_attempt(self) -> None:
        for answer in (Answer(end="fail"), Answer(text=("a",), end="fail"), Answer(text=("a",), end="drop")):
            async with self.opened() as under:
                under.arrange(answer)
                under.arrange(Answer(text=("again",)))
                async with streaming(under) as stream:
                    await outcome(stream)
                assert under.attempts == 1, (
                    f"whether to try again is not the adapter's to say; it asked for {answer} twice"
                )

    # -- how one is ended

    async def test_a_cancelled_stream_lets_go_at_once(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("one",), end="stall"))
            async with streaming(under) as stream:
                arrived = anyio.Event()

                async def consume() -> None:
                    async for _ in stream:
                        arrived.set()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume)
                    with anyio.move_on_after(PATIENCE):
                        await arrived.wait()
                    held, cancelled = under.held, anyio.current_time()
                    tasks.cancel_scope.cancel()
                took = anyio.current_time() - cancelled
            assert arrived.is_set(), "a piece of text is passed on when it arrives, not when the answer is whole"
            assert held > 0, "`held` counts nothing while a stream waits for its provider"
            assert took < AT_ONCE, f"a stream went on for {took:.1f} s after it had been cancelled"
            await self._has_let_go(under)

    async def test_a_stream_closed_in_the_middle_lets_go_at_once(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("one",), end="stall"))
            async with streaming(under) as stream:
                await following(stream)
                assert under.held > 0, "`held` counts nothing in the middle of an answer"
            await self._has_let_go(under)

    async def test_a_stream_closed_before_its_first_chunk_holds_nothing(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("one",)))
            async with streaming(under):
                pass
            await self._has_let_go(under)

    async def test_a_stream_that_is_over_holds_nothing(self) -> None:
        for answer in (Answer(text=("a", "b")), Answer(text=("a",), end="fail"), Answer(text=("a",), end="drop")):
            async with self.opened() as under:
                under.arrange(answer)
                async with streaming(under) as stream:
                    await outcome(stream, until=Finish)
                await self._has_let_go(under)

    async def _has_let_go(self, under: AdapterUnderTest) -> None:
        with anyio.move_on_after(AT_ONCE):
            while under.held:  # noqa: ASYNC110 (what is behind an adapter need not tell when it changes)
                await anyio.sleep(0.01)
        assert under.held == 0, f"a stream that has ended holds nothing; {under.held} are still held"

    # -- what else it leaves alone

    async def test_a_request_is_as_it_was(self) -> None:
        async with self.opened() as under:
            under.arrange(Answer(text=("fine",)))
            request = request_to(under)
            before = written(request)
            await read(under, request)
            assert written(request) == before, "an adapter changes nothing in a request"

    async def test_a_route_is_shown_under_its_own_name(self) -> None:
        async with self.opened() as under:
            info = under.adapter.provider_info(under.provider)
            assert info.id == under.provider, f"route {under.provider!r} is described as {info.id!r}"
            assert info.name, "a route has a name for selectors"


# -- reading


def request_to(under: AdapterUnderTest) -> GenerateOptions:
    """A request with a bit of everything."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return GenerateOptions(
        provider=under.provider,
        model=under.model,
        messages=[user_message("Read the file.")],
        system="You are a test.",
        tools=[ToolSchema("read_file", "Read a file.", schema), ToolSchema("list", "List files.", {"type": "object"})],
        max_tokens=1000,
    )


def written(request: GenerateOptions) -> str:
    """Everything in a request, as text."""
    messages = [message.to_json() for message in request.messages]
    tools = [tool.to_json() for tool in request.tools]
    others = [request.config.to_json(), request.system, request.session_id, request.purpose]
    return json.dumps([messages, tools, others])


@asynccontextmanager
async def streaming(
    under: AdapterUnderTest, request: GenerateOptions | None = None
) -> AsyncIterator[AsyncIterator[StreamChunk]]:
    """One stream, closed in the end as the service closes it. Closing is to be quick."""
    stream: Any = under.adapter.stream(request or request_to(under))
    try:
        yield stream
    finally:
        if hasattr(stream, "aclose"):
            begun = anyio.current_time()
            with anyio.CancelScope(shield=True), anyio.fail_after(PATIENCE):
                await stream.aclose()
            took = anyio.current_time() - begun
            assert took < AT_ONCE, f"closing a stream took {took:.1f} s"


class SilentStreamError(AssertionError):
    """Nothing came from a stream, neither a chunk nor its end."""

    def __init__(self) -> None:
        super().__init__(f"nothing came from the stream for {PATIENCE:g} s")


async def following(stream: AsyncIterator[StreamChunk]) -> StreamChunk | None:
    """The next chunk, `None` at the end. Raises `SilentStreamError` where nothing comes."""
    with anyio.move_on_after(PATIENCE):
        return await anext(stream, None)
    raise SilentStreamError


async def outcome(
    stream: AsyncIterator[StreamChunk], until: type[StreamChunk] | None = None
) -> tuple[list[StreamChunk], BaseException | None]:
    """What came until the end, or until a chunk of some kind, and what was raised in place of more."""
    chunks: list[StreamChunk] = []
    try:
        while (chunk := await following(stream)) is not None:
            chunks.append(chunk)
            if until is not None and isinstance(chunk, until):
                break
    except (SilentStreamError, anyio.get_cancelled_exc_class()):
        raise
    except BaseException as exc:
        return chunks, exc
    return chunks, None


async def read(under: AdapterUnderTest, request: GenerateOptions | None = None) -> list[StreamChunk]:
    """All chunks of one answer, which have the shape of one."""
    chunks = []
    async with streaming(under, request) as stream:
        while (chunk := await following(stream)) is not None:
            chunks.append(chunk)
    check_shape(chunks)
    return chunks


def check_shape(chunks: list[StreamChunk]) -> None:
    """Every chunk is one, can be logged, and the only finish is the last."""
    for chunk in chunks:
        try:
            check_chunk(chunk, "an adapter emits chunks")
        except MalformedValueError as exc:
            raise AssertionError(str(exc)) from None
        again = chunk_from_json(json.loads(json.dumps(chunk_to_json(chunk))))
        assert again == chunk, f"a chunk is another one when it is read from the log: {chunk} became {again}"
    finishes = [number for number, chunk in enumerate(chunks) if isinstance(chunk, Finish)]
    assert finishes == [len(chunks) - 1], f"there is one finish, and it is the last chunk: {chunks}"


def assembled(chunks: list[StreamChunk]) -> Assembled:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.result()


def calls_of(chunks: list[StreamChunk]) -> list[tuple[str, str]]:
    """Name and arguments of each call, all of which have ids."""
    calls = [block for block in assembled(chunks).content if isinstance(block, ToolCallBlock)]
    return [(call.name, call.arguments) for call in calls]


def failed(chunks: list[StreamChunk]) -> bool:
    return isinstance(assembled(chunks).reason, (Aborted, Failed))
