"""Groups of registry entries, replaced in one step; the policy view of a registry; registries of another service."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd import (
    CommitRefusedError,
    Config,
    Context,
    Emit,
    EntryConflictError,
    Fiber,
    InactiveFiberError,
    Plugin,
    RegistryChange,
    RegistryKey,
    Scope,
    ServiceKey,
    Timing,
    picture,
    plugin,
)
from dshd.kernel.errors import ClosedScopeError, EntryGoneError, LeaseEndedError
from dshd.kernel.registry import EntryGroup
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

CHANGED = Emit[RegistryChange]("route/change")
ROUTE = RegistryKey[str]("route", CHANGED)
GUARD = RegistryKey[str]("guard")
MODEL = ServiceKey[str]("model")
PROVIDER = RegistryKey[str]("model provider", of=MODEL)


class Routes(Config):
    names: tuple[str, ...] = ("a", "b")


@asynccontextmanager
async def started(*plugins: Plugin[Any] | tuple[Plugin[Any], dict[str, Any]]) -> AsyncIterator[Context]:
    with anyio.fail_after(5):
        async with running(*plugins) as root:
            yield root


def routing(name: str, groups: list[EntryGroup[str]] | None = None, scope: Scope | None = None) -> Plugin[Routes]:
    """A row that registers a group of the routes in its config, each with the row's name as value."""

    @plugin(name, config=Routes)
    async def body(ctx: Context, config: Routes) -> None:
        target = ctx if scope is None else ctx.scoped(scope)
        group = target.registry(ROUTE).add_group("routes", dict.fromkeys(config.names, name))
        if groups is not None:
            groups.append(group)

    return body


def adding(name: str, *entries: str, key: RegistryKey[str] = ROUTE) -> Plugin[Config]:
    @plugin(name)
    async def body(ctx: Context, config: Config) -> None:
        for entry in entries:
            ctx.registry(key).add(entry, name)

    return body


def only(root: Context, name: str) -> Fiber:
    (fiber,) = (each for each in root.kernel.rows[name] if each.visible)
    return fiber


def seen(ctx: Context, key: RegistryKey[str] = ROUTE) -> dict[str, str]:
    return dict(ctx.registry(key).items())


class Told:
    """What was visible at each change notice."""

    def __init__(self, root: Context) -> None:
        self.seen: list[dict[str, str]] = []
        root.on(CHANGED, lambda change: self.seen.append(seen(root)))


# -- replacing


async def test_a_group_is_replaced_in_one_step_that_is_told_once() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        told = Told(root)
        groups[0].replace({"b": "new", "c": "new", "d": "new"})
        assert told.seen == [{"b": "new", "c": "new", "d": "new"}]
        assert seen(root) == told.seen[0]
        assert list(seen(root)) == ["b", "c", "d"]
        assert root.registry(ROUTE).owner("c") == "p"


async def test_a_group_is_registered_in_one_step_that_is_told_once() -> None:
    async with started() as root:
        told = Told(root)
        root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})
        assert told.seen == [{"a": "1", "b": "2"}]


async def test_a_group_is_taken_back_in_one_step_that_is_told_once() -> None:
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2", "c": "3"})
        told = Told(root)
        await group.dispose()
        await group.dispose()
        assert told.seen == [{}]
        assert seen(root) == {}


async def test_nothing_is_told_of_a_replacement_that_changes_nothing() -> None:
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})
        told = Told(root)
        group.replace({"a": "1", "b": "2"})
        assert told.seen == []
        group.replace({"b": "2", "a": "1"})
        assert [list(each) for each in told.seen] == [["b", "a"]], "their order is a change"
        group.replace({"b": "2", "a": "other"})
        group.replace({"b": "2"})
        assert told.seen[1:] == [{"b": "2", "a": "other"}, {"b": "2"}]


async def test_a_group_may_be_empty_from_the_start_and_again() -> None:
    async with started() as root:
        told = Told(root)
        group = root.registry(ROUTE).add_group("routes", {})
        group.replace({})
        assert told.seen == []
        assert group.parts == ()
        for _ in range(3):
            group.replace({"a": "1"})
            assert seen(root) == {"a": "1"}
            group.replace({})
            assert seen(root) == {}
        assert told.seen == [{"a": "1"}, {}] * 3
        await group.dispose()


