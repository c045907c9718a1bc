"""Conversations without a driver, on a real tree that is edited all the while: nothing is lost, nothing is cut."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from dshd import Config, Context, RegistryKey, ServiceKey, plugin
from dshd.capabilities.llm import LLM, BlockAssembler, EpochHeader, Finish, LlmCallConfig, Stop, ToolCalls
from dshd.capabilities.prompt import PROMPT, assemble_context_for
from dshd.capabilities.session import (
    SESSION_EVENT,
    SESSIONS,
    AssistantChunk,
    AssistantMessage,
    RequestHeader,
    Session,
    SessionAppended,
    StepEnd,
    StepStart,
    ToolCalled,
    ToolResult,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.tools import TOOLS, ToolCall, ToolSuccess, tool
from dshd.capabilities.values import (
    Message,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    message_id,
    text_of,
    user_message,
)
from dshd.loader.result import Outcome
from dshd.testing.loader import Site

pytestmark = pytest.mark.anyio

DEADLINE = 60
TURNS = 40
HERE = "tests.plugins.test_under_reload"
CONTEXTS = RegistryKey[Context]("test context")
HEARD = RegistryKey["dict[str, list[int]]"]("test heard")


class Weather(Config):
    wind: int = 0


@plugin("driver", inject=[LLM, PROMPT, SESSIONS, TOOLS])
async def driver(ctx: Context, config: Config) -> None:
    """Stands for the agents: a row that stays, whose steps lease what they see."""
    ctx.registry(CONTEXTS).add("driver", ctx)


@plugin("observer")
async def observer(ctx: Context, config: Config) -> None:
    """Hears everything that is logged, from first to last."""
    heard: dict[str, list[int]] = {}

    def hear(appended: SessionAppended) -> None:
        heard.setdefault(appended.session.id, []).append(appended.event.seq)

    ctx.on(SESSION_EVENT, hear)
    ctx.registry(HEARD).add("observer", heard)


@plugin("weather", config=Weather, inject=[TOOLS, PROMPT])
async def weather_tool(ctx: Context, config: Weather) -> None:
    """A tool, with a word about it in the prompt."""

    @tool(mode="parallel")
    async def weather(city: str) -> str:
        """The weather of a city."""
        await anyio.lowlevel.checkpoint()
        return f"sunny in {city}"

    ctx[TOOLS].register(weather)
    ctx[PROMPT].section("about the weather", f"The wind is {config.wind}.")


ROWS = ("llm", "sessions", "tools", "prompt", "scripted", "weather")
RULES = [
    {
        "when": {"user": {"matches": "weather in (?P<place>\\w+)"}},
        "call": {"tool": "weather", "arguments": {"city": "{{place}}"}},
    },
    {"when": {"result": {"tool": "weather"}}, "say": "It is {{tool_result}}."},
    {"say": "You said {{user}}."},
]


def tree(edits: Counter[str]) -> str:
    """The configuration after so many edits of each row; each edit makes a new instance of the row."""
    rows: dict[str, Any] = {
        "driver": {"use": f"{HERE}:driver"},
        "observer": {"use": f"{HERE}:observer"},
        "weather": {"use": f"{HERE}:weather_tool", "config": {"wind": edits["weather"]}},
        "scripted": {"use": "llm_scripted", "config": {"rules": RULES, "chunk": 3, "seed": edits["scripted"]}},
        "tools": {"config": {"cancel_grace": 10 + edits["tools"]}},
        "prompt": {"config": {"persona": f"You are number {edits['prompt']}."}},
        "llm": {"optional": bool(edits["llm"] % 2)},
        "sessions": {"optional": bool(edits["sessions"] % 2)},
    }
    return json.dumps({"plugins": rows})


async def step(ctx: Context, session: Session, turn: int, number: int) -> list[ToolCallBlock]:
    """One request and the tools it asks for, all under one lease, logged as an agent's loop does."""
    with ctx.scoped(session.scope).leased(f"step {turn}.{number}") as view:
        llm, prompt, tools = view.get(LLM), view.get(PROMPT), view.get(TOOLS)
        assert llm is not None
        assert prompt is not None
        assert tools is not None
        session.append(StepStart(turn, number))
        assembly = await prompt.assemble(assemble_context_for(session))
        async with llm.prepare_call(LlmCallConfig(provider="scripted", model="any")) as call:
            header = call.header(assembly.render(), assembly.tools)
            if header != session.request_header:
                session.append(RequestHeader(header, "change" if session.request_header else "initial"))
            request = header.request(session.derive_messages(), session_id=session.id, scope=session.scope)
            assembler, seqs, last = BlockAssembler(f"call-{turn}-{number}"), [], None
            async with call.stream(request) as chunks:
                async for chunk in chunks:
                    seqs.append(session.append(AssistantChunk(turn, number, chunk)).seq)
                    assembler.feed(chunk)
                    last = chunk
                    await anyio.lowlevel.checkpoint()
        assert isinstance(last, Finish)
        assert isinstance(last.reason, (Stop, ToolCalls)), last
        done = assembler.result()
        message = done.message("scripted", "any")
        session.append(AssistantMessage(turn, number, message, done.usage), source_event_seqs=seqs)
        calls = [block for block in done.content if isinstance(block, ToolCallBlock)]
        for block in calls:
            session.append(ToolCalled(turn, number, block.id, block.name, block.arguments))
            outcome = await tools.execute(ToolCall(id=block.id, name=block.name, raw_arguments=block.arguments))
            assert isinstance(outcome, ToolSuccess), outcome
            result = ToolResultBlock(block.id, outcome.content)
            session.append(ToolResult(turn, number, Message(message_id(), "user", (result,), ToolSource(block.name))))
        session.append(StepEnd(turn, number))
    return calls


