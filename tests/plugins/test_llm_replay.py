"""Replay state on its way to adapters: whose it is decides who sees it."""

from typing import Any

import pytest

from dshd.capabilities.llm import Route
from dshd.capabilities.values import Message, ModelSource, TextBlock, UserMessage, message_id, user_message
from dshd.testing.contracts.llm import Voice, ask, asking, consumer, service, serving
from dshd.testing.kernel import running
from dshd_plugins.llm import llm
from dshd_plugins.llm.replay import shown_to

pytestmark = pytest.mark.anyio


def said(provider: str, state: Any = "state", model: str = "m") -> Message:
    return Message(message_id(), "assistant", (TextBlock("yes"),), ModelSource(provider, model, state))


def states(messages: Any) -> list[Any]:
    return [message.source.replay_state for message in messages if isinstance(message.source, ModelSource)]


async def test_ownership_counts_now_and_not_when_the_message_was_made() -> None:
    async with running(llm) as root:
        ctx = await consumer(root)
        first, second = Voice(), Voice()
        routes = service(ctx).register_adapter(["voice", "sister"], first)
        messages = [said("voice"), said("sister")]
        await ask(root, asking(messages=messages))
        assert states(first.requests[-1].messages) == ["state", "state"]
        routes.replace(["voice"])
        service(ctx).register_adapter(["sister"], second)
        await ask(root, asking(messages=messages))
        assert states(first.requests[-1].messages) == ["state", None]
        await ask(root, asking("sister", messages=messages))
        assert states(second.requests[-1].messages) == [None, "state"]


async def test_what_an_adapter_is_shown_in_place_of_a_request_of_a_conversation_is_one_too() -> None:
    voice = Voice()
    async with running(llm, serving("voice", voice)) as root:
        for marked in (True, False):
            request = asking(messages=[said("stranger")])
            if marked:
                service(root).mark_conversation(request)
            await ask(root, request)
            shown = voice.requests[-1]
            assert shown is not request
            assert service(root).is_conversation(shown) is marked


async def test_an_instance_that_has_lost_the_route_it_is_asked_on_sees_nothing() -> None:
    voice = Voice()
    routes = {"sister": Route(voice, voice.provider_info("sister"), None)}
    shown = shown_to(voice, asking("voice", messages=[said("sister"), said("voice")]), routes)
    assert states(shown.messages) == [None, None]


async def test_all_else_about_a_message_stays() -> None:
    odd = UserMessage(message_id(), "user", (TextBlock("so I said"),), ModelSource("stranger", "m", {"a": [1]}))
    messages = [user_message("hi"), said("stranger", {"big": [1, 2]}, "other"), said("voice", None), odd]
    voice = Voice()
    request = asking(messages=messages, system="Be kind.", temperature=0.5)
    shown = shown_to(voice, request, {"voice": Route(voice, voice.provider_info("voice"), None)})
    assert states(shown.messages) == [None, None, None]
    for before, after in zip(messages, shown.messages, strict=True):
        assert (after.id, after.role, after.content) == (before.id, before.role, before.content)
        assert type(after) is type(before)
    assert shown.messages[0] is messages[0]
    assert shown.messages[1].source == ModelSource("stranger", "other")
    assert (shown.config, shown.system) == (request.config, request.system)
    assert list(request.messages) == messages


async def test_a_request_without_anything_to_hide_is_passed_on_as_it_is() -> None:
    voice = Voice()
    request = asking(messages=[said("voice"), user_message("hi"), said("stranger", None)])
    assert shown_to(voice, request, {"voice": Route(voice, voice.provider_info("voice"), None)}) is request
