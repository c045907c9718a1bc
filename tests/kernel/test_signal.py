"""Being told to stop: signals, whose first cause wins, and what a plugin that has stopped may no longer do."""

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from dshd import (
    Aborted,
    Aborter,
    Config,
    Context,
    Emit,
    Fiber,
    InactiveFiberError,
    RegistryKey,
    ServiceKey,
    Signal,
    obey,
    picture,
    plugin,
)
from dshd.testing.kernel import running

pytestmark = pytest.mark.anyio


async def test_a_fresh_signal_asks_for_nothing() -> None:
    signal = Aborter().signal
    signal.check()
    assert (signal.aborted, signal.cause) == (False, None)


async def test_the_first_cause_wins_and_everybody_learns_it() -> None:
    aborter = Aborter()
    causes: list[object] = []

    async def wait() -> None:
        causes.append(await aborter.signal.wait())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            assert aborter.abort("the user") is True
            assert aborter.abort("the clock") is False
        causes.append(await aborter.signal.wait())
    assert causes == ["the user"] * 3
    assert (aborter.signal.aborted, aborter.signal.cause) == (True, "the user")
    with pytest.raises(Aborted, match="aborted: the user") as caught:
        aborter.signal.check()
    assert caught.value.cause == "the user"


async def test_nothing_is_no_cause_but_a_false_value_is() -> None:
    aborter = Aborter()
    with pytest.raises(ValueError, match="may not be None"):
        aborter.abort(None)
    assert not aborter.signal.aborted
    aborter.abort(0)
    with pytest.raises(Aborted, match="aborted: 0"):
        aborter.signal.check()


async def test_a_child_stops_with_its_parent_for_the_same_cause_and_never_the_other_way() -> None:
    parent = Aborter()
    child, sibling = Aborter(parent.signal), Aborter(parent.signal)
    grandchild = Aborter(child.signal)
    sibling.abort("its own")
    assert not parent.signal.aborted
    parent.abort("everything")
    assert [each.signal.cause for each in (child, grandchild, sibling)] == ["everything", "everything", "its own"]
    assert Aborter(parent.signal).signal.cause == "everything", "born after the parent was told"


async def test_a_detached_child_no_longer_follows_and_a_long_lived_parent_forgets_it() -> None:
    parent = Aborter()
    children = [Aborter(parent.signal) for _ in range(3)]
    children[0].detach()
    children[0].detach()
    children[1].abort("done")
    assert len(parent.signal._callbacks) == 1
    parent.abort("late")
    assert [each.signal.cause for each in children] == [None, "done", "late"]


def test_whoever_follows_is_told_the_cause_once_and_in_order() -> None:
    aborter = Aborter()
    told: list[tuple[str, object]] = []
    for name in ("first", "second"):
        aborter.signal.follow(lambda cause, name=name: told.append((name, cause)))  # type: ignore[misc]
    assert told == []
    aborter.abort("the user")
    aborter.abort("the clock")
    assert told == [("first", "the user"), ("second", "the user")]
    aborter.signal.follow(lambda cause: told.append(("late", cause)))()
    assert told[2:] == [("late", "the user")]


def test_whoever_takes_back_what_follows_is_not_told_and_is_forgotten() -> None:
    aborter = Aborter()
    told: list[object] = []
    forget, still = aborter.signal.follow(told.append), aborter.signal.follow(told.append)
    forget()
    forget()
    assert len(aborter.signal._callbacks) == 1, "the same callable follows twice, and only one was taken back"
    aborter.signal.follow(lambda cause: last())
    last = aborter.signal.follow(told.append)
    aborter.abort("stop")
    assert told == ["stop"], "one may be taken back by another that is told first"
    still()
    assert not aborter.signal._callbacks


def test_one_that_fails_when_it_is_told_keeps_nobody_else_from_learning() -> None:
    aborter = Aborter()
    child = Aborter(aborter.signal)
    told: list[object] = []

    def stumble(cause: object) -> None:
        raise ValueError(f"I stumbled over {cause}")

    aborter.signal.follow(stumble)
    grandchild = Aborter(child.signal)
    child.signal.follow(stumble)
    aborter.signal.follow(told.append)
    with pytest.raises(ExceptionGroup) as caught:
        aborter.abort("stop")
    assert (told, grandchild.signal.cause, aborter.signal.cause) == (["stop"], "stop", "stop")
    assert len(caught.value.exceptions) == 2
    assert not aborter.signal._callbacks


async def test_a_body_nobody_stops_returns_or_raises_as_it_is() -> None:
    async def answer() -> int:
        await checkpoint()
        return 42

    async def fail() -> None:
        await checkpoint()
        raise LookupError("as it is")

    with anyio.fail_after(5):
        for cooperative in (True, False):
            assert await obey(Aborter().signal, answer, cooperative=cooperative) == 42
            with pytest.raises(LookupError, match="as it is"):
                await obey(Aborter().signal, fail, cooperative=cooperative)


@pytest.mark.parametrize("cooperative", [True, False])
async def test_a_signal_already_given_keeps_the_body_from_beginning(cooperative: bool) -> None:
    aborter = Aborter()
    aborter.abort("too late")

    async def body() -> None:
        raise AssertionError("it began")

    with anyio.fail_after(5), pytest.raises(Aborted, match="too late"):
        await obey(aborter.signal, body, cooperative=cooperative)