async def test_a_registry_that_was_dropped_meanwhile_is_refilled() -> None:
    async with started() as root:
        face = root.registry(ROUTE)
        group = face.add_group("routes", {"a": "1"})
        with root.leased("older") as older:
            group.replace({})
            assert ("route", root.realm(ROUTE)) not in root.kernel.registries, "nobody has an entry in it"
            other = root.registry(ROUTE).add("b", "2")
            group.replace({"a": "3"})
            assert seen(root) == seen(older) == dict(face.items()) == {"a": "3", "b": "2"}
            await other.dispose()
            group.replace({})
            group.replace({"c": "4"})
            assert seen(root) == seen(older) == dict(face.items()) == {"c": "4"}


async def test_a_replacement_made_by_a_listener_of_the_notice_is_told_after_it() -> None:
    events: list[list[str]] = []
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1"})

        def react(change: RegistryChange) -> None:
            events.append(list(seen(root)))
            if "derived" not in root.registry(ROUTE):
                group.replace({"derived": "2", "more": "3"})
            events.append(list(seen(root)))

        root.on(CHANGED, react)
        group.replace({"b": "1", "c": "1"})
        assert events == [["b", "c"], ["derived", "more"], ["derived", "more"], ["derived", "more"]]


async def test_a_listener_that_breaks_does_not_break_the_replacement() -> None:
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1"})
        heard: list[RegistryChange] = []

        def clumsy(change: RegistryChange) -> None:
            heard.append(change)
            raise ValueError("clumsy")

        root.on(CHANGED, clumsy)
        group.replace({"b": "1", "c": "2"})
        group.replace({"d": "1"})
        assert len(heard) == 2
        assert seen(root) == {"d": "1"}


class Moody(Mapping[str, str]):
    """Answers otherwise each time it is read."""

    def __init__(self, *answers: dict[str, str]) -> None:
        self.answers = list(answers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers.pop(0))

    def __getitem__(self, name: str) -> str:
        return "x"

    def __len__(self) -> int:
        return 1


async def test_a_mapping_is_read_once_so_that_no_name_slips_past_the_check() -> None:
    async with started(adding("other", "taken")) as root:
        group = root.registry(ROUTE).add_group("routes", Moody({"a": ""}, {"taken": ""}))
        assert seen(root) == {"taken": "other", "a": "x"}
        group.replace(Moody({"b": ""}, {"taken": ""}))
        assert seen(root) == {"taken": "other", "b": "x"}


async def test_what_is_done_to_the_mapping_afterwards_does_not_reach_the_group() -> None:
    async with started() as root:
        values = {"a": "1"}
        group = root.registry(ROUTE).add_group("routes", values)
        values["b"] = "2"
        assert seen(root) == {"a": "1"}
        group.replace(values)
        values.clear()
        assert seen(root) == {"a": "1", "b": "2"}


async def test_one_entry_of_a_group_may_end_earlier_and_come_back_with_the_next_set() -> None:
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})
        await group.parts[0].dispose()
        assert seen(root) == {"b": "2"}
        group.replace({"a": "1", "b": "2"})
        assert list(seen(root)) == ["a", "b"]


# -- conflicts


@pytest.mark.parametrize("first", [True, False])
async def test_a_name_of_another_owner_refuses_the_whole_set_and_changes_nothing(first: bool) -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups), adding("other", "taken")) as root:
        told = Told(root)
        before = seen(root)
        new = {"taken": "x", "c": "x"} if first else {"c": "x", "a": "changed", "taken": "x"}
        with pytest.raises(EntryConflictError, match=r"route 'taken'.*'other'.*'p'"):
            groups[0].replace(new)
        assert seen(root) == before
        assert told.seen == []
        assert picture(root).entries == 3
        groups[0].replace({"c": "x"})
        assert seen(root) == {"taken": "other", "c": "x"}


async def test_a_group_that_cannot_be_registered_leaves_nothing_behind() -> None:
    async with started(adding("other", "b")) as root:
        told = Told(root)
        effects = picture(root).effects
        with pytest.raises(EntryConflictError):
            root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})
        assert (seen(root), told.seen) == ({"b": "other"}, [])
        assert picture(root).effects == effects
        root.registry(ROUTE).add("a", "free")


async def test_an_owner_is_no_less_in_its_own_way() -> None:
    async with started() as root:
        root.registry(ROUTE).add("single", "1")
        one = root.registry(ROUTE).add_group("one", {"a": "1"})
        two = root.registry(ROUTE).add_group("two", {"b": "1"})
        for group, name in ((one, "single"), (one, "b"), (two, "a")):
            with pytest.raises(EntryConflictError):
                group.replace({name: "2"})
        with pytest.raises(EntryConflictError):
            root.registry(ROUTE).add("a", "2")
        one.replace({})
        two.replace({"a": "2"})
        assert seen(root) == {"single": "1", "a": "2"}


