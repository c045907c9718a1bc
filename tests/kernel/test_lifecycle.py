"""The life of one plugin: what it waits for, what it owns, how it ends, and what others may ask of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from dshd import (
    Config,
    Context,
    Fiber,
    FiberState,
    Plugin,
    RegistryKey,
    ServiceConflictError,
    ServiceKey,
    ServiceNotDeclaredError,
    picture,
    plugin,
)
from dshd.kernel.errors import PluginDefinitionError
from dshd.kernel.internal import SERVICE, STATUS
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

PENDING, LOADING, ACTIVE = FiberState.PENDING, FiberState.LOADING, FiberState.ACTIVE
UNLOADING, FAILED, DISPOSED = FiberState.UNLOADING, FiberState.FAILED, FiberState.DISPOSED
DB = ServiceKey[str]("db")
THING = RegistryKey[int]("thing")


class Value(Config):
    value: str = "one"


@asynccontextmanager
async def kernel(*plugins: Plugin[Any], **options: Any) -> AsyncIterator[Context]:
    with anyio.fail_after(10):
        async with running(*plugins, **options) as root:
            yield root


def database(log: list[str], name: str = "db") -> Plugin[Value]:
    @plugin(name, config=Value, provides=[DB])
    async def body(ctx: Context, config: Value) -> AsyncIterator[None]:
        log.append(f"{name} opens {config.value}")
        ctx.provide(DB, config.value)
        yield
        log.append(f"{name} closes {config.value}")

    return body


def user(log: list[str], name: str = "user") -> Plugin[Config]:
    @plugin(name, inject=[DB])
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        log.append(f"{name} opens on {ctx[DB]}")
        yield
        log.append(f"{name} closes on {ctx[DB]}")

    return body


@plugin("rest")
async def rest(ctx: Context, config: Config) -> None:
    pass


def row(root: Context, path: str) -> Fiber:
    return next(iter(root.kernel.rows[path]))


async def test_a_plugin_waits_for_its_service_says_so_and_opens_when_it_appears() -> None:
    log: list[str] = []
    states: list[FiberState] = []
    async with kernel() as root:
        root.on(STATUS, lambda change: states.append(change.new) if change.fiber.name == "user" else None)
        fiber = root.plugin(user(log))
        await fiber.settled()
        seen = picture(root).fibers[0]
        assert (seen.path, seen.state, seen.missing[0].key) == ("user", PENDING, "db")
        assert seen.reason == "waits for service 'db', which nobody that is mounted could provide"
        await root.plugin(database(log)).settled()
        await fiber.settled()
        assert (picture(root).fibers[1].reason, fiber.missing()) == (None, [])
    assert states == [LOADING, ACTIVE, UNLOADING, DISPOSED]


async def test_who_loses_a_provider_closes_first_on_what_it_was_built_on_and_waits_for_another() -> None:
    log: list[str] = []
    async with kernel(database(log), user(log)) as root:
        await row(root, "db").dispose()
        await row(root, "user").settled()
        assert log == ["db opens one", "user opens on one", "user closes on one", "db closes one"]
        assert row(root, "user").state is PENDING
        await root.plugin(database(log), {"value": "two"}).settled()
        await row(root, "user").settled()
        assert log[4:] == ["db opens two", "user opens on two"]


async def test_a_nested_plugin_opens_and_closes_with_its_service_while_its_parent_stays() -> None:
    log: list[str] = []

    @plugin("parent")
    async def parent(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.plugin(user(log, "part"))
        yield
        log.append("parent closes")

    async with kernel(parent) as root:
        for value in ("one", "two"):
            await (provider := root.plugin(database([]), {"value": value})).settled()
            await next(iter(row(root, "parent").kids)).settled()
            await provider.dispose()
            assert row(root, "parent").state is ACTIVE
    whole = [f"part {does} on {value}" for value in ("one", "two") for does in ("opens", "closes")]
    assert log == [*whole, "parent closes"]


def family(log: list[str]) -> Plugin[Config]:
    @plugin("child")
    async def child(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.registry(THING).add("child", 2)
        yield
        log.append("child closes")

    @plugin("parent")
    async def parent(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.registry(THING).add("parent", 1)
        ctx.plugin(child)
        yield
        log.append("parent closes")

    return parent


async def test_a_child_is_staged_committed_and_retired_with_its_parent() -> None:
    log: list[str] = []
    async with kernel() as root:
        stage = root.kernel.stage()
        parent = root.plugin(family(log), stage=stage)
        await stage.settled()
        child = next(iter(parent.kids))
        assert (parent.state, child.state, list(root.registry(THING))) == (ACTIVE, ACTIVE, [])
        assert list(child.ctx.registry(THING)) == ["parent", "child"], "they see each other"
        stage.commit()
        assert list(root.registry(THING)) == ["parent", "child"], "in the same tick"
        away = root.kernel.stage()
        away.retire(parent)
        with root.leased("a reader") as view:
            away.commit()
            assert list(root.registry(THING)) == []
            await wait_all_tasks_blocked()
            assert list(view.registry(THING)) == ["parent", "child"]
            assert log == []
        await parent.closing()
        assert log == ["child closes", "parent closes"]
        assert child.state is DISPOSED


async def test_a_child_is_discarded_with_its_parent() -> None:
    log: list[str] = []
    async with kernel() as root:
        async with root.kernel.stage() as stage:
            parent = root.plugin(family(log), stage=stage)
            await stage.settled()
            child = next(iter(parent.kids))
        assert (parent.state, child.state, log) == (DISPOSED, DISPOSED, ["child closes", "parent closes"])
        after = picture(root)
        assert (after.epoch, after.fibers, after.effects, after.entries) == (1, (), 0, 0)


@pytest.mark.parametrize("state", [PENDING, LOADING, FAILED, ACTIVE], ids=lambda state: state.value)
async def test_whatever_is_disposed_of_ends_disposed_with_one_last_event(state: FiberState) -> None:
    told: list[FiberState] = []
    started = anyio.Event()

    @plugin("subject", inject=[DB] if state is PENDING else [])
    async def subject(ctx: Context, config: Config) -> None:
        started.set()
        if state is LOADING:
            await anyio.sleep_forever()
        if state is FAILED:
            raise ValueError("not today")

    async with kernel() as root:
        root.on(STATUS, lambda change: told.append(change.new))
        fiber = root.plugin(subject)
        if state is LOADING:
            await started.wait()
        elif state is FAILED:
            with pytest.raises(ValueError, match="not today"):
                await fiber.settled()
        else:
            await fiber.settled()
        assert fiber.state is state
        await fiber.dispose()
        await fiber.dispose()
        assert (fiber.state, picture(root).find("subject")) == (DISPOSED, None)
        assert (told.count(DISPOSED), told[-1], ACTIVE in told) == (1, DISPOSED, state is ACTIVE)


@pytest.mark.parametrize("settle", [True, False], ids=["open", "opening"])
async def test_a_plugin_may_dispose_of_its_own_child_while_it_opens(settle: bool) -> None:
    log: list[str] = []

    @plugin("parent")
    async def parent(ctx: Context, config: Config) -> None:
        child = ctx.plugin(database(log))
        if settle:
            await child.settled()
        await child.dispose()
        assert child.state is DISPOSED
        log.append("parent goes on")

    async with kernel(parent) as root:
        assert row(root, "parent").state is ACTIVE
        assert (list(row(root, "parent").kids), list(row(root, "parent").effects)) == ([], [])
        assert log[-1] == "parent goes on"


def picky(log: list[str]) -> Plugin[Config]:
    @plugin("picky", inject=[DB])
    async def body(ctx: Context, config: Config) -> None:
        log.append(ctx[DB])
        ctx.registry(THING).add("picky", 1)
        if ctx[DB] == "one":
            raise ValueError("not this one")

    return body


async def test_what_failed_opens_again_when_a_dependency_is_replaced_and_its_error_is_cleared() -> None:
    log: list[str] = []
    async with kernel(database([])) as root:
        fiber = root.plugin(picky(log))
        with pytest.raises(ValueError, match="not this one"):
            await fiber.settled()
        seen = picture(root).fibers[1]
        assert (seen.path, seen.state, seen.reason) == ("picky", FAILED, "ValueError: not this one")
        assert (list(root.registry(THING)), seen.effects) == ([], ()), "nothing is live under failed"
        await row(root, "db").update({"value": "two"})
        await fiber.settled()
        assert (fiber.state, fiber.error, log) == (ACTIVE, None, ["one", "two"])
        assert list(root.registry(THING)) == ["picky"]


async def test_what_failed_stays_failed_until_it_is_told_to_try_again() -> None:
    tries: list[int] = []

    @plugin("second_time_lucky")
    async def lucky(ctx: Context, config: Config) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not the first time")

    async with kernel() as root:
        fiber = root.plugin(lucky)
        with pytest.raises(ValueError, match="not the first time"):
            await fiber.settled()
        await wait_all_tasks_blocked()
        fiber.retry()
        await fiber.settled()
        assert (fiber.state, fiber.error, len(tries)) == (ACTIVE, None, 2)


async def test_a_second_provider_is_refused_naming_both_and_let_in_once_the_first_has_gone() -> None:
    log: list[str] = []
    async with kernel(database(log, "p")) as root:
        q = root.plugin(database(log, "q"), {"value": "two"})
        with pytest.raises(ServiceConflictError) as caught:
            await q.settled()
        assert (caught.value.holder, caught.value.challenger, caught.value.key) == ("p", "q", "db")
        assert (row(root, "p").state, q.state) == (ACTIVE, FAILED)
        await row(root, "p").dispose()
        q.retry()
        await q.settled()
        assert [(s.key, s.provider) for s in picture(root).services] == [("db", "q")]


async def test_two_providers_work_side_by_side_in_realms_of_their_own() -> None:
    log: list[str] = []
    async with kernel() as root:
        left, right = root.isolate(DB, "left"), root.isolate(DB, "right")
        for side, value in ((left, "one"), (right, "two")):
            await side.plugin(database([]), {"value": value}).settled()
            await side.plugin(user(log)).settled()
        await (outside := root.plugin(user(log, "outside"))).settled()
        assert (log, outside.state) == (["user opens on one", "user opens on two"], PENDING)
        assert (left.get(DB), right.get(DB), root.get(DB)) == ("one", "two", None)


class Face:
    """What `provide_each` gives: it acts for `consumer`; `helper` reads as the provider."""

    def __init__(self, consumer: Context, helper: Context) -> None:
        self.consumer, self.helper = consumer, helper


FACE = ServiceKey[Face]("face")


@plugin("factory", inject=[DB], provides=[FACE])
async def factory(ctx: Context, config: Config) -> None:
    ctx.provide_each(FACE, lambda consumer: Face(consumer, ctx.acting_for(consumer)))


async def test_an_undeclared_service_is_refused_directly_through_the_root_and_through_another_service() -> None:
    refused: list[str] = []

    @plugin("undeclared", inject=[FACE])
    async def undeclared(ctx: Context, config: Config) -> None:
        for way in (ctx, ctx.root, ctx[FACE].consumer, ctx.isolate(FACE, "elsewhere")):
            with pytest.raises(ServiceNotDeclaredError) as caught:
                way[DB]
            refused.append(caught.value.key)
        with pytest.raises(ServiceNotDeclaredError):
            ctx.provide(DB, "undeclared too")

    async with kernel(database([]), factory, undeclared) as root:
        assert (refused, row(root, "undeclared").state) == (["db"] * 4, ACTIVE)


async def test_a_factory_sees_what_its_provider_sees_and_registers_for_its_caller() -> None:
    undone: list[str] = []

    @plugin("caller", inject=[FACE])
    async def caller(ctx: Context, config: Config) -> None:
        helper = ctx[FACE].helper
        helper.defer(lambda db=helper[DB]: undone.append(db))  # type: ignore[misc]
        helper.registry(THING).add("made", 1)

    async with kernel(database([]), factory, caller) as root:
        assert root.registry(THING).owner("made") == "caller"
        await row(root, "caller").dispose()
        assert (undone, list(root.registry(THING)), row(root, "factory").state) == (["one"], [], ACTIVE)


async def test_an_optional_service_comes_and_goes_under_a_plugin_that_stays_and_is_told() -> None:
    told: list[tuple[str, str | None]] = []
    states: list[FiberState] = []

    @plugin("optional")
    async def optional(ctx: Context, config: Config) -> None:
        ctx.on(SERVICE, lambda change: told.append((change.key, ctx.get(DB))))

    async with kernel(optional) as root:
        fiber = row(root, "optional")
        root.on(STATUS, lambda change: states.append(change.new) if change.fiber is fiber else None)
        provider = root.plugin(database([]))
        await provider.settled()
        await provider.dispose()
        assert told == [("db", "one"), ("db", None)]
        assert (fiber.state, states) == (ACTIVE, [])


@pytest.mark.parametrize("shape", [{"required": [DB], "optional": []}, DB, "db", ["db"], [DB, None]], ids=str)
@pytest.mark.parametrize("field", ["inject", "pinned", "provides"])
async def test_a_declaration_of_another_shape_is_refused_with_the_accepted_form(field: str, shape: Any) -> None:
    with pytest.raises(PluginDefinitionError, match=rf"'odd': {field} is a list of service keys, such as \w+=\[LLM"):
        plugin("odd", **{field: shape})


A, B = ServiceKey[str]("a"), ServiceKey[str]("b")


def link(name: str, gives: ServiceKey[str], *needs: ServiceKey[str]) -> Plugin[Config]:
    @plugin(name, inject=needs, provides=[gives])
    async def body(ctx: Context, config: Config) -> None:
        ctx.provide(gives, name)

    return body


@pytest.mark.parametrize("edit", [True, False], ids=["an edit", "another provider"])
async def test_a_circle_is_shown_as_a_path_holds_nobody_else_up_and_is_broken_by(edit: bool) -> None:
    async with kernel(link("A", A, B), link("B", B, A), rest) as root:
        seen = picture(root).fibers[0]
        assert (seen.state, seen.reason) == (PENDING, "waits for 'b' in a cycle: A → b → B → a → A")
        assert row(root, "rest").state is ACTIVE
        async with root.kernel.stage() as stage:
            if edit:
                stage.replace(row(root, "A"), link("A", A))
            else:
                root.plugin(link("C", B), stage=stage)
            await stage.settled()
            stage.commit()
        await wait_all_tasks_blocked()
        assert (row(root, "A").state, row(root, "B").state) == (ACTIVE, ACTIVE if edit else FAILED), "C has B's place"
