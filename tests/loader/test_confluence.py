"""Whatever way a tree came about, it is the one a cold start gives; whatever goes wrong, it is the old or the new."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dshd import CONFIG_UPDATE
from dshd.kernel.watchdog import Timing
from dshd.loader.reconciler import StartRefused
from dshd.loader.resolve import Resolver
from dshd.loader.result import Outcome
from dshd.loader.sources import read
from dshd.testing.loader import Site, row
from dshd.testing.parts import DB

# -- chains of edits ---------------------------------------------------------------------------------------------------

IDS = ("a", "b", "c", "d")
USES = ("part", "part", "busy", "db", "user", "keeper")


@st.composite
def lines(draw: st.DrawFn, indent: str = "") -> str:
    found = []
    for name in draw(st.lists(st.sampled_from(IDS), unique=True, max_size=4)):
        more = draw(st.sampled_from(["", "", "", "optional: true", "isolate: [db]", "disabled: true", "inject: [db]"]))
        start = draw(st.sampled_from(["fine"] * 7 + ["fail"]))
        config: dict[str, Any] = {"value": draw(st.integers(0, 2)), "start": start}
        if indent:
            config["id"] = f"g-{name}"
        if draw(st.integers(0, 15)) == 0:
            config["valu"] = 1
        found.append(indent + row(name, draw(st.sampled_from(USES)), more, **config))
    return "".join(found)


@st.composite
def texts(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 12)) == 0:
        return draw(st.sampled_from(["plugins: [", "plugins: {a: {use: nowhere}}", "agnts: {}", "", "\t- x"]))
    text = draw(lines())
    if draw(st.booleans()):
        head = "  g:\n" + ("    isolate: [db]\n" if draw(st.booleans()) else "")
        inner = draw(lines("    "))
        text += f"{head}    group:\n{inner}" if inner else ""
    whole = f"plugins:\n{text}" if text else "plugins: {}\n"
    return whole + draw(st.sampled_from(["", "", "# a comment\n", "settings: {x: 1}\n"]))


@dataclass(frozen=True)
class Shape:
    """What can be seen of a tree."""

    digest: str
    rows: Mapping[str, str]
    things: list[tuple[str, int]]
    db: str | None
    listeners: list[str]
    states: Mapping[str, str]
    effects: Mapping[str, list[str]]


def shape(site: Site) -> Shape:
    kernel = site.root.kernel
    table = kernel.events.get(CONFIG_UPDATE.name)
    fibers = site.instances
    return Shape(
        digest=site.reconciler.digest,
        rows={path: spec.digest for path, spec in site.reconciler.specs.items()},
        things=list(site.things.items()),
        db=site.root.get(DB),
        listeners=[] if table is None else [entry.owner.path for entry in table.present()],
        states={path: fiber.state.value for path, fiber in fibers.items()},
        effects={path: [effect.label for effect in fiber.effects] for path, fiber in fibers.items()},
    )


async def rest(site: Site) -> None:
    """Until what the commits retired has gone, and optional rows have stopped being tried."""
    kernel = site.root.kernel

    def rests() -> bool:
        live = set(site.instances.values()) | {kernel.root}
        family = {member for fiber in live for member in ((fiber,) if fiber is kernel.root else fiber.family())}
        return all(fiber in family for fiber in kernel.fibers) and not any(
            fiber.is_loading for fiber in site.instances.values()
        )

    await site.until(rests)


def fresh_verdict(site: Site) -> tuple[bool, str, list[tuple[str, int | None]]]:
    """What `dshd check` in a fresh process would say."""
    desired = read(replace(site.sources(), resolver=Resolver())).desired
    return desired.ok, desired.digest, [(issue.code, issue.line) for issue in desired.issues]


async def chain(edits: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place, anyio.fail_after(60):
        site = Site(Path(place))
        site.write("plugins: {}\n")
        good = "plugins: {}\n"
        async with site.running() as reconciler:
            reconciler.options = replace(reconciler.options, backoff=replace(reconciler.options.backoff, initial=100))
            for edit in edits:
                before = shape(site)
                site.write(edit)
                result = await site.reload(allow_removals=True)
                ok, digest, issues = fresh_verdict(site)
                assert ok == (result.result is not Outcome.REJECTED), list(result.issues)
                if result.result in (Outcome.COMMITTED, Outcome.NOOP):
                    good = edit
                    assert digest == result.digest == reconciler.digest
                    assert issues == [(issue.code, issue.line) for issue in result.issues if issue.code != "W0602"]
                else:
                    assert (before.digest, before.rows) == (reconciler.digest, shape(site).rows)
            await rest(site)
            warm = shape(site)
        cold_home = Path(place) / "cold"
        cold_home.mkdir()
        cold = Site(cold_home)
        shutil.copy(site.state / "digest.key", cold.state)
        cold.write(good)
        async with cold.running():
            await rest(cold)
            assert shape(cold) == warm


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(edits=st.lists(texts(), min_size=1, max_size=6))
def test_any_chain_of_edits_ends_in_the_tree_of_a_cold_start(edits: list[str]) -> None:
    anyio.run(chain, edits)


# -- faults at every hook ----------------------------------------------------------------------------------------------

FAULTS = [
    *(f"start: {how}" for how in ("fail", "exit", "hang", "deaf")),
    *(f"stop: {how}" for how in ("fail", "exit", "hang", "deaf")),
    "later: crash",
]


@pytest.mark.anyio
@pytest.mark.parametrize("optional", [False, True], ids=["", "optional"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_leaves_the_old_tree_or_the_new_one(site: Site, fault: str, optional: bool) -> None:
    """The fault comes in by one edit, and what misbehaves is edited away by the next."""
    site.timing = Timing(load=0.15, unload=0.15, grace=0.05, slow=0.1)
    more = "optional: true" if optional else ""
    key, _, how = fault.partition(": ")

    def text(value: int, **config: object) -> str:
        return (
            f"plugins:\n{row('a', value=value)}{row('b', 'part', more, value=value, **config)}{row('c', value=value)}"
        )

    with anyio.fail_after(30):
        site.write(text(1))
        async with site.running():
            seen: list[dict[str, int]] = []
            done = anyio.Event()

            async def look() -> None:
                while not done.is_set():
                    if not seen or seen[-1] != site.things:
                        seen.append(site.things)
                    await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                bad = await site.edit(text(2, **{key: how}))
                good = await site.edit(text(3))
                await site.until(lambda: site.things == dict.fromkeys("abc", 3))
                done.set()
            stopped = key == "start" and not optional
            assert bad.result is (Outcome.PREPARE_FAILED if stopped else Outcome.COMMITTED)
            assert good.result is Outcome.COMMITTED
            trees = [dict.fromkeys("abc", value) for value in (1, 2, 3)]
            if key == "start":
                trees[1] = {"a": 2, "c": 2}  # an optional row may fail alone
            if key == "later":
                trees.append({"a": 2, "c": 2})
            assert [tree for tree in seen if tree not in trees] == []
            assert (site.things, list(site.reconciler.specs)) == (dict.fromkeys("abc", 3), ["a", "b", "c"])


@pytest.mark.anyio
async def test_a_cold_start_refuses_what_a_reload_refuses(site: Site) -> None:
    """CFG-10, the other way round."""
    site.parts(a=1)
    with anyio.fail_after(30):
        async with site.running():
            rejected = await site.edit("plugins: {a: {use: nowhere}}")
        (site.home / "other").mkdir()
        other = Site(site.home / "other")
        shutil.copy(site.file, other.file)
        with pytest.raises(StartRefused) as refused:
            async with other.running():
                pass
        told = [(issue.code, issue.line, issue.message) for issue in refused.value.result.issues]
        assert told == [(issue.code, issue.line, issue.message) for issue in rejected.issues]