# -- ownership


async def test_a_group_that_was_taken_back_cannot_be_replaced() -> None:
    async with started() as root:
        group = root.registry(ROUTE).add_group("routes", {"a": "1"})
        await group.dispose()
        with pytest.raises(EntryGoneError, match="'routes'"):
            group.replace({"b": "1"})
        assert seen(root) == {}


async def test_a_group_ends_with_its_owner_and_cannot_be_replaced_then() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        told = Told(root)
        await only(root, "p").dispose()
        assert told.seen == [{}]
        assert root.kernel.registries == {}
        with pytest.raises(InactiveFiberError, match="'routes'"):
            groups[0].replace({"b": "1"})
        assert root.kernel.registries == {}


async def test_a_group_can_be_replaced_while_its_owner_opens_and_not_while_it_closes() -> None:
    found: list[object] = []

    @plugin("p")
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        group = ctx.registry(ROUTE).add_group("routes", {"a": "1"})
        group.replace({"b": "2"})
        yield
        try:
            group.replace({"c": "3"})
        except InactiveFiberError as error:
            found.append(error.state)

    async with started() as root:
        told = Told(root)
        fiber = root.plugin(body)
        await fiber.settled()
        assert told.seen == [{"b": "2"}], "nobody saw the first set"
        await fiber.dispose()
        assert found == ["unloading"]


async def test_a_group_is_one_effect_whose_parts_the_picture_shows_in_order() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        groups[0].replace({"c": "1", "a": "1"})
        groups[0].replace({"a": "1", "d": "1", "c": "1"})
        now = picture(root)
        (row,) = now.fibers
        (effect,) = row.effects
        assert effect.label == "routes"
        assert [part.label for part in effect.parts] == ["route a", "route d", "route c"]
        assert now.entries == 3
        assert list(only(root, "p").effects) == [groups[0]]


async def test_a_group_composed_with_other_effects_is_undone_in_its_place_and_at_once() -> None:
    order: list[object] = []
    async with started() as root:
        root.on(CHANGED, lambda change: order.append(list(seen(root))))
        first = root.defer(lambda: order.append("first"))
        group = root.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})
        last = root.defer(lambda: order.append("last"))
        both = root.compose("all", [first, group, last])
        group.replace({"b": "2", "c": "3"})
        order.clear()
        await both.dispose()
        assert order == ["last", [], "first"]
        with pytest.raises(EntryGoneError):
            group.replace({"d": "1"})


async def test_an_abandoned_owner_leaves_no_entry_of_its_group() -> None:
    stuck = anyio.Event()

    @plugin("stubborn")
    async def body(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.registry(ROUTE).add_group("routes", {"a": "1", "b": "2"})

        async def hang() -> None:
            with anyio.CancelScope(shield=True):
                await stuck.wait()

        ctx.defer(hang)
        yield

    with anyio.fail_after(5):
        async with running(timing=Timing(load=5, unload=0.05, grace=0.05, slow=2)) as root:
            fiber = root.plugin(body)
            await fiber.settled()
            await fiber.dispose()
            assert fiber.abandoned
            assert root.kernel.registries == {}
            stuck.set()


# -- order


async def test_a_group_stands_where_it_was_registered_in_the_order_of_the_mapping() -> None:
    async with started() as root:
        registry = root.registry(ROUTE)
        registry.add("before", "1")
        group = registry.add_group("routes", {"x": "1"})
        registry.add("after", "1")
        registry.add_group("late", {"z": "1", "y": "1"}, priority=1)
        registry.add_group("early", {"v": "1", "u": "1"}, priority=-1)
        group.replace({"c": "1", "a": "1", "x": "1", "b": "1"})
        assert list(seen(root)) == ["v", "u", "before", "c", "a", "x", "b", "after", "z", "y"]


SETS = st.lists(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sets=SETS, singles=st.booleans())
def test_after_any_history_all_is_as_at_a_cold_start_with_the_last_set(sets: list[list[str]], singles: bool) -> None:
    async def after(history: list[list[str]]) -> tuple[object, ...]:
        async with running() as root:
            told = Told(root)
            registry = root.registry(ROUTE)
            group = registry.add_group("routes", dict.fromkeys(history[0], "x"))
            if singles:
                registry.add("single", "y")
            with root.leased("older") as older:
                for names, before in zip(history[1:], history, strict=False):
                    told.seen.clear()
                    group.replace(dict.fromkeys(names, "x"))
                    assert len(told.seen) == (names != before)
                    assert list(seen(root)) == list(seen(older)) == [*names, *(["single"] if singles else [])]
            return list(seen(root)), [part.label for part in group.parts], picture(root).entries

    assert anyio.run(after, sets) == anyio.run(after, sets[-1:])


# -- scopes


async def test_a_group_of_a_scope_ends_with_it_in_one_step_and_leaves_no_member() -> None:
    ada = Scope("ada")
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups, ada), adding("other", "a")) as root:
        mine = root.scoped(ada)
        assert seen(root) == {"a": "other"}
        assert seen(mine) == {"a": "p", "b": "p"}, "entries of a scope come before global ones of the same name"
        groups[0].replace({"b": "p", "c": "p", "d": "p"})
        assert seen(mine) == {"a": "other", "b": "p", "c": "p", "d": "p"}
        told: list[dict[str, str]] = []
        root.on(CHANGED, lambda change: told.append(seen(mine)))
        await ada.close()
        assert told == [{"a": "other"}]
        assert picture(root).entries == 1
        assert list(only(root, "p").effects) == []
        with pytest.raises(ClosedScopeError):
            groups[0].replace({"e": "p"})
        with pytest.raises(ClosedScopeError):
            root.scoped(ada).registry(ROUTE).add_group("routes", {})