async def converse(ctx: Context, session: Session, turns: int, chance: random.Random) -> None:
    tools = ctx.scoped(session.scope)[TOOLS]
    tools.restrict(allow=["weather"])
    for turn in range(1, turns + 1):
        session.append(TurnStart(turn))
        asks = chance.random() < 0.5
        said = f"what is the weather in Town{turn}" if asks else f"words {session.id} {turn}"
        session.append(UserMessageAdded(user_message(said)))
        number = 1
        while await step(ctx, session, turn, number):
            number += 1
        answer = text_of(session.derive_messages()[-1].content)
        assert answer == (f"It is sunny in Town{turn}." if asks else f"You said {said}.")
        session.append(TurnEnd(turn, TurnEndReason("completed")))


def requests_of(session: Session) -> list[tuple[EpochHeader, int]]:
    """Each request as the log tells of it: the header in effect, and after which event it was made."""
    found, header = [], None
    for event in session.events:
        if isinstance(event.data, RequestHeader):
            header = event.data.header
        elif isinstance(event.data, AssistantMessage):
            assert header is not None
            found.append((header, event.seq))
    return found


@pytest.mark.parametrize("seed", range(2))
async def test_every_row_may_be_replaced_at_any_moment_without_losing_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    site, edits = Site(tmp_path), Counter[str]()
    site.write(tree(edits))
    with anyio.fail_after(DEADLINE):
        async with site.running():
            ctx = site.root.registry(CONTEXTS)["driver"]
            first = site.instances
            sessions = [ctx[SESSIONS].create() for _ in range(8)]
            running = len(sessions)
            async with anyio.create_task_group() as tasks:

                async def talk(session: Session) -> None:
                    nonlocal running
                    await converse(ctx, session, TURNS, random.Random(f"{seed} {session.id}"))
                    running -= 1

                for session in sessions:
                    tasks.start_soon(talk, session)
                reloads = 0
                while running:
                    edits.update(chance.sample(ROWS, chance.randint(1, len(ROWS))))
                    assert (await site.edit(tree(edits))).result is Outcome.COMMITTED
                    reloads += 1
            assert reloads > 10
            last = site.instances
            assert {path for path in first if first[path] is last[path]} == {"driver", "observer"}
            store = ctx[SESSIONS]
            assert store.list() == sessions
            assert [provider.id for provider in ctx[LLM].list_providers()] == ["scripted"]
            assert [schema.name for schema in ctx[TOOLS].schemas()] == ["weather"]
            heard = site.root.registry(HEARD)["observer"]
            for session in sessions:
                assert [event.seq for event in session.events] == list(range(len(session.events)))
                assert heard[session.id] == list(range(len(session.events)))
                assert session.last_turn == TURNS
                assert session.open_turn is None
            headers = {header.system for session in sessions for header, _ in requests_of(session)}
            assert len(headers) > 3, "the edits reached the requests"
            assert all(text is not None and "You are number" in text and "The wind is" in text for text in headers)
            await site.until(lambda: not site.root.kernel.leases)


async def test_a_chain_of_edits_offers_what_a_cold_start_on_the_same_files_offers(tmp_path: Path) -> None:
    def offered(site: Site) -> object:
        ctx = site.root.registry(CONTEXTS)["driver"]
        return ctx[LLM].directory(), ctx[TOOLS].schemas(), sorted(site.instances)

    async def prompt(site: Site) -> str:
        ctx = site.root.registry(CONTEXTS)["driver"]
        return (await ctx[PROMPT].assemble(assemble_context_for(ctx[SESSIONS].prepare()))).render()

    chance, edits = random.Random(7), Counter[str]()
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    warm.mkdir()
    cold.mkdir()
    site = Site(warm)
    site.write(tree(edits))
    with anyio.fail_after(DEADLINE):
        async with site.running():
            for _ in range(12):
                edits.update(chance.sample(ROWS, 3))
                await site.edit(tree(edits))
            chained = offered(site), await prompt(site)
        other = Site(cold)
        other.write(tree(edits))
        async with other.running():
            assert (offered(other), await prompt(other)) == chained


def test_each_service_of_the_vocabulary_has_a_row_of_its_own_in_the_core_bundle() -> None:
    text = (Path(__file__).parents[2] / "plugins" / "bundles" / "core.yaml").read_text("utf-8")
    keys: list[ServiceKey[Any]] = [LLM, SESSIONS, TOOLS, PROMPT]
    assert [key.name for key in keys if f"\n  {key.name}: " not in text] == []
