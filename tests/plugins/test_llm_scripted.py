"""The model that needs no key: which reply a request gets, how it arrives and ends, and what survives an edit."""

import asyncio
import json
import os
import selectors
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import ValidationError

from dshd import Aborter, Context, FiberState
from dshd.capabilities.llm import (
    LLM,
    Aborted,
    Assembled,
    BlockAssembler,
    BlockEnd,
    BlockStart,
    Failed,
    Finish,
    GenerateOptions,
    Llm,
    LlmCallConfig,
    LlmError,
    MaxTokens,
    ModelDiscoveryRequest,
    Stop,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    ToolCalls,
    ToolSchema,
    UsageReport,
)
from dshd.capabilities.values import (
    Extension,
    Message,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    Snapshot,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    call_id,
    message_id,
    reasoning_effort_id,
    session_id,
    text_of,
    user_message,
)
from dshd.loader.result import Outcome
from dshd.testing.contracts.adapter import AdapterContract, AdapterUnderTest, Answer
from dshd.testing.kernel import running
from dshd.testing.loader import Site, errors
from dshd_plugins.llm import llm
from dshd_plugins.llm_scripted import llm_scripted
from dshd_plugins.llm_scripted.adapter import ScriptedAdapter
from dshd_plugins.llm_scripted.config import LlmScripted
from dshd_plugins.llm_scripted.memory import MOST, Memory
from dshd_plugins.llm_scripted.routes import Route

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
DEADLINE = 20


# -- talking to it -----------------------------------------------------------------------------------------------------


def scripted(memory: Memory | None = None, /, **config: Any) -> ScriptedAdapter:
    read = LlmScripted.model_validate(config)
    return ScriptedAdapter(read.routes or {"scripted": Route()}, read, memory or Memory())


def request(*messages: Message | str, **options: Any) -> GenerateOptions:
    read = [user_message(each) if isinstance(each, str) else each for each in messages]
    return GenerateOptions(**{"provider": "scripted", "model": "scripted", "messages": read, **options})


def result(text: str, tool: str = "weather", error: bool = False) -> Message:
    block = ToolResultBlock(call_id("c1"), (TextBlock(text),), error)
    return Message(message_id(), "user", (block,), ToolSource(tool))


def calling(tool: str) -> Message:
    return Message(message_id(), "assistant", (ToolCallBlock(call_id("c1"), tool, "{}"),), ModelSource("a", "b"))


def tool(name: str) -> ToolSchema:
    return ToolSchema(name, f"Does {name}.", {"type": "object"})


async def chunks_of(adapter: ScriptedAdapter, *messages: Message | str, **options: Any) -> list[StreamChunk]:
    with anyio.fail_after(DEADLINE):
        return [chunk async for chunk in adapter.stream(request(*messages, **options))]


def assembled(chunks: Sequence[StreamChunk]) -> Assembled:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.result()


async def answer(adapter: ScriptedAdapter, *messages: Message | str, **options: Any) -> Assembled:
    return assembled(await chunks_of(adapter, *messages, **options))


async def said(adapter: ScriptedAdapter, *messages: Message | str, **options: Any) -> str:
    return text_of((await answer(adapter, *messages, **options)).content)


def calls(found: Assembled) -> list[tuple[str, str]]:
    return [(block.name, block.arguments) for block in found.content if isinstance(block, ToolCallBlock)]


