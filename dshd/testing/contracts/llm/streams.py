"""How the chunks of a call come, and how they end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio

from dshd.capabilities.llm import (
    LLM,
    LLM_STREAM,
    Aborted,
    AdapterRegistration,
    Failed,
    Finish,
    GenerateOptions,
    LlmCallConfig,
    LlmError,
    LlmFailure,
    Stop,
    StreamChunk,
    TextDelta,
)
from dshd.kernel.events import Next
from dshd.kernel.signal import Aborter
from dshd.testing.contracts.expect import same

from .voice import (
    Mounting,
    Script,
    Voice,
    _after_a_moment,
    ask,
    asking,
    failure,
    hello,
    raising,
    replaced,
    row,
    service,
    serving,
    stalled,
    text,
)


class StreamsContract(Mounting):
    """How the chunks of a call come, and how they end."""

    # -- streaming

    async def test_a_route_without_adapter_fails_only_where_nobody_else_serves_it(self) -> None:
        async with self.mounted(serving("other", Voice())) as (root, _):
            asked = LlmCallConfig(provider="ghost", model="m", reasoning_effort="any")  # type: ignore[arg-type]
            async with service(root).prepare_call(asked) as call:
                same((call.config, call.model, call.retry_policy), (asked, None, None))
            same(failure(await ask(root, asking("ghost"))).code, "NO_ADAPTER")

            async def serve(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
                return hello(request) if request.provider == "ghost" else await next()

            root.on(LLM_STREAM, serve)
            same(text(await ask(root, asking("ghost"))), "hello")

    async def test_whatever_an_adapter_does_its_stream_ends_with_one_finish(self) -> None:
        async def silent(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield TextDelta(0, "hello")

        async def rubbish(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield "hello"  # type: ignore[misc]

        async def talkative(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield Finish(Failed(LlmFailure(message="broken", code="MINE")))
            yield TextDelta(0, "and another thing")

        limited = LlmFailure(message="slowly", code="RATE_LIMITED", provider_retry_after_ms=50)
        faults: list[tuple[Script, str]] = [
            (raising(RuntimeError("broken")), "PROVIDER_ERROR"),
            (raising(SystemExit(3)), "PROVIDER_ERROR"),
            (raising(LlmError(limited)), "RATE_LIMITED"),
            (silent, "TRUNCATED"),
            (rubbish, "PROVIDER_ERROR"),
            (talkative, "MINE"),
        ]
        voice = Voice()
        async with self.mounted(serving("voice", voice)) as (root, _):
            for script, code in faults:
                voice.script = script
                same(failure(await ask(root)).code, code)
                same(voice.open, 0)

    async def test_what_a_listener_raises_is_raised_as_it_is(self) -> None:
        class Broken(Exception):
            pass

        async def refuse(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
            if request.temperature == 0:
                raise Broken
            chunks = await next()

            async def half() -> AsyncIterator[StreamChunk]:
                async for chunk in chunks:
                    yield chunk
                    raise Broken

            return half()

        voice = Voice(stalled)
        async with self.mounted(serving("voice", voice)) as (root, _):
            root.on(LLM_STREAM, refuse)
            for temperature in (0, 1):
                raised = False
                try:
                    await ask(root, asking(temperature=temperature))
                except Broken:
                    raised = True
                assert raised, "what a listener raises is no failure of a model"
            same(voice.open, 0)

    async def test_an_abort_ends_the_answer_at_once_and_closes_the_adapter(self) -> None:
        voice, aborter = Voice(stalled), Aborter()
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).stream(asking(signal=aborter.signal)) as chunks:
                same(await anext(chunks), TextDelta(0, "hello"))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_after_a_moment, lambda: aborter.abort("the user"))
                    rest = [chunk async for chunk in chunks]
                found = failure(rest, Aborted)
                same(found.code, "ABORTED")
                assert "the user" in found.message, f"the cause is named: {found}"
            same(voice.open, 0)
            same(failure(await ask(root, asking(signal=aborter.signal)), Aborted).code, "ABORTED")

    async def test_leaving_early_in_any_way_closes_the_adapter(self) -> None:
        voice = Voice(stalled)
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).stream(asking()) as chunks:
                await anext(chunks)
                same(voice.open, 1)
            same(voice.open, 0)
            error, caught = ValueError("mine"), None
            try:
                async with service(root).stream(asking()) as chunks:
                    await anext(chunks)
                    raise error
            except ValueError as exc:
                caught = exc
            assert caught is error, "what a consumer raises is raised as it is"
            same(voice.open, 0)
            with anyio.move_on_after(0.02):
                await ask(root)
            same(voice.open, 0)

    async def test_whoever_gives_up_waiting_for_a_chunk_loses_nothing(self) -> None:
        async def slow(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            async with anyio.create_task_group():  # a scope that spans the chunks
                for word in ("a", "b", "c"):
                    await anyio.sleep(0.02)
                    yield TextDelta(0, word)
                yield Finish(Stop())

        async with self.mounted(serving("voice", Voice(slow))) as (root, _):
            async with service(root).stream(asking()) as chunks:
                found: list[StreamChunk] = []
                while not found or not isinstance(found[-1], Finish):
                    with anyio.move_on_after(0.005):
                        found.append(await anext(chunks))
            same(text(found), "abc")

    async def test_a_stream_goes_on_while_everything_around_it_is_replaced(self) -> None:
        go = anyio.Event()

        async def patient(request: GenerateOptions) -> AsyncIterator[StreamChunk]:
            yield TextDelta(0, "before ")
            await go.wait()
            yield TextDelta(0, "after")
            yield Finish(Stop())

        kept: list[AdapterRegistration] = []
        voice = Voice(patient)
        async with self.mounted() as (root, provider):
            fiber = root.plugin(row("voice", lambda ctx: kept.append(ctx[LLM].register_adapter(["voice"], voice))))
            await fiber.settled()
            async with service(root).stream(asking()) as chunks:
                found = [await anext(chunks)]
                await replaced(root, provider)
                kept[0].replace(["elsewhere"])
                await replaced(root, fiber)
                await anyio.wait_all_tasks_blocked()
                assert not fiber.closed, "the row of the adapter stays open for the stream"
                go.set()
                found += [chunk async for chunk in chunks]
            same(text(found), "before after")
            await fiber.closing()
