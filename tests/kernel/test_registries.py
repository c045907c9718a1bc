"""Registries: they belong to the kernel, each entry to the plugin that added it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from dshd import (
    CommitRefusedError,
    Config,
    Context,
    Emit,
    EntryConflictError,
    Fiber,
    InactiveFiberError,
    KernelError,
    Plugin,
    Realm,
    RegistryChange,
    RegistryKey,
    ServiceKey,
    plugin,
)
from dshd.kernel.keys import DEFAULT_REALM
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio

CHANGED = Emit[RegistryChange]("thing/change")
THING = RegistryKey[object]("thing", CHANGED)
THINGS = ServiceKey[str]("thing")
QUIET = RegistryKey[object]("quiet")


@asynccontextmanager
async def started(*plugins: Plugin[Any]) -> AsyncIterator[Context]:
    with anyio.fail_after(5):
        async with running(*plugins) as root:
            yield root


def row(name: str, setup: Callable[[Context], object], provides: Sequence[ServiceKey[Any]] = ()) -> Plugin[Config]:
    @plugin(name, provides=provides)
    async def body(ctx: Context, config: Config) -> None:
        setup(ctx)

    return body


def adding(name: str, *entries: str) -> Plugin[Config]:
    """A row that registers its own name under each of `entries`."""
    return row(name, lambda ctx: [ctx.registry(THING).add(entry, name) for entry in entries])


def only(root: Context, name: str) -> Fiber:
    """The visible instance of a row."""
    (fiber,) = (each for each in root.kernel.rows[name] if each.visible)
    return fiber


def names(ctx: Context) -> list[str]:
    return list(ctx.registry(THING))


class Told:
    """Counts change notices, with what was visible at each."""

    def __init__(self, root: Context) -> None:
        self.changes: list[RegistryChange] = []
        self.seen: list[list[str]] = []
        self._root = root
        root.on(CHANGED, self._note)

    def _note(self, change: RegistryChange) -> None:
        self.changes.append(change)
        self.seen.append(names(self._root))


# -- ownership


async def test_what_a_plugin_registered_is_there_while_it_is_and_gone_without_a_trace_afterwards() -> None:
    async with started() as root:
        assert names(root) == []
        fiber = root.plugin(adding("a", "x", "y"))
        await fiber.settled()
        assert dict(root.registry(THING).items()) == {"x": "a", "y": "a"}
        assert list(root.registry(THING).values()) == ["a", "a"]
        assert root.registry(THING).owner("x") == "a"
        await fiber.dispose()
        assert root.kernel.registries == {}
        assert names(root) == []
        assert root.registry(THING).get("x") is None
        assert root.registry(THING).owner("x") is None
        with pytest.raises(KeyError, match="no thing 'x'"):
            root.registry(THING)["x"]


async def test_entries_outlive_the_provider_that_gives_them_meaning_and_its_successor_finds_them() -> None:
    found: list[list[str]] = []

    def setup(ctx: Context) -> None:
        ctx.provide(THINGS, "behaviour over entries")
        found.append(names(ctx))

    provider = row("provider", setup, provides=[THINGS])
    async with started(provider) as root:
        await root.plugin(adding("a", "x")).settled()
        face = root.registry(THING)
        await only(root, "provider").update({})
        assert found == [[], ["x"]]
        await only(root, "provider").dispose()
        assert names(root) == list(face) == ["x"]


async def test_an_effect_of_an_entry_is_undone_once() -> None:
    async with started() as root:
        told = Told(root)
        entry = root.registry(THING).add("x", 1)
        await entry.dispose()
        again = root.registry(THING).add("x", 2)
        await entry.dispose()
        assert root.registry(THING)["x"] == 2, "a second call does not take away what came after"
        await again.dispose()
        assert told.seen == [["x"], [], ["x"], []]


async def test_a_face_kept_while_the_registry_was_empty_finds_later_entries() -> None:
    async with started() as root:
        face = root.registry(THING)
        for value in range(3):
            entry = face.add("x", value)
            assert (face["x"], len(face), "x" in face) == (value, 1, True)
            await entry.dispose()
            assert (face.get("x"), len(face), "x" in face) == (None, 0, False)


async def test_order_is_priority_then_row_path_then_order_in_the_body_and_never_mount_time() -> None:
    def setup(ctx: Context) -> None:
        path, registry = ctx.fiber.path, ctx.registry(THING)
        registry.add(f"{path} late", 0, priority=1)
        registry.add(f"{path} one", 0)
        registry.add(f"{path} two", 0)
        registry.add(f"{path} first", 0, prepend=True)

    expected = ["a first", "b first", "a one", "a two", "b one", "b two", "a late", "b late"]
    async with started(row("b", setup), row("a", setup)) as root:
        assert names(root) == expected
        for name in "ab":
            await only(root, name).update({})
            assert names(root) == expected


# -- conflicts


async def test_a_second_entry_of_a_name_is_refused_and_both_owners_are_named() -> None:
    async with started(adding("a", "x")) as root:
        fiber = root.plugin(adding("b", "before", "x"))
        with pytest.raises(EntryConflictError, match=r"thing 'x'.*'a'.*'b'") as caught:
            await fiber.settled()
        error = caught.value
        assert (error.registry, error.name, error.holder, error.challenger) == ("thing", "x", "a", "b")
        assert dict(root.registry(THING).items()) == {"x": "a"}, "the refused plugin left nothing behind"
        with pytest.raises(EntryConflictError):
            only(root, "a").ctx.registry(THING).add("x", "the same owner")


async def test_a_stage_may_take_over_a_name_from_what_it_retires() -> None:
    async with started(adding("a", "x")) as root, root.kernel.stage() as stage:
        stage.retire(only(root, "a"))
        root.plugin(adding("b", "x"), stage=stage)
        await stage.settled()
        assert root.registry(THING)["x"] == "a"
        stage.commit()
        assert root.registry(THING)["x"] == "b"


async def test_a_stage_whose_name_was_taken_by_a_new_row_is_refused_at_its_commit() -> None:
    async with started() as root, root.kernel.stage() as stage:
        root.plugin(adding("b", "x"), stage=stage)
        await stage.settled()
        await root.plugin(adding("c", "x")).settled()
        with pytest.raises(CommitRefusedError, match="'thing x'") as caught:
            stage.commit()
        (reason,) = caught.value.reasons
        assert "'b'" in reason
        assert "'c'" in reason
        assert dict(root.registry(THING).items()) == {"x": "c"}


@pytest.mark.parametrize("composed", [False, True])
async def test_what_a_stage_has_prepared_does_not_hinder_the_present_but_the_commit(composed: bool) -> None:
    def setup(ctx: Context) -> None:
        entry = ctx.registry(THING).add("x", "b")
        if composed:
            ctx.compose("both", [entry])

    async with started(adding("a", "y")) as root, root.kernel.stage() as stage:
        root.plugin(row("b", setup), stage=stage)
        await stage.settled()
        entry = only(root, "a").ctx.registry(THING).add("x", "a")
        with pytest.raises(CommitRefusedError, match="'thing x'"):
            stage.commit()
        assert root.registry(THING)["x"] == "a"
        await entry.dispose()
        stage.commit()
        assert root.registry(THING)["x"] == "b", "once the name is free the commit goes through"


# -- changing an entry


async def test_setting_an_entry_is_one_swap_that_everybody_sees_leases_included() -> None:
    async with started(adding("a", "x", "y")) as root:
        fiber = only(root, "a")
        entry = fiber.ctx.registry(QUIET).add("swapped", 1)
        with root.leased("older") as older:
            await root.plugin(row("b", lambda ctx: ctx.registry(QUIET).add("b", 2))).settled()
            assert dict(older.registry(QUIET).items()) == {"swapped": 1}
            entry.set(10)
            assert dict(older.registry(QUIET).items()) == {"swapped": 10}
            assert dict(root.registry(QUIET).items()) == {"swapped": 10, "b": 2}, "and it keeps its place"


async def test_an_entry_that_is_gone_cannot_be_set() -> None:
    async with started(adding("a", "x")) as root:
        fiber = only(root, "a")
        entry, disposed = (fiber.ctx.registry(QUIET).add(name, 1) for name in ("kept", "disposed"))
        await disposed.dispose()
        with pytest.raises(KernelError, match="disposed"):
            disposed.set(2)
        await fiber.dispose()
        with pytest.raises(InactiveFiberError, match="kept"):
            entry.set(2)


# -- change notices


async def test_a_change_is_told_once_after_each_change_at_run_time_and_names_the_registry() -> None:
    async with started() as root:
        told = Told(root)
        entry = root.registry(THING).add("x", 1)
        assert told.seen == [["x"]]
        entry.set(2)
        assert told.seen == [["x"], ["x"]]
        await entry.dispose()
        assert told.seen == [["x"], ["x"], []]
        assert told.changes == [RegistryChange("thing", DEFAULT_REALM)] * 3


async def test_a_change_is_told_once_after_each_commit_however_many_rows_it_moves() -> None:
    async with started(adding("a", "a1", "a2"), adding("b", "b1")) as root:
        told = Told(root)
        async with root.kernel.stage() as stage:
            stage.retire(only(root, "a"))
            stage.replace(only(root, "b"))
            for name in ("c", "d"):
                root.plugin(adding(name, f"{name}1", f"{name}2"), stage=stage)
            await stage.settled()
            assert told.seen == []
            stage.commit()
            assert told.seen == [["b1", "c1", "c2", "d1", "d2"]]
        await anyio.wait_all_tasks_blocked()
        assert len(told.seen) == 1, "what was retired closes without another notice"


async def test_a_change_is_told_once_when_a_row_with_many_entries_is_mounted_and_disposed_of() -> None:
    async with started() as root:
        told = Told(root)
        fiber = root.plugin(adding("a", "x", "y", "z"))
        await fiber.settled()
        await fiber.dispose()
        assert told.seen == [["x", "y", "z"], []]


async def test_nothing_is_told_of_a_stage_that_is_filled_and_discarded() -> None:
    async with started(adding("a", "x")) as root:
        told = Told(root)
        async with root.kernel.stage() as stage:
            root.plugin(adding("b", "y"), stage=stage)
            stage.replace(only(root, "a"))
            await stage.settled()
        assert told.seen == []


async def test_nothing_is_told_of_a_row_that_fails_while_it_opens() -> None:
    def setup(ctx: Context) -> None:
        ctx.registry(THING).add("y", 1)
        raise ValueError("clumsy")

    async with started(adding("a", "x")) as root:
        told = Told(root)
        fiber = root.plugin(row("b", setup))
        with pytest.raises(ValueError, match="clumsy"):
            await fiber.settled()
        await fiber.dispose()
        assert told.seen == []


async def test_nothing_is_told_of_commits_that_change_another_registry_or_no_registry() -> None:
    async with started(adding("a", "x"), row("b", lambda ctx: ctx.registry(QUIET).add("x", 1))) as root:
        told = Told(root)
        await only(root, "b").update({})
        await root.plugin(row("c", lambda ctx: None)).settled()
        await only(root, "b").dispose()
        assert told.seen == []


async def test_a_listener_that_changes_the_registry_while_being_told_is_told_of_that_afterwards_once() -> None:
    events: list[str] = []
    async with started() as root:

        def react(change: RegistryChange) -> None:
            events.append(f"begins with {names(root)}")
            if "derived" not in root.registry(THING):
                root.registry(THING).add("derived", 1)
                root.registry(THING).add("another", 1)
            events.append("ends")

        root.on(CHANGED, react)
        root.registry(THING).add("x", 1)
        assert events == ["begins with ['x']", "ends", "begins with ['x', 'derived', 'another']", "ends"]


# -- realms


async def test_a_realm_isolates_a_registry_together_with_the_service_of_its_name() -> None:
    def setup(ctx: Context) -> None:
        ctx.provide(THINGS, ctx.fiber.path)
        ctx.registry(THING).add("x", ctx.fiber.path)

    async with started() as root:
        told = Told(root)
        realm = Realm("shared")
        contexts = {"here": root, "there": root.isolate(THINGS, realm), "alone": root.isolate(THINGS)}
        for name, ctx in contexts.items():
            await ctx.plugin(row(name, setup, provides=[THINGS])).settled()
        for name, ctx in contexts.items():
            assert (ctx.get(THINGS), dict(ctx.registry(THING).items())) == (name, {"x": name})
        assert root.isolate(THINGS, "shared").registry(THING)["x"] == "there"
        assert [change.realm for change in told.changes] == [DEFAULT_REALM, realm, contexts["alone"].realm(THING)]
        await only(root, "there").dispose()
        assert names(contexts["there"]) == []
        assert names(root) == ["x"]
        assert told.changes[3:] == [RegistryChange("thing", realm)]