async def stop_when_blocked(aborter: Aborter) -> None:
    await wait_all_tasks_blocked()
    aborter.abort("stop")


async def test_a_body_that_takes_the_signal_ends_by_itself_and_returns_what_it_has() -> None:
    aborter = Aborter()

    async def body() -> str:
        await aborter.signal.wait()
        await checkpoint()
        return f"half, because of {aborter.signal.cause}"

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_when_blocked, aborter)
            assert await obey(aborter.signal, body, cooperative=True) == "half, because of stop"


@pytest.mark.parametrize(("cooperative", "grace"), [(False, 1000.0), (True, 0.02)], ids=["not taking it", "too long"])
async def test_a_body_that_does_not_take_the_signal_or_outlasts_the_grace_is_cancelled(
    cooperative: bool, grace: float
) -> None:
    aborter = Aborter()
    left: list[str] = []

    async def body() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            left.append("cleaned up")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_when_blocked, aborter)
            with pytest.raises(Aborted) as caught:
                await obey(aborter.signal, body, cooperative=cooperative, grace=grace)
    assert (caught.value.cause, left) == ("stop", ["cleaned up"])


async def test_a_body_that_raises_while_it_is_cancelled_raises_its_error() -> None:
    aborter = Aborter()

    async def body() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("while leaving")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_when_blocked, aborter)
            with pytest.raises(LookupError, match="while leaving"):
                await obey(aborter.signal, body, cooperative=False)


async def test_a_result_that_is_there_when_the_signal_comes_is_not_lost() -> None:
    aborter = Aborter()

    async def body() -> int:
        aborter.abort("at the last moment")
        return 42

    with anyio.fail_after(5):
        assert await obey(aborter.signal, body, cooperative=False) == 42


@pytest.mark.parametrize("cooperative", [True, False])
async def test_the_cancellation_of_the_caller_is_not_taken_for_the_signal(cooperative: bool) -> None:
    async def body(signal: Signal) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            signal = Aborter().signal

            async def cancel() -> None:
                await wait_all_tasks_blocked()
                scope.cancel()

            tasks.start_soon(cancel)
            await obey(signal, lambda: body(signal), cooperative=cooperative)
            raise AssertionError("it returned")
    assert scope.cancelled_caught


# -- what has stopped

DB = ServiceKey[str]("db")
THING = RegistryKey[int]("thing")
PING = Emit[str]("ping")


@plugin("quiet")
async def quiet(ctx: Context, config: Config) -> None: ...


@plugin("waiting", inject=[DB], provides=[DB])
async def waiting(ctx: Context, config: Config) -> None: ...


def one(root: Context, path: str) -> Fiber:
    return next(iter(root.kernel.rows[path]))


async def test_registering_on_what_is_not_live_is_a_typed_error_and_registers_nothing() -> None:
    refused: list[str] = []

    def offer(ctx: Context) -> None:
        async def task() -> None: ...

        for verb in (
            lambda: ctx.defer(lambda: None),
            lambda: ctx.on(PING, lambda who: None),
            lambda: ctx.spawn(task),
            lambda: ctx.spawn(task, while_open=True),
            lambda: ctx.plugin(quiet),
            lambda: ctx.registry(THING).add("late", 1),
            lambda: ctx.provide(DB, "late"),
        ):
            with pytest.raises(InactiveFiberError) as caught:
                verb()
            refused.append(caught.value.state)

    @plugin("unloading", provides=[DB])
    async def unloading(ctx: Context, config: Config) -> AsyncIterator[None]:
        ctx.defer(lambda: offer(ctx))
        yield
        offer(ctx)

    @plugin("failing", provides=[DB])
    async def failing(ctx: Context, config: Config) -> None:
        raise ValueError("broken")

    with anyio.fail_after(5):
        async with running(unloading, waiting) as root:
            pending, fiber, broken = one(root, "waiting"), one(root, "unloading"), root.plugin(failing)
            offer(pending.ctx)
            await fiber.dispose()
            offer(fiber.ctx)
            with pytest.raises(ValueError, match="broken"):
                await broken.settled()
            offer(broken.ctx)
            assert dict.fromkeys(refused) == dict.fromkeys(["pending", "unloading", "disposed", "failed"])
            assert len(refused) == 7 * 5
            assert (picture(root).effects, picture(root).entries, picture(root).listeners) == (2, 0, 0)


async def test_a_callback_that_mounts_after_its_plugin_has_gone_gets_the_typed_error_and_leaks_nothing() -> None:
    later: list[Context] = []

    @plugin("hasty")
    async def hasty(ctx: Context, config: Config) -> None:
        later.append(ctx)

    with anyio.fail_after(5):
        async with running(hasty) as root:
            await one(root, "hasty").dispose()
            fibers = len(root.kernel.fibers)
            with pytest.raises(
                InactiveFiberError, match="plugin 'hasty' is disposed, so 'plugin quiet' was not registered"
            ):
                later[0].plugin(quiet)
            assert (len(root.kernel.fibers), picture(root).fibers) == (fibers, ())
