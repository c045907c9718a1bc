"""What the kernel announces of itself: fibers, states, services, updates, reads, offers, listeners and dispatches."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, ValidationError

from dshd import Bail, Config, Context, Emit, Fiber, FiberState, Next, Plugin, Realm, ServiceKey, plugin
from dshd.kernel import internal
from dshd.kernel.events import Dispatched, ListenerAdded
from dshd.kernel.internal import ConfigUpdate, ServiceOffered, ServiceRead, StatusChange
from dshd.kernel.keys import DEFAULT_REALM
from dshd.kernel.services import ServiceChange
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

NAME = ServiceKey[str]("name")
OTHER = ServiceKey[str]("other")


@dataclass(frozen=True)
class Word:
    text: str = "hello"


HELLO = Word()
SAID = Emit[Word]("said")
PICKED = Bail[Word, object]("picked")


@asynccontextmanager
async def started(*plugins: Plugin[Any]) -> AsyncIterator[Context]:
    with anyio.fail_after(5):
        async with running(*plugins) as root:
            yield root


def row(
    name: str,
    setup: Callable[[Context], object] = lambda ctx: None,
    inject: Sequence[ServiceKey[Any]] = (),
    provides: Sequence[ServiceKey[Any]] = (),
) -> Plugin[Config]:
    @plugin(name, inject=inject, provides=provides)
    async def body(ctx: Context, config: Config) -> None:
        setup(ctx)

    return body


class Named(Config):
    name: str = "first"


@plugin("naming", config=Named, provides=[NAME])
async def naming(ctx: Context, config: Named) -> None:
    ctx.provide(NAME, config.name)


reader = row("reader", inject=[NAME])


def only(root: Context, name: str) -> Fiber:
    """The visible instance of a row."""
    (fiber,) = (each for each in root.kernel.rows[name] if each.visible)
    return fiber


# -- internal/plugin and internal/status


async def test_every_fiber_is_announced_when_it_is_created() -> None:
    created: list[tuple[str, FiberState]] = []
    parent = row("parent", lambda ctx: ctx.plugin(row("child")))
    async with started() as root:
        root.on(internal.PLUGIN, lambda fiber: created.append((fiber.path, fiber.state)))
        await root.plugin(parent).settled()
        await only(root, "parent").update({})
        pending = FiberState.PENDING
        assert created == [("parent", pending), ("parent/child", pending)] * 2


async def test_every_change_of_state_is_announced_with_the_old_and_the_new_state() -> None:
    changes: list[StatusChange] = []
    async with started() as root:
        root.on(internal.STATUS, changes.append)
        fiber = root.plugin(reader)
        await fiber.settled()
        assert changes == [], "a fiber that waits is pending from the beginning"
        provider = root.plugin(naming)
        await provider.settled()
        await fiber.settled()
        await fiber.dispose()
        steps = [change for change in changes if change.fiber is fiber]
        assert [step.old.value for step in steps] == ["pending", "loading", "active", "unloading"]
        assert [step.new.value for step in steps] == ["loading", "active", "unloading", "disposed"]


async def test_a_failure_is_announced_with_its_reason_to_be_read_from_the_fiber() -> None:
    failed: list[str] = []

    def note(change: StatusChange) -> None:
        if change.new is FiberState.FAILED:
            failed.append(f"{change.fiber.path}: {change.fiber.error}")

    def fail(ctx: Context) -> None:
        raise ValueError("clumsy")

    async with started() as root:
        root.on(internal.STATUS, note)
        with pytest.raises(ValueError, match="clumsy"):
            await root.plugin(row("a", fail)).settled()
        assert failed == ["a: clumsy"]


# -- internal/service


async def test_a_binding_that_appears_is_replaced_or_vanishes_is_announced_once_with_its_provider() -> None:
    changes: list[ServiceChange] = []
    async with started(reader) as root:
        root.on(internal.SERVICE, changes.append)
        first = root.plugin(naming)
        await first.settled()
        second = await first.update({"name": "second"})
        await second.dispose()
        assert changes == [
            ServiceChange("name", DEFAULT_REALM, first, None),
            ServiceChange("name", DEFAULT_REALM, second, first),
            ServiceChange("name", DEFAULT_REALM, None, second),
        ]


async def test_a_listener_that_comes_later_is_told_of_what_was_provided_before_as_previous() -> None:
    changes: list[ServiceChange] = []
    async with started(naming) as root:
        first = only(root, "naming")
        second = await first.update({})
        root.on(internal.SERVICE, changes.append)
        third = await second.update({})
        await third.dispose()
        assert changes == [
            ServiceChange("name", DEFAULT_REALM, third, second),
            ServiceChange("name", DEFAULT_REALM, None, third),
        ]


async def test_a_binding_is_announced_after_the_commit_that_made_it_with_its_realm() -> None:
    told: list[tuple[Realm, str | None]] = []
    async with started() as root:
        elsewhere = root.isolate(NAME, "elsewhere")
        root.on(internal.SERVICE, lambda change: told.append((change.realm, elsewhere.get(NAME))))
        async with root.kernel.stage() as stage:
            elsewhere.plugin(naming, stage=stage)
            await stage.settled()
            assert told == [], "nothing is told of a stage"
            stage.commit()
        assert told == [(Realm("elsewhere"), "first")]


async def test_nothing_is_announced_of_a_provider_whose_stage_is_discarded() -> None:
    changes: list[ServiceChange] = []
    async with started(naming) as root:
        root.on(internal.SERVICE, changes.append)
        async with root.kernel.stage() as stage:
            stage.replace(only(root, "naming"), config={"name": "second"})
            root.plugin(row("other", lambda ctx: ctx.provide(OTHER, "x"), provides=[OTHER]), stage=stage)
            await stage.settled()
        assert changes == []


async def test_a_provider_that_takes_its_service_back_is_announced_once() -> None:
    changes: list[ServiceChange] = []
    async with started(row("a", provides=[NAME]), reader) as root:
        root.on(internal.SERVICE, changes.append)
        provider = only(root, "a")
        effect = provider.ctx.provide(NAME, "x")
        assert changes == [ServiceChange("name", DEFAULT_REALM, provider, None)]
        await effect.dispose()
        assert changes[1:] == [ServiceChange("name", DEFAULT_REALM, None, provider)]


# -- internal/update


async def test_an_update_can_be_observed_with_the_config_before_and_after() -> None:
    observed: list[tuple[Fiber, BaseModel, BaseModel]] = []

    async def observe(update: ConfigUpdate, next: Next[BaseModel]) -> BaseModel:
        observed.append((update.fiber, update.fiber.config, update.config))
        return await next()

    async with started(naming) as root:
        root.on(internal.UPDATE, observe)
        old = only(root, "naming")
        await old.update({"name": "second"})
        assert observed == [(old, Named(name="first"), Named(name="second"))]
        assert root.get(NAME) == "second"


async def test_an_update_that_a_listener_vetoes_changes_nothing() -> None:
    async def veto(update: ConfigUpdate, next: Next[BaseModel]) -> BaseModel:
        raise PermissionError("not now")

    async with started(naming) as root:
        root.on(internal.UPDATE, veto)
        fiber = only(root, "naming")
        with pytest.raises(PermissionError, match="not now"):
            await fiber.update({"name": "second"})
        assert only(root, "naming") is fiber
        assert (root.get(NAME), fiber.config) == ("first", Named(name="first"))


async def test_a_listener_may_change_the_config_that_is_applied_within_what_the_plugin_takes() -> None:
    class Unknown(Config):
        unknown: int = 1

    answers: list[BaseModel] = [Named(name="answered"), Unknown()]

    async def answer(update: ConfigUpdate, next: Next[BaseModel]) -> BaseModel:
        assert await next() == Named(name="asked")
        return answers.pop(0)

    async with started(naming) as root:
        root.on(internal.UPDATE, answer)
        fiber = await only(root, "naming").update({"name": "asked"})
        assert fiber.config == Named(name="answered")
        with pytest.raises(ValidationError):
            await fiber.update({"name": "asked"})
        assert (only(root, "naming"), root.get(NAME)) == (fiber, "answered")


# -- internal/get


async def test_a_listener_may_replace_what_a_consumer_reads_while_it_listens() -> None:
    reads: list[ServiceRead] = []

    def replace(read: ServiceRead) -> object:
        reads.append(read)
        return f"instead of {read.value}" if read.reader.path == "reader" else None

    async with started(naming, reader) as root:
        fiber = only(root, "reader")
        assert (fiber.ctx[NAME], root.get(NAME)) == ("first", "first")
        watcher = root.plugin(row("watcher", lambda ctx: ctx.on(internal.GET, replace)))
        await watcher.settled()
        assert (fiber.ctx[NAME], fiber.ctx.get(NAME), root.get(NAME)) == ("instead of first",) * 2 + ("first",)
        assert reads[0] == ServiceRead(NAME, DEFAULT_REALM, fiber, "first")
        await watcher.dispose()
        assert (fiber.ctx[NAME], root.get(NAME)) == ("first", "first")


async def test_reads_are_kept_while_nobody_listens_for_them() -> None:
    made: list[str] = []

    def make(consumer: Context) -> str:
        made.append(consumer.fiber.path)
        return "face"

    async with started(row("a", lambda ctx: ctx.provide_each(NAME, make), provides=[NAME]), reader) as root:
        ctx = only(root, "reader").ctx
        assert [ctx[NAME] for _ in range(3)] == ["face"] * 3
        assert made == ["reader"]
        effect = root.on(internal.GET, lambda read: None)
        assert [ctx[NAME] for _ in range(3)] == ["face"] * 3
        assert made == ["reader"] * 4, "a listener is asked at each read"
        await effect.dispose()
        assert [ctx[NAME] for _ in range(3)] == ["face"] * 3
        assert made == ["reader"] * 5


# -- internal/set


async def test_a_listener_may_replace_what_is_provided() -> None:
    offers: list[ServiceOffered] = []

    def replace(offer: ServiceOffered) -> object:
        offers.append(offer)
        return "instead" if offer.value == "first" else None

    async with started() as root:
        root.on(internal.SET, replace)
        fiber = root.plugin(naming)
        await fiber.settled()
        assert root.get(NAME) == "instead"
        assert offers == [ServiceOffered(NAME, DEFAULT_REALM, fiber, "first")]
        await fiber.update({"name": "second"})
        assert root.get(NAME) == "second"


async def test_a_listener_may_replace_the_function_that_makes_faces() -> None:
    def replace(offer: ServiceOffered) -> Callable[[Context], str]:
        return lambda consumer: f"for {consumer.fiber.path}"

    async with started() as root:
        root.on(internal.SET, replace)
        provider = row("a", lambda ctx: ctx.provide_each(NAME, lambda consumer: "face"), provides=[NAME])
        await root.plugin(provider).settled()
        assert root.get(NAME) == "for root"


async def test_a_listener_that_raises_refuses_what_is_provided() -> None:
    def refuse(offer: ServiceOffered) -> object:
        raise PermissionError("not yours")

    async with started() as root:
        root.on(internal.SET, refuse)
        with pytest.raises(PermissionError, match="not yours"):
            await root.plugin(naming).settled()
        assert root.get(NAME) is None


# -- internal/listener and internal/dispatch


async def test_every_listener_is_announced_when_it_is_registered() -> None:
    added: list[ListenerAdded] = []
    async with started() as root:
        root.on(internal.LISTENER, added.append)
        added.clear()
        await root.plugin(row("a", lambda ctx: (ctx.on(SAID, print), ctx.once(PICKED, bool)))).settled()
        assert added == [ListenerAdded("said", "a"), ListenerAdded("picked", "a")]


async def test_every_dispatch_is_announced_with_its_mode_payload_and_sender_also_when_nobody_listens() -> None:
    seen: list[Dispatched] = []
    order: list[str] = []

    def spy(dispatched: Dispatched) -> None:
        seen.append(dispatched)
        order.append("announced")

    async with started(row("a")) as root:
        root.on(SAID, lambda _: order.append("heard"))
        effect = root.on(internal.DISPATCH, spy)
        ctx = only(root, "a").ctx
        ctx.emit(SAID, HELLO)
        assert order == ["announced", "heard"]
        ctx.bail(PICKED, HELLO)
        root.emit(SAID, HELLO)
        assert seen == [
            Dispatched("said", "Emit", HELLO, "a"),
            Dispatched("picked", "Bail", HELLO, "a"),
            Dispatched("said", "Emit", HELLO, "root"),
        ]
        await effect.dispose()
        ctx.emit(SAID, HELLO)
        assert len(seen) == 3


async def test_the_kernels_own_events_are_not_announced_as_dispatches() -> None:
    seen: list[str] = []
    async with started() as root:
        root.on(internal.DISPATCH, lambda dispatched: seen.append(dispatched.event))
        for event in (internal.PLUGIN, internal.STATUS, internal.SERVICE, internal.LISTENER):
            root.on(event, lambda _: None)
        root.on(internal.GET, lambda read: None)
        await root.plugin(naming).settled()
        assert root.get(NAME) == "first"
        await only(root, "naming").update({"name": "second"})
        assert seen == []


async def test_a_listener_to_dispatches_that_dispatches_is_not_told_of_itself() -> None:
    seen: list[str] = []
    heard: list[Word] = []
    async with started() as root:

        def echo(dispatched: Dispatched) -> None:
            seen.append(dispatched.event)
            root.emit(SAID, Word("echo"))

        root.on(SAID, heard.append)
        root.on(internal.DISPATCH, echo)
        root.bail(PICKED, HELLO)
        assert seen == ["picked"]
        assert heard == [Word("echo")]


async def test_a_listener_to_reads_that_reads_is_not_asked_about_itself() -> None:
    asked: list[str] = []
    async with started(naming) as root:

        def look(read: ServiceRead) -> object:
            asked.append(read.key.name)
            value: str | None = root.get(NAME)
            return f"{value} replaced"

        root.on(internal.GET, look)
        assert root.get(NAME) == "first replaced"
        assert asked == ["name"]