async def test_a_group_of_a_scope_ends_with_its_owner_if_that_is_first() -> None:
    ada = Scope("ada")
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups, ada)) as root:
        groups[0].replace({"c": "p"})
        await only(root, "p").dispose()
        assert root.kernel.registries == {}
        assert not ada._effects
        await ada.close()


async def test_groups_of_different_scopes_may_have_the_same_names() -> None:
    ada, bob = Scope("ada"), Scope("bob")
    async with started() as root:
        group = root.registry(ROUTE).add_group("all", {"a": "all"})
        of_ada = root.scoped(ada).registry(ROUTE).add_group("ada", {"a": "ada"})
        root.scoped(bob).registry(ROUTE).add_group("bob", {"b": "bob"})
        of_ada.replace({"b": "ada"})
        group.replace({"a": "all", "b": "all"})
        assert [seen(root.scoped(scope)) for scope in (ada, bob)] == [
            {"a": "all", "b": "ada"},
            {"a": "all", "b": "bob"},
        ]


# -- stages and leases


async def test_a_staged_instance_registers_the_same_names_beside_the_old_and_the_commit_swaps_them() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        told = Told(root)
        async with root.kernel.stage() as stage:
            candidate = stage.replace(only(root, "p"), config={"names": ("b", "c")})
            await stage.settled()
            old, new = groups
            new.replace({"b": "staged", "c": "staged", "d": "staged"})
            old.replace({"a": "old", "d": "old"})
            assert seen(candidate.ctx) == {"b": "staged", "c": "staged", "d": "staged"}
            assert seen(root) == {"a": "old", "d": "old"}
            assert told.seen == [{"a": "old", "d": "old"}], "nobody is told of what is staged"
            with root.leased("before the commit") as before:
                stage.commit()
                assert seen(root) == {"b": "staged", "c": "staged", "d": "staged"}
                assert seen(before) == {"a": "old", "d": "old"}
                assert told.seen[1:] == [{"b": "staged", "c": "staged", "d": "staged"}]
                assert only(root, "p") is candidate
                old.replace({"e": "still draining", "b": "for the lease only"})
                assert seen(before) == {"e": "still draining", "b": "for the lease only"}
                assert seen(root) == {"b": "staged", "c": "staged", "d": "staged"}
                assert len(told.seen) == 2
        await old.owner.closing()
        with pytest.raises(InactiveFiberError):
            old.replace({})
        new.replace({"z": "new"})
        assert seen(root) == {"z": "new"}


async def test_a_discarded_stage_leaves_the_group_that_is_live_alone() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        told = Told(root)
        async with root.kernel.stage() as stage:
            stage.replace(only(root, "p"), config={"names": ("c",)})
            await stage.settled()
            groups[1].replace({"x": "staged"})
        assert seen(root) == {"a": "p", "b": "p"}
        assert told.seen == []
        groups[0].replace({"x": "live"})
        assert seen(root) == {"x": "live"}


