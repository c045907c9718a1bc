"""How a call is prepared, and who sees what of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio

from dshd.capabilities.llm import (
    LLM,
    LLM_STREAM,
    GenerateOptions,
    LlmCallConfig,
    RetryPolicy,
    StreamChunk,
)
from dshd.capabilities.values import Message, ModelSource, TextBlock, message_id
from dshd.kernel.context import Context
from dshd.kernel.events import Next
from dshd.testing.contracts.expect import same

from .voice import (
    Mounting,
    Voice,
    ask,
    asking,
    consumer,
    model,
    refused,
    replaced,
    row,
    service,
    serving,
    text,
)


class CallsContract(Mounting):
    """How a call is prepared, and who sees what of it."""

    # -- preparation

    async def test_a_call_is_completed_by_its_adapter_and_the_marks_say_so(self) -> None:
        retry = RetryPolicy(max_retries=2)
        voice = Voice(models=[model("m", ["low", "high"], "high", default_max_tokens=500)], retry=retry)
        async with self.mounted(serving("voice", voice)) as (root, _):
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                same(call.config, LlmCallConfig(provider="voice", model="m", reasoning_effort="high", max_tokens=500))  # type: ignore[arg-type]
                same(call.header().adapter_defaults, {"reasoning_effort", "max_tokens"})
                same(call.retry_policy, retry)
                same(call.model, replace(voice.models[0], provider="voice"))
            chosen = LlmCallConfig(provider="voice", model="m", reasoning_effort="low", max_tokens=7)  # type: ignore[arg-type]
            async with service(root).prepare_call(chosen) as call:
                same(call.config, chosen)
                same(call.header().adapter_defaults, frozenset())

    async def test_an_effort_that_a_model_has_not_is_refused_by_name(self) -> None:
        async with self.mounted(serving("voice", Voice(models=[model("m", ["low", "high"])]))) as (root, _):
            asked = LlmCallConfig(provider="voice", model="m", reasoning_effort="extreme")  # type: ignore[arg-type]
            with refused("UNSUPPORTED_EFFORT", "extreme", "low", "high"):
                async with service(root).prepare_call(asked):
                    pass

    async def test_layers_are_laid_over_a_proposal_and_of_caps_the_smallest_holds(self) -> None:
        voice = Voice(models=[model("m", ["low"]), model("n", ["low"], default_max_tokens=5000)])
        async with self.mounted(serving("voice", voice)) as (root, _):
            outer = root.intercept(LLM, max_tokens=100, model="n", temperature=0.5)
            ctx = await consumer(outer.intercept(LLM, max_tokens=900, effort="low"))
            async with service(ctx).prepare_call(LlmCallConfig(provider="voice", model="m", max_tokens=200)) as call:
                same((call.config.model, call.config.max_tokens), ("n", 100))
                same((call.config.temperature, call.config.reasoning_effort), (0.5, "low"))
                header = call.header()
            same(header.proposal(), LlmCallConfig(provider="voice", model="m", max_tokens=200))
            same(header.adapter_defaults, frozenset())

    async def test_a_layer_that_is_none_is_refused_by_name(self) -> None:
        wrong: list[Mapping[str, Any]] = [{"modle": "m"}, {"max_tokens": "many"}, {"max_tokens": 0}, {"stop": "END"}]
        async with self.mounted(serving("voice", Voice())) as (root, _):
            for number, layer in enumerate(wrong):
                ctx = await consumer(root.intercept(LLM, **layer), f"row-{number}")
                with refused("INVALID_CALL_CONFIG", next(iter(layer)), f"row-{number}"):
                    async with service(ctx).prepare_call(LlmCallConfig(provider="voice", model="m")):
                        pass

    async def test_a_prepared_call_is_good_for_one_request_of_exactly_its_config(self) -> None:
        async with self.mounted(serving("voice", Voice())) as (root, _):
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                with refused("INVALID_PREPARED_CALL", "temperature"):
                    async with call.stream(asking(temperature=1.0)):
                        pass
                async with call.stream(asking()) as chunks:
                    same(text([chunk async for chunk in chunks]), "hello")
                with refused("INVALID_PREPARED_CALL"):
                    async with call.stream(asking()):
                        pass
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as late:
                pass
            with refused("INVALID_PREPARED_CALL"):
                async with late.stream(asking()):
                    pass

    async def test_a_call_keeps_the_adapter_it_was_prepared_with(self) -> None:
        voices: list[Voice] = []

        def one_more(ctx: Context) -> None:
            voices.append(Voice(retry=RetryPolicy(max_retries=len(voices))))
            ctx[LLM].register_adapter(["voice"], voices[-1])

        async with self.mounted() as (root, provider):
            fiber = root.plugin(row("voice", one_more))
            await fiber.settled()
            async with service(root).prepare_call(LlmCallConfig(provider="voice", model="m")) as call:
                await replaced(root, fiber)
                await replaced(root, provider)
                await anyio.wait_all_tasks_blocked()
                assert not fiber.closed, "the row of the adapter stays open for the call"
                async with call.stream(asking()) as chunks:
                    same(text([chunk async for chunk in chunks]), "hello")
                same([len(voice.requests) for voice in voices], [1, 0])
                same(call.retry_policy, RetryPolicy(max_retries=0))
            await fiber.closing()
            await ask(root)
            same([len(voice.requests) for voice in voices], [1, 1])

    # -- what adapters and listeners see

    async def test_replay_state_reaches_only_an_instance_that_owns_both_ends(self) -> None:
        def said(provider: str) -> Message:
            source = ModelSource(provider, "m", {"state": provider})
            return Message(message_id(), "assistant", (TextBlock("yes"),), source)

        messages = [said("voice"), said("sister"), said("stranger"), said("gone")]
        voice, stranger = Voice(), Voice()
        rows = (serving("voice", voice, "voice", "sister"), serving("stranger", stranger))
        async with self.mounted(*rows) as (root, _):
            for adapter, provider, shown in ((voice, "voice", (0, 1)), (stranger, "stranger", (2,))):
                request = asking(provider, messages=messages)
                await ask(root, request)
                got = adapter.requests[-1].messages
                same([message.id for message in got], [message.id for message in messages])
                states = [message.source.replay_state for message in got if isinstance(message.source, ModelSource)]
                same([index for index, state in enumerate(states) if state is not None], list(shown))
                same(list(request.messages), messages)

    async def test_a_request_cannot_be_changed_on_its_way(self) -> None:
        changes: list[Callable[[Any], object]] = [
            lambda request: setattr(request, "model", "other"),
            lambda request: setattr(request.messages[0], "role", "system"),
            lambda request: request.messages.append(request.messages[0]),
            lambda request: request.messages[0].source.replay_state.update(state=2),
        ]
        refusals: list[type[Exception]] = []

        async def meddle(request: GenerateOptions, next: Next[AsyncIterator[StreamChunk]]) -> Any:
            for change in changes:
                try:
                    change(request)
                except Exception as exc:
                    refusals.append(type(exc))
            return await next()

        message = Message(message_id(), "assistant", (TextBlock("yes"),), ModelSource("voice", "m", {"state": 1}))
        async with self.mounted(serving("voice", Voice())) as (root, _):
            root.on(LLM_STREAM, meddle)
            same(text(await ask(root, asking(messages=[message]))), "hello")
        same(len(refusals), len(changes))

    async def test_a_conversation_is_known_by_the_very_object_of_its_request(self) -> None:
        async with self.mounted(serving("voice", Voice())) as (root, provider):
            first, second = asking(), asking()
            service(root).mark_conversation(first)
            await replaced(root, provider)
            same((service(root).is_conversation(first), service(root).is_conversation(second)), (True, False))
