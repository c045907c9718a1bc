"""A lease never weakens policy: a new guard binds at once, a removed one still covers, a replaced one is asked anew."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from dshd import Bail, Config, Context, Fiber, Next, Plugin, Scope, Serial, Waterfall, plugin
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Call:
    agent: Scope | None = None


def subject(call: Call) -> Scope | None:
    return call.agent


POLICIES: list[Any] = [
    Waterfall[Call, str]("waterfall", policy=True, subject=subject),
    Bail[Call, str]("bail", policy=True, subject=subject),
    Serial[Call, str]("serial", policy=True, subject=subject),
]
in_every_mode = pytest.mark.parametrize("event", POLICIES, ids=lambda event: event.name)


@asynccontextmanager
async def started(*plugins: Plugin[Any]) -> AsyncIterator[Context]:
    with anyio.fail_after(5):
        async with running(*plugins) as root:
            yield root


class Form(Config):
    form: str = "old"
    guards: bool = True
    denies: bool = False
    fails: bool = False


class Guards:
    """Rows that guard one policy event, and which of them were asked."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.asked: list[str] = []
        self.busy, self.go = anyio.Event(), anyio.Event()
        self.go.set()

    def listen(self, ctx: Context, config: Form, name: str) -> None:
        event = self.event

        def judge() -> str | None:
            self.asked.append(f"{name} {config.form}")
            return "denied" if config.denies else None

        async def serial(call: Call) -> str | None:
            self.busy.set()
            await self.go.wait()
            return judge()

        async def waterfall(call: Call, next: Next[str]) -> str:
            self.busy.set()
            await self.go.wait()
            return judge() or await next()

        listeners: dict[Any, Any] = {Bail: lambda call: judge(), Serial: serial, Waterfall: waterfall}
        ctx.on(event, listeners[type(event)])

    def guard(self, name: str, scope: Scope | None = None) -> Plugin[Form]:
        @plugin(name, config=Form)
        async def body(ctx: Context, config: Form) -> None:
            if config.fails:
                raise ValueError("fails")
            if config.guards:
                self.listen(ctx if scope is None else ctx.scoped(scope), config, name)

        return body

    async def ask(self, ctx: Context, agent: Scope | None = None) -> tuple[str | None, list[str]]:
        """The decision, and who was asked for it."""
        self.asked.clear()

        async def allow(call: Call) -> str:
            return "allowed"

        call = Call(agent)
        if isinstance(self.event, Waterfall):
            answer: str | None = await ctx.waterfall(self.event, call, allow)
        elif isinstance(self.event, Serial):
            answer = await ctx.serial(self.event, call) or "allowed"
        else:
            answer = ctx.bail(self.event, call) or "allowed"
        return answer, list(self.asked)


def only(root: Context, name: str) -> Fiber:
    """The visible instance of a row."""
    (fiber,) = (each for each in root.kernel.rows[name] if each.visible)
    return fiber


async def remove(root: Context, *names: str) -> None:
    async with root.kernel.stage() as stage:
        for name in names:
            stage.retire(only(root, name))
        stage.commit()


@in_every_mode
async def test_a_new_guard_binds_at_once_inside_an_older_lease(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("b")) as root:
        with root.leased("a step") as view:
            assert await guards.ask(view) == ("allowed", ["b old"])
            await root.plugin(guards.guard("c")).settled()
            assert await guards.ask(view) == ("allowed", ["b old", "c old"])
            await root.plugin(guards.guard("a"), {"denies": True}).settled()
            assert await guards.ask(view) == ("denied", ["a old"]), "at its place in the order"


@in_every_mode
async def test_a_removed_guard_still_covers_what_was_leased_and_nobody_else(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("a"), (guards.guard("b"), {"denies": True}), guards.guard("c")) as root:  # type: ignore[arg-type]
        removed = only(root, "b")
        with root.leased("a step") as view:
            await remove(root, "b")
            assert await guards.ask(view) == ("denied", ["a old", "b old"]), "at its place in the order"
            assert await guards.ask(root) == ("allowed", ["a old", "c old"])
            with root.leased("a later step") as later:
                assert await guards.ask(later) == ("allowed", ["a old", "c old"])
        await removed.closing()
        assert await guards.ask(root) == ("allowed", ["a old", "c old"])


@in_every_mode
async def test_a_replaced_guard_is_asked_once_and_in_its_new_form_only(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("a"), guards.guard("b")) as root:
        with root.leased("a step") as view:
            await only(root, "a").update({"form": "new"})
            for ctx in (view, root):
                assert await guards.ask(ctx) == ("allowed", ["a new", "b old"])
            with view.leased("a step within") as inner:
                assert await guards.ask(inner) == ("allowed", ["a new", "b old"])
            await only(root, "a").update({"form": "newer"})
            for ctx in (view, root):
                assert await guards.ask(ctx) == ("allowed", ["a newer", "b old"])