class Talk:
    """A conversation: every answer becomes part of the history."""

    def __init__(self, adapter: ScriptedAdapter, **options: Any) -> None:
        self.adapter, self.options = adapter, {"session_id": session_id(), **options}
        self.history: list[Message] = []

    async def tell(self, *messages: Message | str) -> Assembled:
        self.history += [user_message(each) if isinstance(each, str) else each for each in messages]
        found = await answer(self.adapter, *self.history, **self.options)
        self.history.append(found.message("scripted", "scripted"))
        return found

    async def hears(self, *messages: Message | str) -> str:
        return text_of((await self.tell(*messages)).content)


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing but for real events: where a loop would sleep, its clock jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def in_no_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a loop whose hours pass at once, and exactly."""

    @wraps(test)
    def run() -> None:
        anyio.run(test, backend_options={"loop_factory": JumpingLoop})

    del run.__dict__["__wrapped__"]  # or pytest takes it for an asynchronous test
    return run


async def arrivals(adapter: ScriptedAdapter, *messages: str, **options: Any) -> list[float]:
    """When each delta came, in seconds from the beginning, and last when the stream was over."""
    begun = anyio.current_time()
    found = []
    async for chunk in adapter.stream(request(*messages, **options)):
        if isinstance(chunk, (TextDelta, ToolCallDelta)):
            found.append(round(anyio.current_time() - begun, 6))
    return [*found, round(anyio.current_time() - begun, 6)]


# -- without rules -----------------------------------------------------------------------------------------------------


async def test_without_rules_it_repeats_what_was_said_and_tells_what_can_be_asked() -> None:
    text = await said(scripted(), "Hello there", tools=[tool("shell")])
    assert "Hello there" in text
    assert "call NAME" in text
    assert "shell" in text


async def test_it_makes_the_tool_calls_it_is_told_to_with_the_arguments_as_they_were_said() -> None:
    found = await answer(scripted(), 'please\ncall shell {"cmd":  "call x {}", "n": 1.0}\n call read {"a": {}} thanks')
    assert calls(found) == [("shell", '{"cmd":  "call x {}", "n": 1.0}'), ("read", '{"a": {}}')]
    assert found.reason == ToolCalls()


async def test_a_call_without_arguments_is_made_only_if_the_tool_is_on_offer() -> None:
    assert calls(await answer(scripted(), "call shell", tools=[tool("shell")])) == [("shell", "{}")]
    assert calls(await answer(scripted(), "call me", tools=[tool("shell")])) == []
    assert calls(await answer(scripted(), "Never call shell {}")) == []


async def test_broken_arguments_are_passed_on_as_they_were_said() -> None:
    assert calls(await answer(scripted(), 'call shell {"cmd": ')) == [("shell", '{"cmd": ')]
    deep = "call shell " + '{"a":' * 100_000
    assert calls(await answer(scripted(models={"*": {"context_window": None}}), deep)) == [("shell", deep[11:])]


async def test_it_tells_the_results_of_tools_in_words() -> None:
    history: list[Message | str] = [
        "go",
        calling("weather"),
        result("sunny"),
        result("no such file", "read", error=True),
    ]
    assert await said(scripted(), *history) == "weather answered: sunny\nread failed: no such file"
    assert (await said(scripted(), *history, "and hurry")).endswith("And you said: and hurry")


async def test_what_it_was_told_is_done_once() -> None:
    talk = Talk(scripted())
    assert calls(await talk.tell("call shell {}")) == [("shell", "{}")]
    assert await talk.hears() == "Nothing new was said."


async def test_it_knows_the_tool_of_a_result_also_by_the_call() -> None:
    back = Message(message_id(), "user", (ToolResultBlock(call_id("c1"), (TextBlock("seen"),)),), PluginSource("p"))
    assert await said(scripted(), "go", calling("look"), back) == "look answered: seen"


async def test_it_thinks_at_the_highest_effort_of_the_model_only() -> None:
    adapter = scripted(models={"scripted": {"efforts": ["tiny", "huge"]}})
    for effort, thinks in ((None, False), ("tiny", False), ("huge", True)):
        found = await answer(adapter, "hello", reasoning_effort=effort and reasoning_effort_id(effort))
        assert any(isinstance(block, ReasoningBlock) for block in found.content) is thinks


async def test_it_fails_with_the_code_it_is_told() -> None:
    for words, code in (("fail RATE_LIMITED", "RATE_LIMITED"), ("Fail timeout", "TIMEOUT"), ("fail", "PROVIDER_ERROR")):
        reason = (await answer(scripted(), words)).reason
        assert isinstance(reason, Failed)
        assert reason.failure.code == code
    assert "fail better" in await said(scripted(), "Never fail better")


async def test_it_sums_up_and_names_sessions_without_repeating_everything() -> None:
    adapter = scripted()
    summary = await said(adapter, "first " + "x" * 1000, "last words", purpose="compaction")
    assert "first" in summary
    assert "last words" in summary
    assert len(summary) < 600
    assert await said(adapter, "one two three four five six seven", purpose="session-title") == (
        "one two three four five six"
    )


async def test_every_kind_of_garbage_gets_an_answer() -> None:
    odd = Message(message_id(), "user", (Extension("image", {"data": "x"}),), Extension("robot", {}))
    for messages in ([], ["\ud800 {{user}} {{x}}"], [odd], [result("")], ["" * 3], [user_message([])]):
        found = await answer(scripted(), *messages, session_id=session_id("\ud800"))
        assert found.content, messages
    assert "\ud800 {{user}} {{x}}" in await said(scripted(), "\ud800 {{user}} {{x}}")


# -- which rule answers ------------------------------------------------------------------------------------------------


async def test_the_first_rule_that_holds_answers_and_without_one_the_built_in_model_does() -> None:
    adapter = scripted(rules=[
        {"when": {"user": "WEATHER"}, "say": "one"},
        {"when": {"user": {"contains": "in", "matches": "R.me"}}, "say": "two"},
    ])  # fmt: skip
    assert await said(adapter, "the weather in Rome") == "one"
    assert await said(adapter, "in Rome") == "two"
    assert "in Paris" in await said(adapter, "in Paris")


async def test_words_that_were_answered_do_not_count_again_when_tool_results_come_back() -> None:
    talk = Talk(scripted(rules=[
        {"when": {"user": "weather"}, "call": {"tool": "weather"}},
        {"when": {"user": "weather", "result": {"tool": "weath*", "error": False}}, "say": "fine: {{tool_result}}"},
        {"when": {"result": {"error": True}}, "say": "{{tool}} broke"},
        {"say": "else"},
    ]))  # fmt: skip
    assert calls(await talk.tell("weather?")) == [("weather", "{}")]
    assert await talk.hears(result("sunny")) == "fine: sunny"
    assert await talk.hears() == "else"
    assert calls(await talk.tell("weather!")) == [("weather", "{}")]
    assert await talk.hears(result("sunny", error=True)) == "weather broke"
    assert await talk.hears(result("sunny", "other")) == "else"


async def test_of_several_results_the_one_that_was_asked_for_is_found() -> None:
    adapter = scripted(rules=[
        {"when": {"result": {"text": {"matches": "code (?P<code>\\d+)"}}}, "say": "{{tool}} {{code}} {{tool_result}}"}
    ])  # fmt: skip
    assert await said(adapter, "x", result("code 7", "a"), result("none", "b")) == "a 7 code 7"


async def test_context_from_plugins_is_nobodys_words() -> None:
    adapter = scripted(rules=[{"when": {"user": "hello"}, "say": "turn {{turn}} {{user}}"}])
    snapshot = user_message("it is noon", PluginSource("clock", Snapshot(())))
    assert await said(adapter, "hello", snapshot) == "turn 1 hello"
    relayed = user_message("hello from a plugin", PluginSource("other"))
    assert await said(adapter, snapshot, relayed) == "turn 1 hello from a plugin"


@pytest.mark.parametrize(
    ("when", "fits", "other"),
    [
        ({"system": "poet"}, {"system": "You are a Poet."}, {}),
        ({"offers": "read_*"}, {"tools": [tool("read_file")]}, {"tools": [tool("write")]}),
        ({"route": "fast"}, {"provider": "fast"}, {"provider": "slow"}),
        ({"model": "sm*"}, {"model": "small"}, {"model": "large"}),
        ({"effort": "high"}, {"reasoning_effort": "high"}, {}),
        ({"purpose": "compaction"}, {"purpose": "compaction"}, {"purpose": "session-title"}),
        ({}, {}, {"purpose": "compaction"}),
        ({"purpose": "any", "model": "m"}, {"model": "m", "purpose": "session-title"}, {}),
    ],
)
async def test_a_condition_looks_at_its_part_of_the_request(
    when: dict[str, Any], fits: dict[str, Any], other: dict[str, Any]
) -> None:
    adapter = scripted(rules=[{"when": when, "say": "yes"}])
    assert await said(adapter, "x", **fits) == "yes"
    assert await said(adapter, "x", **other) != "yes"


async def test_turns_and_requests_are_counted_by_conversation() -> None:
    adapter = scripted(rules=[
        {"when": {"turn": 2}, "say": "second turn"},
        {"when": {"request": {"every": 3}}, "say": "request {{count}}"},
        {"when": {"request": {"at_least": 5, "at_most": 6}}, "say": "late"},
        {"say": "-"},
    ])  # fmt: skip
    for _ in range(2):
        talk = Talk(adapter)
        heard = [await talk.hears(*words) for words in (["a"], ["b", "c"], ["d"], [], ["e"], [], [])]
        assert heard == ["-", "second turn", "request 3", "-", "late", "request 6", "-"]


async def test_an_auxiliary_call_does_not_count_as_a_request_of_the_conversation() -> None:
    adapter = scripted(rules=[{"say": "{{count}}"}])
    same = session_id()
    assert await said(adapter, "x", session_id=same) == "1"
    await said(adapter, "x", session_id=same, purpose="compaction")
    assert await said(adapter, "x", session_id=same) == "2"


async def test_a_rule_may_answer_so_many_times_in_each_conversation() -> None:
    adapter = scripted(rules=[{"times": 2, "fail": {"code": "RATE_LIMITED"}}, {"say": "at last"}])
    for _ in range(2):
        talk = Talk(adapter)
        assert [type((await talk.tell("x")).reason) for _ in range(3)] == [Failed, Failed, Stop]


async def test_chance_picks_the_same_requests_for_the_same_seed_and_session() -> None:
    async def picked(seed: int, share: float = 0.3) -> list[bool]:
        adapter = scripted(seed=seed, rules=[{"when": {"chance": share}, "say": "hit"}, {"say": "miss"}])
        return [await said(adapter, "x", session_id=session_id("s")) == "hit" for _ in range(100)]

    first = await picked(1)
    assert first == await picked(1)
    assert first != await picked(2)
    assert 15 < sum(first) < 45
    assert (sum(await picked(1, 0)), sum(await picked(1, 1))) == (0, 100)


# -- what is answered --------------------------------------------------------------------------------------------------


async def test_templates_are_completed_in_texts_names_and_arguments_and_their_values_are_not() -> None:
    adapter = scripted(rules=[{
        "when": {
            "user": {"matches": "(?P<what>.*) in (?P<place>\\w+)(?P<more>!)?"},
            "system": {"matches": "(?P<who>A)"},
        },
        "think": "{{who}}{{more}} {{model}} {{route}} {{effort}} {{tools}} {{turn}} {{count}} {{replay}}|",
        "say": "{{ what }} {user} {{user}}",
        "call": {"tool": "t_{{place}}", "arguments": {"a": ["{{place}}", 1, None, {"b": "{{what}}"}]}},
    }])  # fmt: skip
    found = await answer(
        adapter, "{{x}} in Rome", system="A", tools=[tool("a"), tool("b")], reasoning_effort=reasoning_effort_id("low")
    )
    assert found.content[0] == ReasoningBlock("A scripted scripted low a, b 1 1 |")
    assert found.content[1] == TextBlock("{{x}} {user} {{x}} in Rome")
    assert calls(found) == [("t_Rome", '{"a": ["Rome", 1, null, {"b": "{{x}}"}]}')]


async def test_raw_arguments_and_call_ids_are_as_written_and_others_are_new_ones() -> None:
    adapter = scripted(rules=[{"call": [
        {"tool": "a", "raw": '{"n": {{count}}, '},
        {"tool": "b", "id": "same"},
        {"tool": "b", "id": "same"},
        {"tool": "c", "id": ""},
    ]}])  # fmt: skip
    starts = [chunk for chunk in await chunks_of(adapter, "x") if isinstance(chunk, BlockStart)]
    more = [chunk for chunk in await chunks_of(adapter, "x") if isinstance(chunk, BlockStart)]
    assert [start.call_id for start in starts[1:]] == ["same", "same", ""]
    assert starts[0].call_id not in (None, "", more[0].call_id)
    bare = scripted(rules=[{"bare": True, "call": {"tool": "a", "id": "c", "raw": '{"n": {{count}}, '}}])
    assert (await chunks_of(bare, "x"))[0] == ToolCallDelta(0, '{"n": 1, ', call_id("c"), "a")


async def test_text_and_arguments_come_in_chunks_of_the_size_that_was_chosen() -> None:
    adapter = scripted(chunk=4, rules=[
        {"when": {"user": "own"}, "say": "abcdef", "chunk": 5},
        {"say": "abcdef", "call": {"tool": "t", "raw": "{12345}"}},
    ])  # fmt: skip
    found = await chunks_of(adapter, "x")
    assert [chunk.text for chunk in found if isinstance(chunk, TextDelta)] == ["abcd", "ef"]
    assert [chunk.arguments for chunk in found if isinstance(chunk, ToolCallDelta)] == ["{123", "45}"]
    own = await chunks_of(adapter, "own")
    assert [chunk.text for chunk in own if isinstance(chunk, TextDelta)] == ["abcde", "f"]


async def test_bare_and_interleaved_blocks_come_to_the_same_answer() -> None:
    reply = {
        "think": "hm hm", "say": "well then", "chunk": 2,
        "call": [{"tool": "a", "id": "1", "raw": ""}, {"tool": "b", "id": "2", "arguments": {"x": 1}}],
    }  # fmt: skip
    plain = await chunks_of(scripted(rules=[reply]), "x")
    seen = {tuple(map(repr, plain))}
    for shape in ({"bare": True}, {"interleave": True}, {"bare": True, "interleave": True}):
        found = await chunks_of(scripted(rules=[{**reply, **shape}]), "x")
        assert any(isinstance(chunk, (BlockStart, BlockEnd)) for chunk in found) is not shape.get("bare", False)
        assert assembled(found) == assembled(plain)
        seen.add(tuple(map(repr, found)))
    assert len(seen) == 4


async def test_an_answer_may_have_no_content_another_finish_and_replay_state() -> None:
    adapter = scripted(rules=[
        {"when": {"user": "nothing"}, "say": ""},
        {"when": {"user": "filter"}, "finish": "content-filter"},
        {"when": {"user": "cut"}, "say": "x", "finish": "max-tokens"},
        {"when": {"user": "keep"}, "say": "kept", "replay": {"n": [1]}},
        {"say": "state {{replay}}"},
    ])  # fmt: skip
    assert (await answer(adapter, "nothing")) == Assembled((), Stop(), (await answer(adapter, "nothing")).usage, None)
    assert (await answer(adapter, "filter")).reason == Extension("content-filter", {})
    assert (await answer(adapter, "cut")).reason == MaxTokens()
    talk = Talk(adapter)
    await talk.tell("keep")
    assert await talk.hears("what") == 'state {"n": [1]}'


# -- as it was asked ---------------------------------------------------------------------------------------------------


async def test_the_text_ends_before_the_first_stop_sequence_and_nothing_follows() -> None:
    adapter = scripted(rules=[{"think": "b", "say": "aaa b c", "call": {"tool": "t"}}])
    found = await answer(adapter, "x", stop=["c", " b"])
    assert found.content == (ReasoningBlock("b"), TextBlock("aaa"))
    assert found.reason == Stop()
    assert calls(await answer(adapter, "x", stop=["z"])) == [("t", "{}")]
    assert (await answer(adapter, "x", stop=["aaa"])).content == (ReasoningBlock("b"),)


async def test_the_output_cap_cuts_by_the_same_estimate_as_usage() -> None:
    adapter = scripted(rules=[{"think": "1234567", "say": "abcdefgh", "call": {"tool": "tool", "raw": "{}"}}])
    for cap in range(1, 8):
        found = await answer(adapter, "x", max_tokens=cap)
        assert found.usage is not None
        whole = cap >= 6  # 7 + 8 + 4 + 2 characters
        assert found.reason == (ToolCalls() if whole else MaxTokens())
        assert found.usage.output_tokens == min(cap, 6)
        assert "".join(getattr(block, "text", "") for block in found.content) == "1234567abcdefgh"[: cap * 4]


async def test_a_models_cap_counts_where_the_request_has_none() -> None:
    adapter = scripted(models={"m*": {"max_tokens": 1}}, rules=[{"say": "abcdefgh"}])
    assert await said(adapter, "x", model="m1") == "abcd"
    assert await said(adapter, "x", model="m1", max_tokens=2) == "abcdefgh"


async def test_a_request_without_room_in_the_context_window_fails_and_uses_up_no_reply() -> None:
    adapter = scripted(
        models={"*": {"context_window": 10}},
        rules=[{"script": "s"}],
        scripts={"s": {"replies": [{"say": "a" * 40}, {"say": "b"}]}},
    )
    for _ in range(2):
        reason = (await answer(adapter, "x" * 40)).reason
        assert isinstance(reason, Failed)
        assert reason.failure.code == "CONTEXT_WINDOW_EXCEEDED"
    found = await answer(adapter, "x" * 28)
    assert (found.reason, text_of(found.content)) == (MaxTokens(), "a" * 12)


async def test_usage_counts_every_part_and_the_repeated_prefix_as_read_from_the_cache() -> None:
    talk = Talk(scripted(rules=[{"say": "b" * 8}]), system="s" * 40)
    first = (await talk.tell("a" * 20)).usage
    second = (await talk.tell("c" * 12)).usage
    assert first is not None
    assert second is not None
    assert (first.input_tokens, first.cache_read_tokens, first.output_tokens) == (15, 0, 2)
    assert (second.input_tokens, second.cache_read_tokens) == (5, 15)
    talk.history[0] = user_message("a" * 20)
    third = (await talk.tell()).usage
    assert third is not None
    assert (third.input_tokens, third.cache_read_tokens) == (22, 0)


async def test_usage_may_be_given_in_part_or_withheld() -> None:
    adapter = scripted(rules=[
        {"when": {"user": "part"}, "think": "1234", "say": "x", "usage": {"input": 7, "cache_write": 3}},
        {"when": {"user": "broken"}, "say": "x", "drop": True, "usage": {"output": 9}},
        {"say": "x", "usage": "none"},
    ])  # fmt: skip
    usage = (await answer(adapter, "part")).usage
    assert usage is not None
    assert usage.to_json() == {
        "input_tokens": 7, "output_tokens": 2, "cache_read_tokens": 0, "cache_write_tokens": 3, "reasoning_tokens": 1,
    }  # fmt: skip
    assert isinstance((await chunks_of(adapter, "broken"))[-1], UsageReport)
    assert not any(isinstance(chunk, UsageReport) for chunk in await chunks_of(adapter, "x"))


# -- when it comes -----------------------------------------------------------------------------------------------------


@in_no_time
async def test_an_answer_waits_before_the_first_chunk_and_between_two() -> None:
    adapter = scripted(delay=5, pace=2, chunk=1, rules=[
        {"when": {"user": "own"}, "say": "ab", "delay": 3600, "pace": 0},
        {"say": "abc"},
    ])  # fmt: skip
    assert await arrivals(adapter, "x") == [5, 7, 9, 9]
    assert await arrivals(adapter, "own") == [3600, 3600, 3600]


@in_no_time
async def test_jitter_varies_pauses_within_its_share_the_same_for_each_seed() -> None:
    async def pauses(seed: int) -> list[float]:
        adapter = scripted(pace=10, jitter=0.2, chunk=1, seed=seed, rules=[{"say": "a" * 50}])
        times = await arrivals(adapter, "x", session_id=session_id("s"))
        return [round(later - sooner, 6) for sooner, later in pairwise(times[:-1])]

    first = await pauses(1)
    assert first == await pauses(1)
    assert first != await pauses(2)
    assert all(8 <= pause <= 12 for pause in first)
    assert max(first) - min(first) > 2


@in_no_time
async def test_the_signal_ends_delay_pause_and_stall_at_once() -> None:
    rules = [
        {"when": {"user": "delay"}, "say": "a", "delay": 3600},
        {"when": {"user": "pause"}, "say": "ab", "chunk": 1, "pace": 3600},
        {"when": {"user": "stall"}, "say": "a", "stall": True},
    ]
    for word, count in (("delay", 0), ("pause", 1), ("stall", 1)):
        aborter = Aborter()
        found: list[StreamChunk] = []
        codes: list[str] = []

        async def listen(asked: GenerateOptions, found: list[StreamChunk], codes: list[str]) -> None:
            try:
                async for chunk in scripted(rules=rules).stream(asked):
                    found.append(chunk)
            except LlmError as exc:
                codes.append(exc.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen, request(word, signal=aborter.signal), found, codes)
            await anyio.sleep(100)
            aborter.abort("enough")
            begun = anyio.current_time()
        assert anyio.current_time() == begun
        assert sum(isinstance(chunk, TextDelta) for chunk in found) == count
        assert codes == ["ABORTED"]


async def test_a_long_answer_without_pauses_lets_others_run() -> None:
    adapter = scripted(models={"*": {"context_window": None}}, chunk=1, rules=[{"say": "a" * 10_000}])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        assert await said(adapter, "x") == "a" * 10_000
        tasks.cancel_scope.cancel()
    assert turns > 100


@in_no_time
async def test_counting_leaves_time_to_interrupt_it() -> None:
    times = await arrivals(scripted(), "count to 50")
    assert len(times) == 51
    assert times[-1] == pytest.approx(49 * 0.2)


# -- how it ends -------------------------------------------------------------------------------------------------------


async def test_a_failure_comes_after_the_content_or_so_many_chunks_of_it() -> None:
    failure = {
        "code": "RATE_LIMITED", "message": "wait, {{model}}", "status": 429, "retry_after": 1.5, "request_id": "r1",
    }  # fmt: skip
    for after, text in ((None, "abcdef"), (0, ""), (2, "abcd"), (9, "abcdef")):
        reply = {"say": "abcdef", "chunk": 2, "fail": failure} | ({} if after is None else {"after": after})
        found = await chunks_of(scripted(rules=[reply]), "x")
        assert "".join(chunk.text for chunk in found if isinstance(chunk, TextDelta)) == text
        last = found[-1]
        assert isinstance(last, Finish)
        assert isinstance(last.reason, Failed)
        assert last.reason.failure.to_json() == {
            "message": "wait, scripted", "code": "RATE_LIMITED", "status": 429, "provider_retry_after_ms": 1500,
            "request_id": "r1",
        }  # fmt: skip
        if after == 0:
            assert len(found) == 1


async def test_a_failure_may_be_raised_and_a_cancelled_call_is_one_of_its_own() -> None:
    adapter = scripted(rules=[
        {"when": {"user": "raise"}, "say": "a", "fail": {"code": "AUTH", "raises": True}},
        {"fail": {"code": "ABORTED"}},
    ])  # fmt: skip
    found: list[StreamChunk] = []

    async def read() -> None:
        async for chunk in adapter.stream(request("raise")):
            found.append(chunk)

    with pytest.raises(LlmError) as raised:
        await read()
    assert raised.value.code == "AUTH"
    assert TextDelta(0, "a") in found
    assert not any(isinstance(chunk, Finish) for chunk in found)
    assert isinstance((await answer(adapter, "x")).reason, Aborted)


async def test_a_dropped_stream_ends_without_a_finish_in_the_middle_of_a_block() -> None:
    adapter = scripted(rules=[{"call": {"tool": "t", "raw": "{12345}"}, "chunk": 2, "after": 2, "drop": True}])
    found = await chunks_of(adapter, "x")
    assert [type(chunk) for chunk in found] == [BlockStart, ToolCallDelta, ToolCallDelta]


# -- scripts -----------------------------------------------------------------------------------------------------------

SAYS = [{"say": "one"}, {"say": "two"}]


@pytest.mark.parametrize(
    ("at_end", "heard"),
    [
        ("loop", ["one", "two", "one", "two"]),
        ("stay", ["one", "two", "two", "two"]),
        ("pass", ["one", "two", "else", "else"]),
        ("fail", ["one", "two", "INVALID_REQUEST", "INVALID_REQUEST"]),
    ],
)
async def test_a_script_is_played_in_each_conversation_and_then_does_as_configured(
    at_end: str, heard: list[str]
) -> None:
    adapter = scripted(rules=[{"script": "s"}, {"say": "else"}], scripts={"s": {"replies": SAYS, "at_end": at_end}})
    first, second = Talk(adapter), Talk(adapter)
    for expected in heard:
        for talk in (first, second):
            found = await talk.tell("x")
            reason = found.reason
            assert (reason.failure.code if isinstance(reason, Failed) else text_of(found.content)) == expected


async def test_requests_at_the_same_time_get_different_replies_of_a_script() -> None:
    adapter = scripted(rules=[{"script": "s"}], scripts={"s": {"replies": [{"say": str(n)} for n in range(9)]}})
    heard: list[str] = []

    async def ask() -> None:
        heard.append(await said(adapter, "x", session_id=session_id("s")))

    async with anyio.create_task_group() as tasks:
        for _ in range(9):
            tasks.start_soon(ask)
    assert sorted(heard) == [str(n) for n in range(9)]


async def test_calls_without_a_session_share_one_sequence() -> None:
    adapter = scripted(rules=[{"script": "s"}], scripts={"s": {"replies": SAYS}})
    assert [await said(adapter, "a"), await said(adapter, "b")] == ["one", "two"]


async def test_replies_of_a_script_may_use_what_the_rule_found() -> None:
    adapter = scripted(
        rules=[{"when": {"user": {"matches": "I am (?P<name>\\w+)"}}, "script": "s"}],
        scripts={"s": {"replies": [{"say": "Hello, {{name}}."}]}},
    )
    assert await said(adapter, "I am Ada") == "Hello, Ada."


async def test_the_conversation_that_was_silent_for_longest_is_forgotten_first() -> None:
    memory = Memory()
    memory.of(("first", ""))["x"] = 1
    memory.of(("second", ""))["x"] = 2
    memory.of(("first", ""))
    for number in range(MOST - 1):
        memory.of((str(number), ""))
    assert memory.of(("first", "")) == {"x": 1}
    assert memory.of(("second", "")) == {}


# -- what is on offer --------------------------------------------------------------------------------------------------


async def test_models_are_described_as_listed_or_by_the_longest_pattern_or_by_default() -> None:
    adapter = scripted(
        routes={"fast": {"name": "Fast"}, "own": {"models": {"o": {}}}},
        models={
            "small": {"name": "Small", "context_window": 8000, "max_tokens": 100, "efforts": ["a", "b"],
                      "default_effort": "b", "description": "A small one."},
            "*": {"context_window": 1}, "*-big": {"context_window": 2, "efforts": []}, "a*": {"context_window": 3},
        },
    )  # fmt: skip
    assert adapter.provider_info("fast").name == "Fast"
    assert adapter.provider_info("own").name == "own"
    assert [(model.id, model.name) for model in await adapter.list_models("fast")] == [("small", "Small")]
    assert [model.id for model in await adapter.list_models("own")] == ["o"]
    small = await adapter.resolve_model("fast", "small", None)
    assert small is not None
    assert small.context is not None
    assert small.reasoning is not None
    assert (small.context.context_window, small.default_max_tokens, small.description) == (8000, 100, "A small one.")
    assert [effort.id for effort in small.reasoning.efforts] == ["a", "b"]
    assert small.reasoning.default_effort == "b"
    for route, model, window in (("fast", "a-big", 2), ("fast", "x", 1), ("own", "x", 128_000)):
        found = await adapter.resolve_model(route, model, None)
        assert found is not None
        assert found.context is not None
        assert found.context.context_window == window


async def test_a_draft_of_one_of_its_routes_is_answered_from_what_it_knows_and_others_are_not() -> None:
    adapter = scripted(models={"m": {"context_window": 5, "max_tokens": 2}, "*": {}})
    (found,) = await adapter.discover_models(ModelDiscoveryRequest(provider="scripted"))
    assert (found.id, found.context_window, found.max_tokens) == ("m", 5, 2)
    with pytest.raises(LlmError) as raised:
        await adapter.discover_models(ModelDiscoveryRequest(base_url="http://localhost"))
    assert raised.value.code == "NO_DISCOVERY"


async def test_the_retry_policy_is_the_configured_one() -> None:
    assert scripted().retry_policy("scripted") is None
    policy = scripted(retry={"max_retries": 2, "initial_delay": 0.01, "jitter": 0}).retry_policy("scripted")
    assert policy is not None
    assert (policy.max_retries, policy.initial_delay_ms, policy.max_delay_ms, policy.jitter_ratio) == (2, 10, 60_000, 0)


# -- mistakes in the YAML ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "place", "words"),
    [
        ({"routes": {}}, ("routes",), "is empty"),
        ({"models": {"m": {"default_effort": "x"}}}, ("models", "m", "default_effort"), "low, medium, high"),
        ({"models": {"m": {"efforts": ["a", "a"]}}}, ("models", "m", "efforts"), "twice"),
        ({"rules": [{}]}, ("rules", 0), "answers nothing"),
        ({"rules": [{"say": "{{x}}"}]}, ("rules", 0, "say"), "{{x}} stands for nothing"),
        ({"rules": [{"fail": {"message": "{{x}}"}}]}, ("rules", 0, "fail", "message"), "{{x}}"),
        ({"rules": [{"call": [{"tool": "{{x}}"}]}]}, ("rules", 0, "call", 0, "tool"), "{{x}}"),
        (
            {"rules": [{"call": {"tool": "t", "arguments": {"a": [1, "{{x}}"]}}}]},
            ("rules", 0, "call", "arguments", "a", 1),
            "{{x}}",
        ),
        ({"rules": [{"say": "x", "finish": "aborted"}]}, ("rules", 0, "finish"), "`fail`"),
        ({"rules": [{"say": "x", "finish": "stop", "stall": True}]}, ("rules", 0, "stall"), "another end"),
        ({"rules": [{"say": "x", "after": 1}]}, ("rules", 0, "after"), "`fail`, `stall` or `drop`"),
        ({"rules": [{"script": "s"}]}, ("rules", 0, "script"), "no script 's'"),
        ({"rules": [{"script": "s", "say": "x"}]}, ("rules", 0, "say"), "plays a script"),
        (
            {"rules": [{"script": "s"}], "scripts": {"s": {"replies": [{"say": "{{x}}"}]}}},
            ("scripts", "s", "replies", 0, "say"),
            "rules[0]",
        ),
        (
            {"rules": [{"when": {"user": {"matches": "(?P<user>a)"}}, "say": "x"}]},
            ("rules", 0, "when", "user", "matches"),
            "taken",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_field(config: dict[str, Any], place: tuple[str | int, ...], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        LlmScripted.model_validate(config)
    (error,) = raised.value.errors()
    assert error["loc"] == place
    assert words in error["msg"]


def test_a_bad_expression_and_values_that_are_no_json_are_reported_at_their_fields() -> None:
    with pytest.raises(ValidationError) as raised:
        LlmScripted.model_validate({"rules": [
            {"when": {"user": {"matches": "("}}, "call": {"tool": "t", "arguments": {"a": float("nan")}}}
        ]})  # fmt: skip
    found = {error["loc"][-1]: error["msg"] for error in raised.value.errors()}
    assert "is no regular expression" in found["matches"]
    assert "JSON has no nan" in found["arguments"]


# -- the contract ------------------------------------------------------------------------------------------------------


class Counting(ScriptedAdapter):
    """Counts the streams that are open."""

    held = attempts = 0

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.held, self.attempts = self.held + 1, self.attempts + 1
        try:
            async for chunk in super().stream(request):
                yield chunk
        finally:
            self.held -= 1


class UnderTest(AdapterUnderTest):
    """Each answer is the reply to the request of its number."""

    def __init__(self) -> None:
        self.replies: list[Mapping[str, Any]] = []
        self.memory = Memory()
        self.adapter: Counting
        self._answer_by_replies()

    def arrange(self, answer: Answer) -> None:
        ends: dict[str, Mapping[str, Any]] = {
            "fine": {}, "fail": {"fail": {"code": "RATE_LIMITED"}}, "drop": {"fail": {"code": "TRUNCATED"}},
            "stall": {"stall": True},
        }  # fmt: skip
        usage = answer.usage and {"input": answer.usage.input_tokens, "output": answer.usage.output_tokens}
        called = [{"tool": name, "raw": raw} for name, raw in answer.calls]
        reply = {"say": "".join(answer.text), "call": called or None, "usage": usage, "chunk": 1, **ends[answer.end]}
        self.replies.append(reply)
        self._answer_by_replies()

    def _answer_by_replies(self) -> None:
        rules = [{"when": {"request": number}, **reply} for number, reply in enumerate(self.replies, 1)]
        self.adapter = Counting({self.provider: Route()}, LlmScripted.model_validate({"rules": rules}), self.memory)

    @property
    def held(self) -> int:
        return self.adapter.held

    @property
    def attempts(self) -> int:
        return self.adapter.attempts


class TestContract(AdapterContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AdapterUnderTest]:
        yield UnderTest()


# -- in the daemon -----------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def service(root: Context) -> Llm:
    found = root.get(LLM)
    assert found is not None
    return found


async def told(root: Context, text: str, **options: Any) -> str:
    """What the service streams in answer."""
    async with service(root).stream(request(text, **options)) as stream:
        return text_of(assembled([chunk async for chunk in stream]).content)


async def test_it_serves_a_route_named_like_its_row_and_any_model() -> None:
    async with running(llm) as root:
        await root.plugin(llm_scripted, id="echo").settled()
        assert [info.id for info in service(root).list_providers()] == ["echo"]
        assert [model.id for model in await service(root).list_models("echo")] == ["scripted"]
        assert "hello" in await told(root, "hello", provider="echo", model="whatever")


async def test_the_service_fills_in_what_the_model_declares_and_refuses_another_effort() -> None:
    models = {"m": {"efforts": ["a", "b"], "default_effort": "a", "max_tokens": 7}}
    async with running(llm, (llm_scripted, {"routes": {"r": {}}, "models": models})) as root:
        async with service(root).prepare_call(LlmCallConfig(provider="r", model="m")) as call:
            assert (call.config.reasoning_effort, call.config.max_tokens) == ("a", 7)
            assert call.header().adapter_defaults == {"reasoning_effort", "max_tokens"}
        with pytest.raises(LlmError) as raised:
            async with service(root).prepare_call(
                LlmCallConfig(provider="r", model="m", reasoning_effort=reasoning_effort_id("c"))
            ):
                pass
        assert raised.value.code == "UNSUPPORTED_EFFORT"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ({"say": "abc", "drop": True}, "TRUNCATED"),
        ({"say": "abc", "fail": {"code": "AUTH"}}, "AUTH"),
        ({"say": "abc", "fail": {"code": "AUTH", "raises": True}}, "AUTH"),
    ],
)
async def test_every_trouble_leaves_the_service_as_one_finish(reply: dict[str, Any], code: str) -> None:
    async with running(llm, (llm_scripted, {"rules": [reply], "routes": {"scripted": {}}})) as root:
        async with service(root).stream(request("x")) as stream:
            chunks = [chunk async for chunk in stream]
        reasons = [chunk.reason for chunk in chunks if isinstance(chunk, Finish)]
        assert len(reasons) == 1
        assert isinstance(reasons[0], Failed)
        assert reasons[0].failure.code == code


async def test_a_stalled_stream_is_let_go_at_once() -> None:
    config = {"rules": [{"say": "a", "stall": True}], "routes": {"scripted": {}}}
    async with running(llm, (llm_scripted, config)) as root:
        with anyio.move_on_after(0.05) as scope:
            await told(root, "x")
        assert scope.cancelled_caught


HEAD = "plugins:\n  llm: {}\n  scripted:\n    use: llm_scripted\n    config:\n"


def tree(**config: Any) -> str:
    return HEAD + "".join(f"      {name}: {json.dumps(value)}\n" for name, value in config.items())


async def test_an_edit_changes_the_next_answer_and_no_stream_in_progress(site: Site) -> None:
    site.write(tree(chunk=2, rules=[{"say": "old answer"}]))
    with anyio.fail_after(DEADLINE):
        async with site.running():
            async with service(site.root).stream(request("x")) as stream:
                chunks = [await anext(stream), await anext(stream)]
                edited = await site.edit(tree(chunk=2, rules=[{"say": "new answer"}]))
                assert edited.result is Outcome.COMMITTED
                assert await told(site.root, "x") == "new answer"
                chunks += [chunk async for chunk in stream]
            assert text_of(assembled(chunks).content) == "old answer"
            assert assembled(chunks).reason == Stop()


async def test_scripts_and_counts_go_on_over_edits_of_other_fields_and_a_changed_script_begins_anew(
    site: Site,
) -> None:
    def said(last: str, **more: Any) -> str:
        rules = [{"when": {"user": "once"}, "times": 1, "say": "once"}, {"script": "s"}]
        return tree(rules=rules, scripts={"s": {"replies": [{"say": "1"}, {"say": "2"}, {"say": last}]}}, **more)

    site.write(said("3"))
    with anyio.fail_after(DEADLINE):
        async with site.running():
            assert [await told(site.root, "once"), await told(site.root, "once")] == ["once", "1"]
            for edit in (said("3", pace="1ms"), said("3", chunk=3), tree(rules=[]), said("3", seed=4)):
                assert (await site.edit(edit)).result is Outcome.COMMITTED
            assert await told(site.root, "once") == "2"
            await site.edit(said("three"))
            assert [await told(site.root, "once") for _ in range(3)] == ["1", "2", "three"]


async def test_another_realm_of_the_service_is_another_memory(site: Site) -> None:
    row = {"config": {"rules": [{"say": "{{count}}"}]}, "use": "llm_scripted"}
    group = {"group": {"llm": {}, "scripted": row}}

    def written(**more: Any) -> str:
        return json.dumps({"plugins": {"g": {**group, **more}}})

    site.write(written())
    with anyio.fail_after(DEADLINE):
        async with site.running():
            assert [await told(site.root, "x"), await told(site.root, "x")] == ["1", "2"]
            assert (await site.edit(written(isolate={"llm": "room"}))).result is Outcome.COMMITTED
            assert await told(site.root.isolate(LLM, "room"), "x") == "1"


async def test_a_mistake_in_the_yaml_is_reported_with_its_line_and_changes_nothing(site: Site) -> None:
    site.write(tree(rules=[{"say": "fine"}]))
    with anyio.fail_after(DEADLINE):
        async with site.running():
            broken = tree(seed=1) + "      rules:\n        - say: fine\n        - say: Hello, {{name}}\n"
            (issue,) = errors(await site.edit(broken))
            assert (issue.code, issue.line, issue.col) == ("E0404", 9, 16)
            assert "config.rules[1].say" in issue.message
            assert await told(site.root, "x") == "fine"


def test_the_example_is_accepted_by_the_command_line(tmp_path: Path) -> None:
    example = ROOT / "configs/examples/scripted.yaml"
    command = [sys.executable, "-m", "dshd", "check", "--json", "--config", str(example), "--state-dir", str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DSHD_", "XDG_"))}
    done = subprocess.run(command, env=clean, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["issues"]) == (0, []), done.stdout


async def test_the_example_starts_and_answers(site: Site) -> None:
    site.write((ROOT / "configs/examples/scripted.yaml").read_text("utf-8"))
    with anyio.fail_after(DEADLINE):
        async with site.running(strict=True) as reconciler:
            assert {fiber.state for fiber in site.instances.values()} == {FiberState.ACTIVE}
            assert sorted(reconciler.specs) == ["echo", "llm", "scripted"]
            one = session_id("one")
            assert "OCT 31" in await told(site.root, "a joke", session_id=one)
            async with service(site.root).stream(request("weather in Rome", tools=[tool("weather")])) as stream:
                assert calls(assembled([chunk async for chunk in stream])) == [("weather", '{"city": "Rome"}')]
