"""Keepers: state that outlives the instances of plugins, such as sessions, sockets and stores.

A keeper is a fiber under the root with a task of its own. It is opened once however many ask for it, belongs to no
stage, and is closed by its own task when nobody holds it any more. It keeps data; behaviour is the face that each
generation builds over it, so a keeper is handed no context of a row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from .effects import Effect
from .errors import KeeperLostError
from .keys import SharedKey
from .plugin import Config, Plugin

if TYPE_CHECKING:
    from .context import Context
    from .fiber import Fiber
    from .runtime import Kernel

T = TypeVar("T")


class Keeper:
    """One piece of shared state: its key, its value once open, and who holds it how often."""

    __slots__ = ("closing", "error", "fiber", "holders", "kernel", "key", "opened", "value")

    def __init__(self, kernel: Kernel, key: SharedKey[Any], open: Callable[[Context], AsyncIterator[Any]]) -> None:
        from .fiber import Fiber

        self.kernel = kernel
        self.key = key
        self.holders: dict[Fiber, int] = {}
        self.value: Any = None
        self.error: BaseException | None = None
        self.closing = False
        self.opened = False

        async def keep(ctx: Context, config: Config) -> AsyncIterator[None]:
            async with asynccontextmanager(open)(ctx) as self.value:
                self.opened = True
                yield
            self.value = None

        root = kernel.root
        self.fiber = Fiber(
            kernel, root, Plugin(f"keeper {key}", keep, Config), Config(), root.ctx, keeper=self
        )  # fmt: skip
        kernel.keepers[key] = self

    def failed(self, error: BaseException) -> None:
        """The keeper's own code failed: its holders re-open, and the next who asks opens it anew."""
        self.error = error
        self.fiber.ended = True
        self._forget()
        for holder in list(self.holders) if self.opened else ():
            holder.crash(KeeperLostError(holder.path, f"{self.key} that {holder.path!r} holds has failed: {error}"))

    def let_go(self, holder: Fiber) -> None:
        """One hold less; without any the keeper closes."""
        left = self.holders[holder] - 1
        if left:
            self.holders[holder] = left
            return
        del self.holders[holder]
        if not self.holders:
            self.closing = True
            self.fiber.end()

    def _forget(self) -> None:
        if self.kernel.keepers.get(self.key) is self:
            del self.kernel.keepers[self.key]

    def over(self) -> None:
        """The keeper's fiber has ended."""
        self._forget()


class Hold(Effect):
    """That a fiber uses a keeper, until nothing of the fiber is open."""

    __slots__ = ("_keeper",)
    lasting = True

    def __init__(self, owner: Fiber, keeper: Keeper) -> None:
        self._keeper = keeper
        keeper.holders[owner] = keeper.holders.get(owner, 0) + 1
        super().__init__(owner, f"hold {keeper.key}")

    def undo(self) -> None:
        self._keeper.let_go(self.owner)

    def sever(self) -> bool:
        self.release()
        return True


async def shared(ctx: Context, key: SharedKey[T], open: Callable[[Context], AsyncIterator[T]]) -> T:
    """See `Context.shared`."""
    kernel, owner = ctx.kernel, ctx.owner
    while True:
        owner.check(f"hold {key}")
        keeper = kernel.keepers.get(key)
        if keeper is None or not (keeper.closing or keeper.fiber.ended):
            break
        await kernel.closing.wait_closed(keeper.fiber)
        keeper.over()
    if keeper is None:
        keeper = Keeper(kernel, key, open)
    hold = Hold(owner, keeper)
    try:
        await keeper.fiber.settled()
        if keeper.error is not None:
            raise keeper.error
        owner.check(f"hold {key}")
    except BaseException:
        hold.release()
        raise
    value: T = keeper.value
    return value
