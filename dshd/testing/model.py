"""`ScriptedModel`: a model for tests that says what it is told to, and remembers what it was asked.

    model = ScriptedModel()
    model.reply(calls=[("read", {"path": "a.txt"})])
    model.reply("The file is empty.", usage=TokenUsage(input_tokens=90, output_tokens=5))
    async with running(llm, model.plugin("scripted"), …) as root:
        …
    assert model.requests[1].messages[-1].source == ToolSource("read")
    assert model.open == 0

Answers are given in the order in which they were queued, one for each request. A pause holds one back where the test
says so, until the test lets it go on:

    pause = model.reply(["Hel", "lo"]).pause(before=1)
    …
    await pause.reached.wait()      # "Hel" is out
    pause.go()
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import anyio
import anyio.lowlevel

from dshd.capabilities.llm.adapter import LlmAdapter
from dshd.capabilities.llm.catalog import (
    ModelContext,
    ModelInfo,
    ModelReasoning,
    ReasoningEffort,
    ResolvedModel,
    RetryPolicy,
)
from dshd.capabilities.llm.failure import LlmError, LlmFailure
from dshd.capabilities.llm.request import GenerateOptions
from dshd.capabilities.llm.service import LLM
from dshd.capabilities.llm.stream import (
    Failed,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReplayEnvelope,
    Stop,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolCalls,
    UsageReport,
)
from dshd.capabilities.values.blocks import ToolCallBlock, text_of
from dshd.capabilities.values.ids import CallId, ReasoningEffortId
from dshd.capabilities.values.json import Json
from dshd.kernel.context import Context
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.kernel.signal import Signal

Call: TypeAlias = "tuple[str, Mapping[str, Json] | str] | ToolCallBlock"
"""A tool call: name and arguments, as an object or as the raw text; or a block, which says the id as well."""

NOTHING_QUEUED = "NOTHING_QUEUED"


class NothingQueuedError(LlmError):
    """The model was asked more often than it had been told what to say; its code is `NOTHING_QUEUED`."""

    def __init__(self, number: int, request: GenerateOptions) -> None:
        self.number, self.request = number, request
        said = text_of(request.messages[-1].content)[:80] if request.messages else None
        super().__init__(
            f"request {number} to the scripted model has no answer (its last message says {said!r}); "
            f"queue one more with model.reply(…), or give model.respond(…) a function",
            NOTHING_QUEUED,
        )


class Pause:
    """A place in an answer where the model waits for the test."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        """Set once the model has come here."""
        self._open = anyio.Event()

    def go(self) -> None:
        """Let the answer go on, or not wait at all if it has not come here yet."""
        self._open.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._open.wait()


@dataclass(kw_only=True)
class Reply:
    """One answer. What of it there is comes in this order: reasoning, text, calls, usage, finish.

    It finishes with `ToolCalls` if it has calls and with `Stop` if not, unless it is told how to end.
    """

    text: str | Sequence[str] = ""
    """As a whole, or in pieces, each of which is one chunk."""
    reasoning: str | Sequence[str] = ""
    calls: Sequence[Call] = ()
    """Those without an id are called `call-1`, `call-2`, … over the life of the model."""
    piece: int | None = None
    """Cut what is given as a whole, arguments too, into pieces of so many characters."""
    chunks: Sequence[StreamChunk] | None = None
    """Exactly these, in place of text, reasoning and calls, and no finish but one that is asked for."""
    usage: TokenUsage | None = None
    finish: FinishReason | None = None
    replay: ReplayEnvelope | None = None
    """Goes with the finish."""
    failure: LlmFailure | None = None
    """End with this failure, as a finish."""
    raises: BaseException | None = None
    """End by raising this."""
    pauses: dict[int, Pause] = field(default_factory=dict)
    """By the number of the chunk before which they are; see `pause`."""

    def __post_init__(self) -> None:
        ends = [end for end in (self.finish, self.failure, self.raises) if end is not None]
        if len(ends) > 1:
            raise ValueError(f"an answer ends in one way, not in {len(ends)}: finish, failure or raises")
        if self.chunks is not None and (self.text or self.reasoning or self.calls):
            raise ValueError("chunks take the place of text, reasoning and calls, so give one or the other")
        if self.replay is not None and (self.raises or (self.chunks is not None and not ends)):
            raise ValueError("a replay envelope goes with a finish, and this answer has none; give it finish=…")
        if self.piece is not None and self.piece < 1:
            raise ValueError(f"a piece has at least one character, not {self.piece}")

    def pause(self, before: int) -> Pause:
        """Wait before chunk `before`, counted from 0; as many as there are chunks is before the end."""
        there = len(self.rendered(lambda: CallId("")))
        if not 0 <= before <= there:
            raise ValueError(f"an answer of {there} chunks never comes to chunk {before}")
        return self.pauses.setdefault(before, Pause())

    def rendered(self, mint: Callable[[], CallId]) -> list[StreamChunk]:
        """Its chunks; `mint` gives an id to a call that has none."""
        found = list(self._blocks(mint)) if self.chunks is None else list(self.chunks)
        if self.usage is not None:
            found.append(UsageReport(self.usage))
        reason = self.finish if self.failure is None else Failed(self.failure)
        if reason is None and self.chunks is None and self.raises is None:
            reason = ToolCalls() if self.calls else Stop()
        if reason is not None:
            found.append(Finish(reason, self.replay))
        return found

    def _blocks(self, mint: Callable[[], CallId]) -> list[StreamChunk]:
        index = 0
        found: list[StreamChunk] = []
        for delta, said in ((ReasoningDelta, self.reasoning), (TextDelta, self.text)):
            if said:
                found += [delta(index, piece) for piece in self._pieces(said)]
                index += 1
        for call in self.calls:
            if isinstance(call, ToolCallBlock):
                identity, name, arguments = call.id, call.name, call.arguments
            else:
                identity, name = mint(), call[0]
                arguments = call[1] if isinstance(call[1], str) else json.dumps(call[1])
            first, *rest = self._pieces(arguments)
            found.append(ToolCallDelta(index, first, identity, name))
            found += [ToolCallDelta(index, piece) for piece in rest]
            index += 1
        return found

    def _pieces(self, said: str | Sequence[str]) -> Sequence[str]:
        if not isinstance(said, str):
            return said
        size = self.piece or len(said) or 1
        return [said[start : start + size] for start in range(0, len(said), size)] or [""]


class ScriptedModel(LlmAdapter):
    """An adapter whose answers a test queues. It serves any route it is registered for.

    A request for which nothing is queued fails with `NothingQueuedError`.
    """

    def __init__(self, *, retry_policy: RetryPolicy | None = None) -> None:
        self.requests: list[GenerateOptions] = []
        """Every request, in the order in which they came."""
        self.open = 0
        """How many streams are being read and have been neither finished nor closed."""
        self._replies: deque[Reply] = deque()
        self._responder: Callable[[GenerateOptions], Reply | str] | None = None
        self._models: dict[str, ResolvedModel] = {}
        self._retry_policy = retry_policy
        self._calls = 0

    # -- what a test says

    def reply(
        self,
        text: str | Sequence[str] = "",
        *,
        reasoning: str | Sequence[str] = "",
        calls: Sequence[Call] = (),
        piece: int | None = None,
        chunks: Sequence[StreamChunk] | None = None,
        usage: TokenUsage | None = None,
        finish: FinishReason | None = None,
        replay: ReplayEnvelope | None = None,
        failure: LlmFailure | None = None,
        raises: BaseException | None = None,
    ) -> Reply:
        """Queue an answer for the next request that has none yet; the fields are those of `Reply`."""
        reply = Reply(
            text=text, reasoning=reasoning, calls=calls, piece=piece, chunks=chunks, usage=usage, finish=finish,
            replay=replay, failure=failure, raises=raises,
        )  # fmt: skip
        self._replies.append(reply)
        return reply

    def respond(self, responder: Callable[[GenerateOptions], Reply | str]) -> None:
        """Let a function answer the requests for which nothing is queued."""
        self._responder = responder

    def declare(
        self,
        id: str,
        *,
        name: str | None = None,
        description: str | None = None,
        context_window: int | None = None,
        default_max_tokens: int | None = None,
        efforts: Sequence[ReasoningEffort | str] = (),
        default_effort: str | None = None,
    ) -> None:
        """Put a model into the catalog of every route, with what `resolve_model` is to know of it."""
        known = [each if isinstance(each, ReasoningEffort) else _effort(each) for each in efforts]
        default = None if default_effort is None else ReasoningEffortId(default_effort)
        self._models[id] = ResolvedModel(
            provider="",
            id=id,
            name=name or id,
            description=description,
            context=None if context_window is None else ModelContext(context_window),
            default_max_tokens=default_max_tokens,
            reasoning=ModelReasoning(tuple(known), default) if known or default else None,
        )

    @property
    def queued(self) -> int:
        """How many answers nobody has asked for yet."""
        return len(self._replies)

    def plugin(self, *providers: str) -> Plugin[Config]:
        """A plugin that registers this model for these routes, to be mounted beside the `llm` plugin."""
        routes = providers or ("scripted",)

        @plugin("scripted_model", inject=[LLM])
        async def scripted_model(ctx: Context, config: Config) -> None:
            ctx[LLM].register_adapter(routes, self)

        return scripted_model

    # -- the adapter

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append(request)
        reply = self._next(request)
        chunks = reply.rendered(self._mint)
        self.open += 1
        try:
            for number, chunk in enumerate(chunks):
                await self._arrive(reply, number)
                yield chunk
            await self._arrive(reply, len(chunks))
            if reply.raises is not None:
                raise reply.raises
        finally:
            self.open -= 1

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        return self._retry_policy

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        return [
            ModelInfo(provider=provider, id=m.id, name=m.name, description=m.description) for m in self._models.values()
        ]

    async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
        known = self._models.get(model)
        return None if known is None else replace(known, provider=provider)

    def _next(self, request: GenerateOptions) -> Reply:
        if self._replies:
            return self._replies.popleft()
        if self._responder is None:
            raise NothingQueuedError(len(self.requests), request)
        answer = self._responder(request)
        return Reply(text=answer) if isinstance(answer, str) else answer

    def _mint(self) -> CallId:
        self._calls += 1
        return CallId(f"call-{self._calls}")

    @staticmethod
    async def _arrive(reply: Reply, number: int) -> None:
        """Take the time a chunk takes on a wire: one turn of the event loop, or until a test says so."""
        await anyio.lowlevel.checkpoint()
        if number in reply.pauses:
            await reply.pauses[number].wait()


def _effort(id: str) -> ReasoningEffort:
    return ReasoningEffort(ReasoningEffortId(id), id.capitalize())
