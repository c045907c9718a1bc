"""Streams of the `llm` row: what adapters do wrong, how streams end, and who may wait how."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from dshd import Aborted as KernelAborted
from dshd import Aborter, Context
from dshd.capabilities.llm import (
    Aborted,
    BlockEnd,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    LlmFailure,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    UsageReport,
)
from dshd.capabilities.values import FINISH_KINDS, Extension, Kind
from dshd.testing.contracts.llm import Script, Voice, ask, asking, failure, raising, service, serving, stalled, text
from dshd.testing.kernel import running
from dshd_plugins.llm import handover, llm

pytestmark = pytest.mark.anyio

HELLO = TextDelta(0, "hello")


@asynccontextmanager
async def speaking(adapter: LlmAdapter) -> AsyncIterator[Context]:
    """A kernel in which `adapter` serves the route `voice`."""
    with anyio.fail_after(20):
        async with running(llm, serving("voice", adapter)) as root:
            yield root
            assert not root.kernel.leases


# -- faults of adapters


class Strange(LlmAdapter):
    """An adapter whose `stream` gives whatever it was told to."""

    def __init__(self, gives: Callable[[GenerateOptions], Any]) -> None:
        self.gives = gives

    def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        given: AsyncIterator[StreamChunk] = self.gives(request)
        return given


async def a_coroutine(request: GenerateOptions) -> list[StreamChunk]:
    return [HELLO]


def at_once(request: GenerateOptions) -> None:
    raise LlmError("no such model", "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("gives", "code", "words"),
    [
        (at_once, "INVALID_REQUEST", "no such model"),
        (a_coroutine, "PROVIDER_ERROR", "coroutine"),
        (lambda request: None, "PROVIDER_ERROR", "NoneType"),
        (lambda request: [HELLO, Finish(Stop())], "PROVIDER_ERROR", "list"),
    ],
)
async def test_an_adapter_that_gives_no_iterator_fails_its_call(
    gives: Callable[[GenerateOptions], Any], code: str, words: str
) -> None:
    async with speaking(Strange(gives)) as root:
        with capture_logs():
            found = failure(await ask(root))
        assert found.code == code
        assert words in found.message


class Answer:
    """Chunks that are iterable, but no iterator."""

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return Voice().script(asking())


async def test_an_adapter_may_give_any_asynchronous_iterable() -> None:
    async with speaking(Strange(lambda request: Answer())) as root:
        assert text(await ask(root)) == "hello"


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even words")


def grouped(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("unhandled errors in a TaskGroup", list(errors))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("boom"), "PROVIDER_ERROR", "RuntimeError: boom"),
        (Wordless(), "PROVIDER_ERROR", "Wordless"),
        (SystemExit(3), "PROVIDER_ERROR", "SystemExit"),
        (KeyboardInterrupt(), "PROVIDER_ERROR", "KeyboardInterrupt"),
        (GeneratorExit(), "PROVIDER_ERROR", "GeneratorExit"),
        (StopAsyncIteration(), "PROVIDER_ERROR", "StopAsyncIteration"),
        (grouped(LlmError("slowly", "RATE_LIMITED")), "RATE_LIMITED", "slowly"),
        (grouped(ValueError("one"), grouped(LlmError("no key", "AUTH"))), "AUTH", "no key"),
        (grouped(ValueError("lonely")), "PROVIDER_ERROR", "ValueError: lonely"),
    ],
)
async def test_what_an_adapter_raises_ends_its_answer(error: BaseException, code: str, words: str) -> None:
    voice = Voice(raising(error))
    async with speaking(voice) as root:
        with capture_logs():
            chunks = await ask(root)
        assert chunks[0] == HELLO
        found = failure(chunks)
        assert found.code == code
        assert words in found.message
        assert voice.open == 0


async def test_facts_about_a_failure_stay_as_the_adapter_gave_them() -> None:
    facts = LlmFailure(message="slowly", code="MINE", status=429, provider_retry_after_ms=10, request_id="r-1")
    async with speaking(Voice(raising(LlmError(facts)))) as root:
        assert failure(await ask(root)) is facts


@pytest.mark.parametrize("error", [LlmError("stopped", "ABORTED"), KernelAborted("the user")])
async def test_an_adapter_may_say_itself_that_it_was_aborted(error: Exception) -> None:
    async with speaking(Voice(raising(error))) as root:
        assert failure(await ask(root), Aborted).code == "ABORTED"


async def test_a_cancellation_that_nobody_asked_for_is_a_failure_of_the_adapter() -> None:
    async def stray(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield HELLO
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with speaking(Voice(stray)) as root:
        with capture_logs():
            found = failure(await ask(root))
        assert found.code == "PROVIDER_ERROR"
        assert "cancelled" in found.message


@pytest.mark.parametrize(
    "rubbish",
    [
        None,
        "hello",
        TextDelta(0, None),  # type: ignore[arg-type]
        TextDelta(-1, "hello"),
        BlockEnd("0"),  # type: ignore[arg-type]
        Finish("stop"),  # type: ignore[arg-type]
        UsageReport({"input_tokens": 1}),  # type: ignore[arg-type]
    ],
)
async def test_a_chunk_that_is_none_ends_the_answer_and_closes_the_adapter(rubbish: Any) -> None:
    async def script(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield HELLO
        yield rubbish
        yield Finish(Stop())

    voice = Voice(script)
    async with speaking(voice) as root:
        with capture_logs():
            chunks = await ask(root)
        assert chunks[:-1] == [HELLO]
        assert failure(chunks).code == "PROVIDER_ERROR"
        assert "'voice'" in failure(chunks).message
        assert voice.open == 0


async def test_a_reason_that_its_registered_kind_refuses_is_a_failure_and_not_for_the_log() -> None:
    class Filtered(BaseModel):
        category: str

    async def filtered(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield Finish(Extension("filtered", {"category": "x"} if request.model == "m" else {"reason": "x"}))

    async with speaking(Voice(filtered)) as root:
        root.registry(FINISH_KINDS).add("filtered", Kind(model=Filtered))
        assert await ask(root) == [Finish(Extension("filtered", {"category": "x"}))]
        with capture_logs():
            assert "filtered" in failure(await ask(root, asking(model="another"))).message


async def test_an_answer_that_stops_without_a_finish_is_truncated() -> None:
    async def silent(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield HELLO
        yield UsageReport(TokenUsage(input_tokens=1, output_tokens=1))

    async with speaking(Voice(silent)) as root:
        chunks = await ask(root)
        assert len(chunks) == 3
        assert failure(chunks).code == "TRUNCATED"


async def test_what_comes_after_the_finish_is_dropped_and_the_adapter_named() -> None:
    async def talkative(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield Finish(Stop())
        yield HELLO
        raise AssertionError("nobody asks for more")

    async def late(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield Finish(Stop())
        raise RuntimeError("while closing")

    voice = Voice()
    async with speaking(voice) as root:
        for script, event in ((talkative, "an adapter goes on after its finish"), (late, "an adapter failed")):
            voice.script = script
            with capture_logs() as log:
                assert await ask(root) == [Finish(Stop())]
            assert [entry["event"] for entry in log if "'voice'" in entry.get("stream", "")] == [event]
            assert voice.open == 0


# -- aborting


async def test_an_abort_takes_the_place_of_what_had_not_been_read() -> None:
    async def quick(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for _ in range(10):
            yield HELLO
        yield Finish(Stop())

    aborter, voice = Aborter(), Voice(quick)
    async with speaking(voice) as root:
        async with service(root).stream(asking(signal=aborter.signal)) as chunks:
            assert await anext(chunks) == HELLO
            await anyio.wait_all_tasks_blocked()
            aborter.abort("enough")
            rest = [chunk async for chunk in chunks]
        assert failure(rest, Aborted) == LlmFailure(message="aborted: enough", code="ABORTED")
        assert len(rest) == 1
        assert voice.open == 0


async def test_an_abort_after_the_finish_changes_nothing() -> None:
    aborter = Aborter()
    async with speaking(Voice()) as root, service(root).stream(asking(signal=aborter.signal)) as chunks:
        found = [await anext(chunks), await anext(chunks)]
        aborter.abort("too late")
        assert [*found, *[chunk async for chunk in chunks]] == [HELLO, Finish(Stop())]


async def test_an_aborted_adapter_that_will_not_hear_of_it_keeps_nobody_waiting() -> None:
    released = anyio.Event()

    async def stubborn(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield HELLO
        with anyio.CancelScope(shield=True):
            await released.wait()
        yield HELLO
        yield Finish(Stop())

    aborter, voice = Aborter(), Voice(stubborn)
    async with speaking(voice) as root:
        async with service(root).stream(asking(signal=aborter.signal)) as chunks:
            await anext(chunks)
            await anyio.wait_all_tasks_blocked()
            aborter.abort("now")
            rest = [chunk async for chunk in chunks]
            assert failure(rest, Aborted).code == "ABORTED"
            assert voice.open == 1
            released.set()
        assert voice.open == 0


async def test_the_words_of_a_cause_that_has_none_are_its_class() -> None:
    class Cause:
        def __str__(self) -> str:
            raise RuntimeError

    aborter = Aborter()
    aborter.abort(Cause())
    async with speaking(Voice()) as root:
        found = failure(await ask(root, asking(signal=aborter.signal)), Aborted)
        assert "Cause" in found.message


async def test_a_signal_that_lives_long_remembers_no_stream() -> None:
    aborter = Aborter()
    async with speaking(Voice()) as root:
        for _ in range(3):
            await ask(root, asking(signal=aborter.signal))
        assert not aborter.signal._callbacks


# -- leaving


async def test_an_adapter_that_is_left_between_chunks_may_say_good_bye() -> None:
    said: list[str] = []

    async def polite(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            while True:
                yield HELLO
        finally:
            await anyio.sleep(0.01)
            said.append("good bye")

    async with speaking(Voice(polite)) as root:
        async with service(root).stream(asking()) as chunks:
            await anext(chunks)
            await anyio.wait_all_tasks_blocked()
        assert said == ["good bye"]


async def test_an_adapter_is_not_asked_for_much_more_than_is_read() -> None:
    made = 0

    async def endless(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        nonlocal made
        while True:
            made += 1
            yield HELLO

    voice = Voice(endless)
    async with speaking(voice) as root:
        async with service(root).stream(asking()) as chunks:
            for read in range(1, 200):
                await anext(chunks)
                assert made <= read + handover.AHEAD
            await anyio.wait_all_tasks_blocked()
        assert voice.open == 0


async def test_an_adapter_that_does_not_come_to_its_end_is_cut_off_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "CLOSING", 0.02)

    async def after_the_finish(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield Finish(Stop())
        await anyio.sleep_forever()

    async def in_cleanup(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            while True:
                yield HELLO
        finally:
            await anyio.sleep_forever()

    voice = Voice()
    async with speaking(voice) as root:
        for script in (after_the_finish, in_cleanup):
            voice.script = script
            with capture_logs() as log:
                async with service(root).stream(asking()) as chunks:
                    await anext(chunks)
                    await anyio.wait_all_tasks_blocked()
            assert [entry["event"] for entry in log] == ["a stream did not close in time"]
            assert voice.open == 0


async def test_a_cleanup_that_fails_is_reported_and_harms_nobody() -> None:
    async def clumsy(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            while True:
                yield HELLO
        finally:
            raise RuntimeError("I stumbled")

    async with speaking(Voice(clumsy)) as root:
        with capture_logs() as log:
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
        assert [entry["event"] for entry in log] == ["a stream did not close well"]


async def test_an_adapter_that_fails_while_it_is_cancelled_is_named_and_harms_nobody() -> None:
    async def clumsy(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            yield HELLO
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("I stumbled")

    aborter, voice = Aborter(), Voice(clumsy)
    async with speaking(voice) as root:
        with capture_logs() as log:
            async with service(root).stream(asking(signal=aborter.signal)) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
                aborter.abort("enough")
                assert failure([chunk async for chunk in chunks], Aborted).message == "aborted: enough"
        assert [(entry["event"], repr(entry["exc_info"])) for entry in log] == [
            ("an adapter failed", "RuntimeError('I stumbled')")
        ]
        assert voice.open == 0


async def test_an_adapter_nobody_reads_from_is_never_asked() -> None:
    voice = Voice()
    async with speaking(voice) as root:
        async with service(root).stream(asking()):
            await anyio.wait_all_tasks_blocked()
        assert voice.requests == []


async def test_a_consumer_that_is_cancelled_is_cancelled() -> None:
    voice, after = Voice(stalled), []
    async with speaking(voice) as root:

        async def reading() -> None:
            await ask(root)
            after.append("went on")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reading)
            await anyio.wait_all_tasks_blocked()
            assert voice.open == 1
            tasks.cancel_scope.cancel()
        task = asyncio.create_task(reading())
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (voice.open, after) == (0, [])


# -- who may wait how


async def test_a_consumer_that_cancels_itself_between_two_chunks_is_not_told_that_the_answer_is_over() -> None:
    async with speaking(Voice(stalled)) as root:
        with anyio.CancelScope() as scope:
            async with service(root).stream(asking()) as chunks:
                async for _ in chunks:
                    scope.cancel()
                raise AssertionError("half an answer would be taken for the whole")
        assert scope.cancelled_caught


async def test_a_consumer_may_give_up_waiting_and_ask_again() -> None:
    go = anyio.Event()

    async def patient(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield HELLO
        await go.wait()
        yield HELLO
        yield Finish(Stop())

    async with speaking(Voice(patient)) as root, service(root).stream(asking()) as chunks:
        found = [await anext(chunks)]
        for _ in range(3):
            with anyio.move_on_after(0.005):
                found.append(await anext(chunks))
        assert found == [HELLO]
        go.set()
        assert [*found, *[chunk async for chunk in chunks]] == [HELLO, HELLO, Finish(Stop())]


def spanning(opens: Callable[[], Any]) -> Script:
    """An answer that keeps something open around its chunks."""

    async def script(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        opened = opens()
        if hasattr(opened, "__aenter__"):
            async with opened:
                yield HELLO
                await anyio.sleep(0.005)
                yield HELLO
                yield Finish(Stop())
        else:
            with opened:
                yield HELLO
                await anyio.sleep(0.005)
                yield HELLO
                yield Finish(Stop())

    return script


async def leave(chunks: AsyncIterator[StreamChunk]) -> None:
    with anyio.fail_after(1):
        await anext(chunks)


async def read_on(chunks: AsyncIterator[StreamChunk]) -> None:
    for _ in range(3):
        with anyio.fail_after(1):
            await anext(chunks)


@pytest.mark.parametrize("opens", [anyio.create_task_group, anyio.CancelScope, lambda: anyio.fail_after(5)])
@pytest.mark.parametrize("reads", [leave, read_on])
async def test_scopes_of_an_adapter_and_scopes_of_a_consumer_do_not_meet(
    opens: Callable[[], Any], reads: Callable[[AsyncIterator[StreamChunk]], Awaitable[None]]
) -> None:
    voice = Voice(spanning(opens))
    async with speaking(voice) as root:
        with capture_logs() as log:
            async with service(root).stream(asking()) as chunks:
                await reads(chunks)
        assert (voice.open, log) == (0, [])


async def test_leaving_an_adapter_with_a_task_group_between_two_chunks_is_no_fault() -> None:
    async def grouped_chunks(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            while True:
                yield HELLO

    voice = Voice(grouped_chunks)
    async with speaking(voice) as root:
        with capture_logs() as log:
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
        assert (voice.open, log) == (0, [])


async def test_a_scope_of_an_adapter_that_ends_while_nobody_reads_ends_its_answer_only() -> None:
    async def limited(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        with anyio.move_on_after(0.01):
            while True:
                yield HELLO

    voice = Voice(limited)
    async with speaking(voice) as root:
        with capture_logs():
            async with service(root).stream(asking()) as chunks:
                found = [await anext(chunks)]
                await anyio.sleep(0.03)  # past the limit, with a full house
                found += [chunk async for chunk in chunks]
        assert "cancelled" in failure(found).message
        assert voice.open == 0


async def test_two_readers_share_a_stream() -> None:
    async def slow(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for word in "abcdef":
            await anyio.sleep(0.001)
            yield TextDelta(0, word)
        yield Finish(Stop())

    found: list[StreamChunk] = []
    async with speaking(Voice(slow)) as root, service(root).stream(asking()) as chunks:

        async def read() -> None:
            async for chunk in chunks:
                found.append(chunk)

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(read)
    assert text(found) == "abcdef"


async def test_what_a_consumer_raises_leaves_the_stream_as_it_is() -> None:
    class Mine(BaseException):
        pass

    voice = Voice(stalled)
    async with speaking(voice) as root:
        for error in (ValueError("mine"), Mine(), StopAsyncIteration(), ExceptionGroup("mine", [ValueError()])):
            caught: BaseException | None = None
            try:
                async with (
                    service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call,
                    call.stream(asking()) as chunks,
                ):
                    await anext(chunks)
                    raise error
            except BaseException as exc:
                caught = exc
            assert caught is error
            assert voice.open == 0
