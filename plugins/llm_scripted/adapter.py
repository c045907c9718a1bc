"""The adapter: it finds the reply to a request, and lets the answer come in its time."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random

import anyio
import anyio.lowlevel

from dshd import Signal
from dshd.capabilities.llm import (
    DiscoveredModel,
    Failed,
    FailureCode,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmError,
    LlmFailure,
    ModelDiscoveryRequest,
    ModelInfo,
    ProviderInfo,
    ResolvedModel,
    RetryPolicy,
    StreamChunk,
)

from . import persona
from .answer import Answer, compose, is_delta
from .config import LlmScripted
from .memory import Memory
from .question import Question
from .routes import Model, Route, listed, model_for
from .rules import Rules

TURN = 16
"""After so many chunks without a pause others get their turn."""


class ScriptedAdapter(LlmAdapter):
    """Answers from the rules of one config. An answer is fixed as a whole when its stream begins."""

    def __init__(self, routes: Mapping[str, Route], config: LlmScripted, memory: Memory) -> None:
        self._routes = dict(routes)
        self._config = config
        self._memory = memory
        self._rules = Rules(config)

    # -- what is on offer

    def provider_info(self, provider: str) -> ProviderInfo:
        return ProviderInfo(provider, self._routes[provider].name or provider)

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        return None if self._config.retry is None else self._config.retry.policy

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        return [model.info(provider, id) for id, model in listed(self._models(provider)).items()]

    async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
        return model_for(self._models(provider), model).resolved(provider, model)

    async def discover_models(self, request: ModelDiscoveryRequest) -> Sequence[DiscoveredModel]:
        if request.provider not in self._routes:
            return await super().discover_models(request)
        return [model.discovered(id) for id, model in listed(self._models(request.provider)).items()]

    def _models(self, provider: str) -> Mapping[str, Model]:
        route = self._routes.get(provider)
        return self._config.models if route is None or route.models is None else route.models

    # -- answering

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """Answer by the first rule that holds, else as the built-in persona does."""
        answer, random = self._answer(request)
        await _wait(self._varied(answer.delay, random), request.signal)
        deltas = 0
        for chunk in answer.content:
            if is_delta(chunk):
                if deltas and (answer.pace or deltas % TURN == 0):
                    await _wait(self._varied(answer.pace, random), request.signal)
                deltas += 1
            yield chunk
        for chunk in answer.end:
            yield chunk
        if answer.error is not None:
            raise LlmError(answer.error)
        if answer.stalls:
            await _wait(None, request.signal)

    def _varied(self, pause: float, random: Random) -> float:
        jitter = self._config.jitter
        return pause * (1 + random.uniform(-jitter, jitter)) if pause and jitter else pause

    def _answer(self, request: GenerateOptions) -> tuple[Answer, Random]:
        """What is answered, with everything counted that it counts, in one synchronous section."""
        model = model_for(self._models(request.provider), request.model)
        effort = request.reasoning_effort
        question = Question(request, highest=effort is not None and effort == (model.efforts or ("",))[-1])
        counts = self._memory.of(question.conversation)
        number = counts["requests"] = counts.get("requests", 0) + 1
        random = Random(f"{self._config.seed} {question.conversation} {number}")
        room = None if model.context_window is None else model.context_window - question.tokens
        if room is not None and room <= 0:
            return _too_long(question, model), random
        choice = self._rules.choose(question, counts, number)
        caps = [cap for cap in (request.max_tokens or model.max_tokens, room) if cap is not None]
        return compose(
            persona.answer(question) if choice is None else choice.reply,
            config=self._config,
            fill=(lambda text: text) if choice is None else choice.fill,
            new_id=lambda index: _call_id(question, number, index),
            cap=min(caps, default=None),
            stop=request.stop or (),
            read=question.read(counts),
        ), random


async def _wait(seconds: float | None, signal: Signal | None) -> None:
    """Wait so long, for ever if `None`. Raises `LlmError` with `ABORTED` once the signal says to stop."""
    if seconds == 0:
        await anyio.lowlevel.checkpoint()
    elif signal is None:
        await (anyio.sleep_forever() if seconds is None else anyio.sleep(seconds))
    else:
        with anyio.move_on_after(seconds):
            await signal.wait()
    if signal is not None and signal.aborted:
        raise LlmError("the call was cancelled", FailureCode.ABORTED)


def _too_long(question: Question, model: Model) -> Answer:
    name, window = question.request.model, model.context_window
    message = f"the request has about {question.tokens} tokens, and {name!r} takes {window} with its answer"
    failure = LlmFailure(message=message, code=FailureCode.CONTEXT_WINDOW_EXCEEDED, status=400)
    return Answer(end=(Finish(Failed(failure)),))


def _call_id(question: Question, number: int, index: int) -> str:
    """An id that no other call has, and that the same request asked again at the same point gets again."""
    messages = question.request.messages
    last = messages[-1].id if messages else ""
    source = f"{question.conversation} {number} {last} {len(messages)} {index}"
    return f"call-{hashlib.sha256(source.encode(errors='surrogatepass')).hexdigest()[:16]}"
