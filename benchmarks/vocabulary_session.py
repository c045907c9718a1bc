"""What a session costs: appending, streaming, deriving. A part of `vocabulary.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.kernel import RUNS, Row, at_least, at_most
from dshd import Config, Context, Plugin, plugin
from dshd.capabilities.llm import BlockAssembler
from dshd.capabilities.llm.stream import Finish, Stop, StreamChunk, TextDelta, TokenUsage, ToolCallDelta, UsageReport
from dshd.capabilities.session import (
    SESSION_EVENT,
    SESSIONS,
    AssistantChunk,
    AssistantMessage,
    Replace,
    Session,
    SessionAppended,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    UserMessageAdded,
)
from dshd.capabilities.values import CallId, user_message
from dshd.testing.kernel import running
from dshd_plugins.sessions import sessions

NEVER = float("inf")


@plugin("creating", inject=[SESSIONS])
async def creating(ctx: Context, config: Config) -> None:
    ctx[SESSIONS].create()


def listening(count: int) -> Plugin[Config]:
    @plugin("listening")
    async def body(ctx: Context, config: Config) -> None:
        for _ in range(count):

            def hear(appended: SessionAppended) -> None:
                pass

            ctx.on(SESSION_EVENT, hear)

    return body


def live(root: Context) -> Session:
    found = root.get(SESSIONS)
    assert found is not None
    return found.list()[0]


def seconds(work: Callable[[], object], count: int = 1) -> list[float]:
    """How long one took, in each run."""
    found = []
    for run in range(RUNS + 1):
        begun = time.perf_counter()
        for _ in range(count):
            work()
        if run:
            found.append((time.perf_counter() - begun) / count)
    return found


def asked(number: int) -> UserMessageAdded:
    return UserMessageAdded(user_message(f"question {number}"))


async def appends() -> list[Row]:
    rows = []
    for count, goal in ((0, 0.0), (3, 300_000.0)):
        async with running(sessions, creating, listening(count)) as root:
            session = live(root)
            pieces = [AssistantChunk(1, 1, TextDelta(0, f"word {number}")) for number in range(50_000)]

            def log(session: Session = session, pieces: list[AssistantChunk] = pieces) -> None:
                append = session.append
                for piece in pieces:
                    append(piece)

            figures = [len(pieces) / each for each in seconds(log)]
            rows.append(at_least(f"append of a chunk, {count} listeners", figures, goal, "–"))
            messages = [asked(number) for number in range(2000)]

            def say(session: Session = session, messages: list[UserMessageAdded] = messages) -> None:
                for message in messages:
                    session.append(message)

            figures = [len(messages) / each for each in seconds(say)]
            rows.append(at_least(f"append of a message, {count} listeners", figures, 0, "–"))
    return rows


def stream(length: int) -> list[StreamChunk]:
    """An answer: text, then a tool call, in `length` chunks."""
    text: list[StreamChunk] = [TextDelta(0, f"word {number} ") for number in range(length - 42)]
    call: list[StreamChunk] = [ToolCallDelta(1, "", CallId("call-1"), "search")]
    call += [ToolCallDelta(1, f'"key {number}": {number}, ') for number in range(39)]
    return [*text, *call, UsageReport(TokenUsage(input_tokens=900, output_tokens=length)), Finish(Stop())]


async def streams() -> list[Row]:
    async with running(sessions, creating, listening(3)) as root:
        session = live(root)
        chunks = stream(200)

        def step() -> None:
            session.append(StepStart(1, 1))
            assembler = BlockAssembler()
            seqs = []
            for chunk in chunks:
                seqs.append(session.append(AssistantChunk(1, 1, chunk)).seq)
                assembler.feed(chunk)
            done = assembler.result()
            message = done.message("deepseek", "chat")
            session.append(AssistantMessage(1, 1, message, done.usage), source_event_seqs=seqs)
            session.append(StepEnd(1, 1))

        figures = [each * 1e3 for each in seconds(step, 20)]
        return [at_most("200 chunks assembled and logged", "ms", figures, 3, "–")]


async def histories() -> list[Row]:
    rows = []
    for length, goal in ((100, NEVER), (10_000, 50.0)):
        async with running(sessions, creating, listening(3)) as root:
            session = live(root)
            session.append(TurnStart(1))
            for number in range(length):
                session.append(asked(number))
            figures = []
            for _ in range(RUNS * 5):
                session.append(asked(0))
                begun = time.perf_counter()
                session.derive_messages()
                figures.append((time.perf_counter() - begun) * 1e6)
            rows.append(at_most(f"derive after one more of {length} messages", "µs", figures, goal, "–"))
            nodes = session.surface()
            begun = time.perf_counter()
            session.append(asked(0), surface_op=Replace(nodes[1], nodes[-2]))
            taken = (time.perf_counter() - begun) * 1e3
            rows.append(at_most(f"replace all but two of {length} messages", "ms", [taken], NEVER, "–"))
            session.append(TurnEnd(1, TurnEndReason("completed")))
            store = root.get(SESSIONS)
            assert store is not None
            events = list(session.events)
            forked = [each * 1e3 for each in seconds(partial(store.fork, session))]
            rows.append(at_most(f"fork a log of {len(events)} events", "ms", forked, NEVER, "–"))
            prepared = [each * 1e3 for each in seconds(partial(store.prepare, seed=events))]
            rows.append(at_most(f"prepare a session from {len(events)} events", "ms", prepared, NEVER, "–"))
    return rows


async def measurements() -> list[Row]:
    return [*await appends(), *await streams(), *await histories()]
