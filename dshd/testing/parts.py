"""Plugins for tests of the loader: rows that say what happened to them, and misbehave when told to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio

from dshd.kernel.context import Context
from dshd.kernel.keys import RegistryKey, ServiceKey
from dshd.kernel.plugin import Config, plugin
from dshd.loader.events import CONFIG_UPDATE

THINGS = RegistryKey[int]("things")
DB = ServiceKey[str]("db")

journal: list[str] = []
"""What happened, in order: `open ID VALUE`, `close ID VALUE`."""

gates: dict[str, anyio.Event] = {}
"""Doors that parts wait at when opening or closing; a name that is not here stops nobody."""


class Part(Config):
    id: str = "part"
    value: int = 0
    start: str = "fine"
    """`fine`, `fail`, `hang`, `deaf` (ignores its cancellation), `wait NAME` (at a gate), `exit`."""
    stop: str = "fine"
    """The same, for the code after the `yield`."""
    later: str = "fine"
    """`crash`: fails once it has been committed."""


async def _behave(how: str, what: str) -> None:
    if how == "fail":
        raise RuntimeError(f"{what} failed as told")
    if how == "exit":
        raise SystemExit(3)
    if how == "hang":
        await anyio.sleep_forever()
    if how == "deaf":
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
    name = how.removeprefix("wait ")
    if name in gates:
        await gates[name].wait()


@plugin("part", config=Part)
async def part(ctx: Context, config: Part) -> AsyncIterator[None]:
    await _behave(config.start, "start")
    ctx.registry(THINGS).add(config.id, config.value)
    journal.append(f"open {config.id} {config.value}")
    if config.later == "crash":
        ctx.spawn(lambda: _behave("fail", "later"), name="crash")
    yield
    journal.append(f"close {config.id} {config.value}")
    await _behave(config.stop, "stop")


@plugin("db", config=Part, provides=[DB])
async def db(ctx: Context, config: Part) -> AsyncIterator[None]:
    await _behave(config.start, "start")
    ctx.provide(DB, f"db {config.value}")
    journal.append(f"open {config.id} {config.value}")
    yield
    journal.append(f"close {config.id} {config.value}")


@plugin("user", config=Part, inject=[DB])
async def user(ctx: Context, config: Part) -> AsyncIterator[None]:
    journal.append(f"open {config.id} {ctx[DB]}")
    yield
    journal.append(f"close {config.id}")


@plugin("keeper", config=Part, pinned=[DB])
async def keeper(ctx: Context, config: Part) -> AsyncIterator[None]:
    kept = ctx[DB]
    journal.append(f"open {config.id} {kept}")
    yield
    journal.append(f"close {config.id} {kept}")


@plugin("busy", config=Part)
async def busy(ctx: Context, config: Part) -> AsyncIterator[None]:
    """Everything a plugin may own: an entry, a listener, timers, a child."""

    async def tick() -> None:
        while True:  # noqa: ASYNC110 (a timer)
            await anyio.sleep(0.01)

    ctx.registry(THINGS).add(config.id, config.value)
    ctx.on(CONFIG_UPDATE, lambda update: None)
    ctx.spawn(tick, name="tick")
    ctx.spawn(tick, name="tock")
    ctx.plugin(part, {"id": f"{config.id}-child", "value": config.value})
    yield