async def test_a_name_prepared_in_a_stage_does_not_hinder_the_present_but_the_commit() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root, root.kernel.stage() as stage:
        root.plugin(routing("q"), {"names": ("x", "y")}, stage=stage)
        await stage.settled()
        groups[0].replace({"y": "p"})
        with pytest.raises(CommitRefusedError, match="'route y'"):
            stage.commit()
        groups[0].replace({"z": "p"})
        stage.commit()
        assert seen(root) == {"z": "p", "x": "q", "y": "q"}
        with pytest.raises(EntryConflictError):
            groups[0].replace({"x": "p"})


async def test_a_group_staged_with_a_name_of_the_present_is_refused_unless_that_is_retired() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(adding("other", "a")) as root:
        async with root.kernel.stage() as stage:
            root.plugin(routing("q", groups), {"names": ("x",)}, stage=stage)
            await stage.settled()
            with pytest.raises(EntryConflictError):
                groups[0].replace({"x": "q", "a": "q"})
            stage.retire(only(root, "other"))
            groups[0].replace({"x": "q", "a": "q"})
            stage.commit()
        assert seen(root) == {"x": "q", "a": "q"}


async def test_a_lease_sees_what_a_fiber_that_stays_makes_of_its_group() -> None:
    groups: list[EntryGroup[str]] = []
    async with started(routing("p", groups)) as root:
        with root.leased("older") as older:
            await root.plugin(adding("new", "n")).settled()
            groups[0].replace({"b": "x", "c": "x"})
            assert seen(older) == {"b": "x", "c": "x"}
            assert seen(root) == {"n": "new", "b": "x", "c": "x"}


async def test_a_reader_sees_the_old_set_or_the_new_at_any_moment() -> None:
    groups: list[EntryGroup[str]] = []
    found: set[tuple[str, ...]] = set()
    async with started(routing("p", groups)) as root:

        def look() -> None:
            found.add(tuple(seen(root)))

        root.on(CHANGED, lambda change: look())
        done = False

        async def watch() -> None:
            while not done:
                look()
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for _ in range(20):
                groups[-1].replace({"b": "x", "c": "x", "d": "x"})
                await anyio.lowlevel.checkpoint()
                groups[-1].replace({"a": "x", "b": "x"})
                await only(root, "p").update({})
            done = True
        assert found == {("a", "b"), ("b", "c", "d")}


async def test_a_large_group_is_replaced_in_time_that_grows_with_its_size_only() -> None:
    async with started() as root:
        spent = []
        for size in (1_000, 4_000):
            group = root.registry(GUARD).add_group("guards", {f"{size} {n}": "x" for n in range(size)})
            best = float("inf")
            for turn in range(5):
                values = {f"{size} {n}": f"{turn}" for n in range(turn, size + turn)}
                begun = time.perf_counter()
                group.replace(values)
                best = min(best, time.perf_counter() - begun)
            spent.append(best)
            await group.dispose()
        assert spent[1] < 8 * spent[0]


# -- the policy view


def guard(name: str, *entries: str, scope: Scope | None = None) -> Plugin[Config]:
    @plugin(name)
    async def body(ctx: Context, config: Config) -> None:
        target = ctx if scope is None else ctx.scoped(scope)
        for entry in entries or (name,):
            target.registry(GUARD).add(entry, f"{name} {entry}")

    return body


async def test_what_binds_outside_a_lease_is_what_is_visible_in_order() -> None:
    async with started(guard("b", "x", "y"), guard("a", "z")) as root:
        assert root.registry(GUARD).binding() == ["a z", "b x", "b y"]
    async with started() as root:
        assert root.registry(GUARD).binding() == []


async def test_within_a_lease_an_added_entry_binds_at_once_and_a_removed_one_still_does() -> None:
    async with started(guard("kept"), guard("removed")) as root:
        with root.leased("a step") as view:
            async with root.kernel.stage() as stage:
                stage.retire(only(root, "removed"))
                root.plugin(guard("added"), stage=stage)
                await stage.settled()
                stage.commit()
            assert view.registry(GUARD).binding() == ["added added", "kept kept", "removed removed"]
            assert list(view.registry(GUARD)) == ["kept", "removed"], "to anybody but policy the lease shows what was"
            assert root.registry(GUARD).binding() == ["added added", "kept kept"]
        with pytest.raises(LeaseEndedError):
            view.registry(GUARD).binding()


