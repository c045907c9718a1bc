"""Replay state: shown to an adapter only where the same instance now serves both ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dshd.capabilities.llm import GenerateOptions, LlmAdapter, Route
from dshd.capabilities.values import Message, ModelSource


def shown_to(adapter: LlmAdapter, request: GenerateOptions, routes: Mapping[str, Route]) -> GenerateOptions:
    """`request` as `adapter` may see it: the same object, unless replay state has to be left out of some message.

    A message keeps its state if the instance owns the route that produced it as well as the one that is asked.
    """
    owned = {name for name, route in routes.items() if route.adapter is adapter}
    if request.provider not in owned:
        owned = set()
    messages = list(request.messages)
    bare: dict[tuple[str, str], ModelSource] = {}
    changed = False
    for index, message in enumerate(messages):
        source = message.source
        if type(source) is not ModelSource or source.replay_state is None or source.provider in owned:
            continue
        key = source.provider, source.model
        known = bare.get(key)
        if known is None:
            known = bare[key] = ModelSource(*key)
        changed = True
        # Built by hand where that is the same: it takes a third of the time, and histories are long.
        plain = type(message) is Message
        messages[index] = (
            Message(message.id, message.role, message.content, known) if plain else replace(message, source=known)
        )
    return replace(request, messages=messages) if changed else request