@in_every_mode
async def test_a_row_whose_new_form_guards_nothing_is_not_asked_in_its_old_form(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("a")) as root:
        with root.leased("a step") as view:
            await only(root, "a").update({"guards": False})
            assert await guards.ask(view) == ("allowed", [])


@in_every_mode
async def test_a_guard_replaced_and_then_removed_covers_each_lease_in_the_form_it_holds(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("a")) as root:
        with root.leased("older") as older:
            await only(root, "a").update({"form": "new"})
            with root.leased("newer") as newer:
                await remove(root, "a")
                assert await guards.ask(older) == ("allowed", ["a old"])
                assert await guards.ask(newer) == ("allowed", ["a new"])
                await root.plugin(guards.guard("a"), {"form": "again"}, id="a").settled()
                for view in (older, newer):
                    assert await guards.ask(view) == ("allowed", ["a again"]), "the row has a successor again"


@in_every_mode
async def test_a_guard_whose_optional_replacement_failed_still_covers_what_was_leased(event: Any) -> None:
    guards = Guards(event)
    async with started() as root:
        await root.plugin(guards.guard("a"), optional=True).settled()
        with root.leased("a step") as view:
            async with root.kernel.stage() as stage:
                failing = stage.replace(only(root, "a"), config={"fails": True})
                await stage.settled()
                stage.commit()
            assert not failing.visible
            assert await guards.ask(view) == ("allowed", ["a old"])
            assert await guards.ask(root) == ("allowed", [])


@in_every_mode
async def test_rules_hold_for_a_guard_within_a_row(event: Any) -> None:
    guards = Guards(event)

    @plugin("outer", config=Form)
    async def outer(ctx: Context, config: Form) -> None:
        await ctx.plugin(guards.guard("inner"), config).settled()

    async with started(outer) as root:
        with root.leased("older") as older:
            await only(root, "outer").update({"form": "new"})
            assert await guards.ask(older) == ("allowed", ["inner new"])
            with root.leased("newer") as newer:
                await remove(root, "outer")
                assert await guards.ask(older) == ("allowed", ["inner old"])
                assert await guards.ask(newer) == ("allowed", ["inner new"])


@in_every_mode
async def test_rules_hold_for_the_guards_of_one_agent(event: Any) -> None:
    guards = Guards(event)
    one, two = Scope("one"), Scope("two")
    async with started(guards.guard("a", one), guards.guard("b", one), guards.guard("c")) as root:
        with root.leased("a step") as view:
            await remove(root, "a")
            await only(root, "b").update({"form": "new"})
            await root.plugin(guards.guard("d", one)).settled()
            assert await guards.ask(view, one) == ("allowed", ["a old", "b new", "c old", "d old"])
            for agent in (two, None):
                assert await guards.ask(view, agent) == ("allowed", ["c old"])
            assert await guards.ask(root, one) == ("allowed", ["b new", "c old", "d old"])
            await one.close()
            assert await guards.ask(view, one) == ("allowed", ["c old"]), "its guards ended with the agent"


@in_every_mode
async def test_a_disposed_guard_covers_nobody_and_a_disposed_listener_neither(event: Any) -> None:
    guards = Guards(event)
    async with started(guards.guard("a"), guards.guard("b")) as root:
        with root.leased("a step") as view:
            await only(root, "a").dispose()
            assert await guards.ask(view) == ("allowed", ["b old"])
            (effect,) = only(root, "b").effects
            await effect.dispose()
            assert await guards.ask(view) == ("allowed", [])


@pytest.mark.parametrize("event", [POLICIES[0], POLICIES[2]], ids=lambda event: event.name)
async def test_a_policy_dispatch_keeps_new_and_leased_guards_open_until_it_is_over(event: Any) -> None:
    guards = Guards(event)
    asked: list[tuple[str | None, list[str]]] = []

    async with started(guards.guard("a"), guards.guard("b")) as root:
        leased, new = only(root, "a"), root.plugin(guards.guard("c"))
        await new.settled()
        lease = root.leased("a step")
        view = lease.__enter__()
        await remove(root, "a")

        async def ask() -> None:
            asked.append(await guards.ask(view))

        guards.go = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await guards.busy.wait()
            lease.__exit__(None, None, None)
            await new.update({"form": "new"})
            await anyio.wait_all_tasks_blocked()
            assert leased.draining
            assert new.draining
            guards.go.set()
        await leased.closing()
        await new.closing()
        assert asked == [("allowed", ["a old", "b old", "c old"])]


@in_every_mode
async def test_a_question_that_is_no_policy_is_asked_of_what_was_leased_only(event: Any) -> None:
    guards = Guards(type(event)(event.name, subject=subject))
    async with started(guards.guard("a"), guards.guard("b")) as root:
        with root.leased("a step") as view:
            await only(root, "a").update({"form": "new"})
            await remove(root, "b")
            await root.plugin(guards.guard("c")).settled()
            assert await guards.ask(view) == ("allowed", ["a old", "b old"])
            assert await guards.ask(root) == ("allowed", ["a new", "c old"])
