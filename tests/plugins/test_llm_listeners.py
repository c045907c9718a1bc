"""Listeners of `llm/stream`: what stands before the adapters, what it may do, and whose fault is whose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from dshd import Aborter, Context, Next, Scope, errors
from dshd.capabilities.llm import (
    LLM,
    LLM_STREAM,
    Aborted,
    Failed,
    Finish,
    GenerateOptions,
    LlmCallConfig,
    LlmError,
    Stop,
    StreamChunk,
    TextDelta,
)
from dshd.capabilities.values import MalformedValueError
from dshd.testing.contracts.llm import (
    Voice,
    ask,
    asking,
    consumer,
    failure,
    hello,
    raising,
    row,
    service,
    serving,
    stalled,
    text,
)
from dshd.testing.kernel import running
from dshd_plugins.llm import llm

pytestmark = pytest.mark.anyio

Chunks = AsyncIterator[StreamChunk]
HELLO = TextDelta(0, "hello")


async def test_a_listener_may_change_what_comes_and_is_read_to_its_own_end() -> None:
    after: list[str] = []

    async def louder(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            async for chunk in chunks:
                yield TextDelta(0, chunk.text.upper()) if isinstance(chunk, TextDelta) else chunk
            after.append("what follows the last chunk runs")

        return made()

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, louder)
        assert text(await ask(root)) == "HELLO"
        assert len(after) == 1


async def test_a_listener_may_serve_a_request_without_any_adapter_being_asked() -> None:
    voice = Voice()

    async def instead(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        await next()  # what it is given and drops costs nothing either
        return hello(request)

    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, instead)
        assert text(await ask(root)) == "hello"
        assert voice.requests == []


async def test_a_listener_may_go_to_another_route_when_the_first_fails() -> None:
    contexts: list[Context] = []

    async def fall_back(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            async for chunk in chunks:
                if not (isinstance(chunk, Finish) and isinstance(chunk.reason, Failed)):
                    yield chunk
                    continue
                async with contexts[0][LLM].stream(asking("spare")) as others:
                    async for other in others:
                        yield other

        return made() if request.provider == "voice" else chunks

    rows = (
        serving("voice", Voice(raising(LlmError("no", "AUTH")))),
        serving("spare", Voice()),
        row("fallback", contexts.append),
    )
    async with running(llm, *rows) as root:
        contexts[0].on(LLM_STREAM, fall_back)
        for _ in range(2):
            async with service(root).stream(asking()) as found:
                with anyio.fail_after(5):  # a scope of the consumer around the task group of the inner call
                    first = await anext(found)
                assert text([first, *[chunk async for chunk in found]]) == "hellohello"


async def test_a_listener_of_one_agent_hears_the_calls_of_that_agent() -> None:
    heard: list[Scope | None] = []
    ada, bob = Scope("ada"), Scope("bob")

    async def hear(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        heard.append(request.scope)
        return await next()

    async with running(llm, serving("voice", Voice())) as root:
        root.scoped(ada).on(LLM_STREAM, hear)
        for scope in (None, ada, bob):
            assert text(await ask(root, asking(scope=scope))) == "hello"
        assert heard == [ada]


async def test_listeners_are_those_of_the_moment_a_call_was_prepared() -> None:
    heard: list[str] = []

    def listening(name: str) -> Any:
        async def hear(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
            heard.append(name)
            return await next()

        return row(name, lambda ctx: ctx.on(LLM_STREAM, hear))

    async with running(llm, serving("voice", Voice())) as root:
        old = root.plugin(listening("old"))
        await old.settled()
        async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
            async with root.kernel.stage() as stage:
                stage.retire(old)
                root.plugin(listening("new"), stage=stage)
                await stage.settled()
                stage.commit()
            async with call.stream(asking()) as chunks:
                assert text([chunk async for chunk in chunks]) == "hello"
        assert heard == ["old"]


# -- faults


class Broken(Exception):
    pass


@pytest.mark.parametrize("moment", ["before", "first", "later", "after"])
async def test_what_a_listener_raises_is_no_failure_of_a_model(moment: str) -> None:
    async def breaking(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        if moment == "before":
            raise Broken
        chunks = await next()

        async def made() -> Chunks:
            if moment == "first":
                raise Broken
            async for chunk in chunks:
                yield chunk
                if moment == "later":
                    raise Broken
            raise Broken

        return made()

    voice = Voice()
    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, breaking)
        found: list[StreamChunk] = []

        async def read() -> None:
            async with service(root).stream(asking()) as chunks:
                async for chunk in chunks:
                    found.append(chunk)

        with pytest.raises(Broken):
            await read()
        assert found == {"later": [HELLO], "after": [HELLO, Finish(Stop())]}.get(moment, [])
        assert voice.open == 0
        assert not root.kernel.leases


async def test_what_a_listener_raises_long_after_the_finish_was_read_reaches_who_reads_to_the_end() -> None:
    go = anyio.Event()

    async def breaking(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            async for chunk in chunks:
                yield chunk
            await go.wait()
            raise Broken

        return made()

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, breaking)
        async with service(root).stream(asking()) as chunks:
            assert [await anext(chunks), await anext(chunks)] == [HELLO, Finish(Stop())]
            await anyio.wait_all_tasks_blocked()
            go.set()
            with anyio.fail_after(5), pytest.raises(Broken):
                await anext(chunks)
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)


@pytest.mark.parametrize("ends", ["left", "aborted", "aborted after the finish", "aborted after the fault"])
async def test_what_a_listener_raises_while_it_is_stopped_is_logged_and_raised_to_nobody(ends: str) -> None:
    async def breaking(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        async def made() -> Chunks:
            try:
                yield Finish(Stop()) if ends == "aborted after the finish" else HELLO
                if ends != "aborted after the fault":
                    await anyio.sleep_forever()
            finally:
                raise Broken

        return made()

    aborter = Aborter()
    async with running(llm) as root:
        root.on(LLM_STREAM, breaking)
        with capture_logs() as log, anyio.fail_after(5):
            async with service(root).stream(asking(signal=aborter.signal)) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
                if ends != "left":
                    aborter.abort("enough")
                    rest = [chunk async for chunk in chunks]
                    assert len(rest) == (0 if ends == "aborted after the finish" else 1)
        assert [(entry["event"], repr(entry["exc_info"])) for entry in log] == [
            ("a listener failed after the last chunk was read", "Broken()")
        ]


async def test_what_a_listener_raises_when_nobody_reads_any_more_is_logged() -> None:
    async def breaking(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            async for chunk in chunks:
                yield chunk
            raise Broken

        return made()

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, breaking)
        with capture_logs() as log:
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
        assert [entry["event"] for entry in log] == ["a listener failed after the last chunk was read"]


@pytest.mark.parametrize("given", [None, [HELLO], "hello"])
async def test_a_listener_that_gives_no_chunks_is_told_so(given: Any) -> None:
    async def odd(request: GenerateOptions, next: Next[Chunks]) -> Any:
        return given

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, odd)
        with pytest.raises(TypeError, match=f"'llm/stream' gave no chunks: {type(given).__name__}"):
            await ask(root)


async def test_a_listener_that_gives_a_coroutine_is_told_what_to_write() -> None:
    async def odd(request: GenerateOptions, next: Next[Chunks]) -> Any:
        async def one() -> StreamChunk:
            return HELLO

        return one()

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, odd)
        with pytest.raises(TypeError, match="async def"):
            await ask(root)


async def test_rubbish_from_a_listener_is_its_error() -> None:
    async def odd(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        async def made() -> Any:
            yield "hello"

        return made()  # type: ignore[no-any-return]

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, odd)
        with pytest.raises(MalformedValueError, match="listener of 'llm/stream'"):
            await ask(root)


async def test_a_listener_that_ends_the_process_or_is_cancelled_by_chance_harms_only_the_call() -> None:
    async def made(how: str) -> Chunks:
        if how == "exit":
            raise SystemExit(3)
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        yield HELLO

    async def odd(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        return made(request.model)

    async with running(llm, serving("voice", Voice())) as root:
        root.on(LLM_STREAM, odd)
        with pytest.raises(errors.PluginExitError, match="SystemExit"):
            await ask(root, asking(model="exit"))
        with pytest.raises(errors.StrayCancellationError):
            await ask(root, asking(model="stray"))


# -- ending


async def test_an_abort_frees_who_reads_through_a_listener_which_sees_the_aborted_finish() -> None:
    seen: list[StreamChunk] = []
    ends: list[str] = []

    async def watching(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            try:
                async for chunk in chunks:
                    seen.append(chunk)
                    yield chunk
            finally:
                ends.append("closed")

        return made()

    voice, aborter = Voice(stalled), Aborter()
    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, watching)
        async with service(root).stream(asking(signal=aborter.signal)) as chunks:
            await anext(chunks)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_abort, aborter)
                assert failure([chunk async for chunk in chunks], Aborted).code == "ABORTED"
        assert isinstance(seen[-1], Finish)
        assert isinstance(seen[-1].reason, Aborted)
        assert (ends, voice.open) == (["closed"], 0)


async def test_nobody_is_asked_about_a_request_that_was_aborted_before() -> None:
    heard: list[GenerateOptions] = []

    async def hear(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        heard.append(request)
        return await next()

    voice, aborter = Voice(), Aborter()
    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, hear)
        async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
            aborter.abort("too late")
            async with call.stream(asking(signal=aborter.signal)) as chunks:
                assert "too late" in failure([chunk async for chunk in chunks], Aborted).message
        assert (heard, voice.requests) == ([], [])


async def _abort(aborter: Aborter) -> None:
    await anyio.wait_all_tasks_blocked()
    aborter.abort("enough")


@pytest.mark.parametrize("stuck", ["asked", "serving", "passing"])
async def test_an_abort_is_not_held_up_by_a_listener_that_is_stuck(stuck: str) -> None:
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(stuck)

    async def slow(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        if stuck == "asked":
            await hang()
        chunks = await next()

        async def made() -> Chunks:
            if stuck == "serving":
                await hang()
            async for _ in chunks:
                await hang()
            yield HELLO

        return made()

    voice, aborter = Voice(stalled), Aborter()
    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_abort, aborter)
            with anyio.fail_after(2):
                assert failure(await ask(root, asking(signal=aborter.signal)), Aborted).code == "ABORTED"
        assert (cancelled, voice.open) == ([stuck], 0)
        assert not root.kernel.leases


async def test_a_listener_that_is_left_in_the_middle_is_closed_together_with_its_adapter() -> None:
    closed: list[str] = []

    async def wrapping(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks = await next()

        async def made() -> Chunks:
            try:
                async with anyio.create_task_group():
                    async for chunk in chunks:
                        yield chunk
            finally:
                closed.append("listener")

        return made()

    voice = Voice(stalled)
    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, wrapping)
        async with service(root).stream(asking()) as chunks:
            with anyio.fail_after(1):
                await anext(chunks)
            assert voice.open == 1
        assert (closed, voice.open) == (["listener"], 0)
        with anyio.move_on_after(0.02):
            await ask(root)
        assert (closed, voice.open) == (["listener"] * 2, 0)


@pytest.mark.parametrize("provider", ["voice", "ghost"])
@pytest.mark.parametrize("leaves", [True, False])
async def test_listeners_that_close_what_they_wrap_are_all_closed_wherever_the_answer_is_left(
    provider: str, leaves: bool
) -> None:
    closed: list[str] = []

    def wrapping(name: str) -> Any:
        async def wrap(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
            chunks: Any = await next()

            async def made() -> Chunks:
                try:
                    async with anyio.create_task_group(), aclosing(chunks):
                        async for chunk in chunks:
                            yield chunk
                finally:
                    closed.append(name)

            return made()

        return wrap

    async def endless(request: GenerateOptions) -> Chunks:
        while True:
            yield HELLO

    voice = Voice(endless if leaves else hello)
    async with running(llm, serving("voice", voice)) as root:
        for name in ("outer", "middle", "inner"):
            root.on(LLM_STREAM, wrapping(name))
        with capture_logs() as log:
            async with service(root).stream(asking(provider)) as chunks:
                async for _ in chunks:
                    await anyio.wait_all_tasks_blocked()
                    if leaves:
                        break
        assert (closed, voice.open, log) == (["inner", "middle", "outer"], 0, [])


async def test_listeners_that_only_iterate_are_all_closed_before_the_block_ends() -> None:
    closed: list[str] = []

    def wrapping(name: str) -> Any:
        async def wrap(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
            chunks = await next()

            async def made() -> Chunks:
                try:
                    async with anyio.create_task_group():
                        async for chunk in chunks:
                            yield chunk
                finally:
                    closed.append(name)

            return made()

        return wrap

    async def endless(request: GenerateOptions) -> Chunks:
        while True:
            yield HELLO

    voice = Voice(endless)
    async with running(llm, serving("voice", voice)) as root:
        for name in ("outer", "inner"):
            root.on(LLM_STREAM, wrapping(name))
        with capture_logs() as log:
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                await anyio.wait_all_tasks_blocked()
        assert (sorted(closed), voice.open, log) == (["inner", "outer"], 0, [])


async def test_a_listener_may_close_the_adapter_and_go_on_by_itself() -> None:
    voice = Voice(stalled)
    still: list[int] = []

    async def short(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        chunks: Any = await next()

        async def made() -> Chunks:
            yield await anext(chunks)
            await chunks.aclose()
            still.append(voice.open)
            assert [chunk async for chunk in chunks] == []
            yield Finish(Stop())

        return made()

    async with running(llm, serving("voice", voice)) as root:
        root.on(LLM_STREAM, short)
        assert text(await ask(root)) == "hello"
        assert still == [0]


async def test_what_was_opened_for_a_listener_is_closed_although_nobody_read_from_it() -> None:
    class Held:
        closed = False

        def __aiter__(self) -> "Held":
            return self

        async def __anext__(self) -> StreamChunk:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            self.closed = True

    held = Held()

    async def holding(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        return held

    async with running(llm) as root:
        root.on(LLM_STREAM, holding)
        async with service(root).stream(asking()):
            pass
        assert held.closed


async def test_a_stream_that_a_listener_serves_may_end_without_a_finish() -> None:
    async def served() -> Chunks:
        yield HELLO

    async def odd(request: GenerateOptions, next: Next[Chunks]) -> Chunks:
        return served()

    async with running(llm) as root:
        root.on(LLM_STREAM, odd)
        ctx = await consumer(root)
        assert await ask(ctx) == [HELLO]