async def test_within_a_lease_a_replaced_entry_binds_in_its_new_form_only() -> None:
    @plugin("guard", config=Routes)
    async def body(ctx: Context, config: Routes) -> None:
        ctx.registry(GUARD).add_group("guards", {name: f"{len(config.names)} {name}" for name in config.names})

    async with started(body) as root:
        with root.leased("a step") as view:
            await only(root, "guard").update({"names": ("b", "c", "d")})
            assert view.registry(GUARD).binding() == ["3 b", "3 c", "3 d"], "what the new form dropped is dropped"
            assert dict(view.registry(GUARD).items()) == {"a": "2 a", "b": "2 b"}
            await only(root, "guard").dispose()
            assert view.registry(GUARD).binding() == ["2 a", "2 b"], "its row is gone, what was leased still covers"


async def test_what_an_owner_takes_back_binds_nobody_not_even_in_a_lease() -> None:
    async with started(guard("disposed")) as root:
        group = root.registry(GUARD).add_group("guards", {"a": "1", "b": "2"})
        with root.leased("a step") as view:
            group.replace({"b": "2"})
            await only(root, "disposed").dispose()
            assert view.registry(GUARD).binding() == root.registry(GUARD).binding() == ["2"]


async def test_for_policy_entries_of_a_scope_stand_beside_global_ones_of_their_name() -> None:
    ada = Scope("ada")
    async with started(guard("a", "x"), guard("b", "x", scope=ada)) as root:
        assert root.registry(GUARD).binding() == ["a x"]
        assert root.scoped(ada).registry(GUARD).binding() == ["a x", "b x"]
        assert root.scoped(Scope("bob")).registry(GUARD).binding() == ["a x"]
        with root.scoped(ada).leased("a step") as view:
            async with root.kernel.stage() as stage:
                stage.retire(only(root, "b"))
                root.plugin(guard("c", "y", scope=ada), stage=stage)
                await stage.settled()
                stage.commit()
            assert view.registry(GUARD).binding() == ["a x", "b x", "c y"]


async def test_within_a_stage_policy_binds_what_is_live_and_what_the_stage_adds() -> None:
    views: list[list[str]] = []

    @plugin("asks")
    async def asks(ctx: Context, config: Config) -> None:
        views.append(ctx.registry(GUARD).binding())

    async with started(guard("live")) as root, root.kernel.stage() as stage:
        root.plugin(guard("a staged one"), stage=stage)
        await stage.settled()
        root.plugin(asks, stage=stage)
        await stage.settled()
        assert views == [["a staged one a staged one", "live live"]]
        assert root.registry(GUARD).binding() == ["live live"]


# -- realms


async def test_a_registry_of_a_service_moves_with_it_into_a_realm() -> None:
    @plugin("contributes")
    async def contributes(ctx: Context, config: Config) -> None:
        ctx.registry(PROVIDER).add_group("providers", {"p": ctx.fiber.path})

    async with started() as root:
        contexts = {"here": root, "alone": root.isolate(MODEL), "there": root.isolate(MODEL, "room")}
        for name, ctx in contexts.items():
            await ctx.plugin(contributes, id=name).settled()
        for name, ctx in contexts.items():
            assert seen(ctx, PROVIDER) == {"p": name}
            assert ctx.realm(PROVIDER) == ctx.realm(MODEL)
        assert seen(root.isolate(MODEL, "room"), PROVIDER) == {"p": "there"}
        assert seen(root.isolate(ServiceKey[str]("model provider")), PROVIDER) == {"p": "here"}, "its own name is none"
        with contexts["there"].leased("a step") as view:
            assert view.registry(PROVIDER).binding() == ["there"]


def test_a_registry_key_is_equal_by_name_and_stays_with_the_service_of_its_name_by_default() -> None:
    assert RegistryKey[str]("model provider") == PROVIDER
    assert hash(RegistryKey[str]("model provider")) == hash(PROVIDER)
    assert PROVIDER.isolated_with == MODEL.isolated_with == "model"
    assert ROUTE.isolated_with == "route"


async def test_a_group_stays_in_the_realm_it_was_registered_in() -> None:
    async with started() as root:
        room = root.isolate(MODEL, "room")
        group = room.registry(PROVIDER).add_group("providers", {"a": "1"})
        root.registry(PROVIDER).add("a", "here")
        group.replace({})
        group.replace({"a": "2", "b": "2"})
        assert seen(room, PROVIDER) == {"a": "2", "b": "2"}
        assert seen(root, PROVIDER) == {"a": "here"}
