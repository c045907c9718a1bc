"""The reconciler: one task for every trigger, which keeps the live tree equal to what the files say.

It is no row, so nothing in the YAML can remove it, and it waits for no plugin without a deadline, so nothing can wedge
it. One attempt runs, plain wishes that wait are merged, and an edit that lands while an attempt prepares overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog

from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber

from .attempt import Attempt
from .code import Code
from .confirmation import Confirmation
from .drains import Drains
from .events import LOADER
from .face import LoaderFace
from .history import History, Hold
from .issues import Issue
from .mount import LiveTree
from .options import ReloadOptions as ReloadOptions
from .plan import Plan
from .request import Request, Superseded, attempt_id
from .result import Outcome, Result
from .sources import Reading, Sources, read
from .spec import Desired, Spec
from .supervise import Supervisor, keep_going
from .threads import in_thread
from .watch import Watch

_log = structlog.get_logger("dshd.loader")

_RUNS = (Outcome.COMMITTED, Outcome.NOOP)
_OVER = Issue(code="E0608", severity="error", message="the daemon is stopping: nothing is attempted any more")


class StartRefused(Exception):
    """Nothing could be started; `.result` says why."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__(f"nothing could be started: {result.result.value}")


class Reconciler:
    """Keeps the rows under `root` equal to `sources`. `start`, then `run` in a task of the process."""

    def __init__(self, root: Context, sources: Sources, state: Path, *, options: ReloadOptions | None = None) -> None:
        self.root = root
        self.sources = sources
        self.options = options or ReloadOptions()
        self.history = History(state)
        self.live = LiveTree()
        self.code = Code(sources.resolver)
        self.generation = 0
        self.digest = ""
        self.degraded: str | None = None
        self.running: Desired | None = None
        self.last: Result | None = None
        self.reading: Reading | None = None
        """The inputs that were judged last."""
        self.confirmation = Confirmation(self.history, self._ask)
        self.drains = Drains(lambda: self.options.drain_warn_after)
        self._shown: Reading | None = None
        self._queue: list[Request] = []
        self._arrived = anyio.Event()
        self._told = anyio.Event()
        self._over = False
        self._supervisor = Supervisor(root, self.live, self.options.backoff)
        self.watch = Watch(self)
        self._face = root.provide(LOADER, LoaderFace(self))

    # -- what others read

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self.live.specs

    def fiber(self, path: str) -> Fiber | None:
        return self.live.fiber(path)

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the sources as last read, for showing lines."""
        return {} if self._shown is None else self._shown.desired.tree.texts

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The results of past attempts as JSON, the newest first, also of earlier processes."""
        return self.history.results

    @property
    def pending_restart(self) -> tuple[str, ...]:
        return () if self.last is None else self.last.pending_restart

    @property
    def confirm_by(self) -> str | None:
        waiting = self.history.unconfirmed
        return None if waiting is None else datetime.fromtimestamp(waiting.by, UTC).isoformat(timespec="seconds")

    @property
    def watch_mode(self) -> str:
        return self.watch.mode

    # -- asking for an attempt

    async def reload(
        self,
        trigger: str,
        *,
        plan_only: bool = False,
        if_generation: int | None = None,
        confirm_seconds: float | None = None,
        allow_removals: bool = False,
    ) -> Result:
        """Ask for an attempt and wait for its result, or for that of the attempt that answers it instead."""
        request = Request(trigger=trigger, plan_only=plan_only, allow_removals=allow_removals)
        request.if_generation, request.confirm_seconds = if_generation, confirm_seconds
        return await self._ask(request)

    async def rollback(self, generation: int | None = None) -> Result:
        """Go back to a stored generation, by default the last one that was another tree, and stay there."""
        target = generation
        if target is None:
            found = await in_thread(lambda: self.history.before(self.generation, self.digest))
            target = 0 if found is None else found.number
        return await self._ask(Request(trigger="rollback", rollback_to=target))

    async def confirm(self) -> Result:
        """Keep a generation that would have rolled back. The result says `rolled_back` if it has."""
        late = self.confirmation.rolled_back or (self.history.unconfirmed is not None and self.confirmation.overdue)
        if await self.confirmation.confirm(self.generation):
            return self._said("confirm", Outcome.COMMITTED)
        return self._said("confirm", Outcome.ROLLED_BACK if late else Outcome.NOOP)

    def request(self, request: Request) -> None:
        """Queue a wish without waiting; plain ones that wait are merged into the latest."""
        if self._over:
            request.finish(self._said(request.trigger, Outcome.REJECTED, attempt=request.id, issues=(_OVER,)))
            return
        waiting = next((other for other in self._queue if other.plain), None) if request.plain else None
        if waiting is not None:
            request.join(waiting)
            self._queue.remove(waiting)
        self._queue.append(request)
        self._arrived.set()

    async def _ask(self, request: Request) -> Result:
        self.request(request)
        await request.done.wait()
        assert request.result is not None
        return request.result

    # -- asked by the attempt that runs

    async def arrival(self) -> None:
        """Wait until something is asked for."""
        await self._arrived.wait()
        self._arrived = anyio.Event()

    @property
    def plain_waiting(self) -> bool:
        return any(request.plain for request in self._queue)

    def take_plain(self) -> list[Request]:
        """The waiting wishes that the running attempt answers as well."""
        taken = [request for request in self._queue if request.plain]
        self._queue = [request for request in self._queue if not request.plain]
        return taken

    def take_plans(self) -> list[Request]:
        """The waiting wishes for a plan: they need not wait for the attempt that runs."""
        taken = [request for request in self._queue if request.plan_only]
        self._queue = [request for request in self._queue if not request.plan_only]
        return taken

    async def answer(self, request: Request) -> None:
        """Plan beside the attempt that runs; if that ends first, the wish waits for its turn."""
        try:
            await self._attempt(request, beside=True)
        finally:
            if not request.done.is_set():
                self.request(request)

    # -- the task

    async def start(self, *, strict: bool = False) -> Result:
        """Start what the files say, or what is to be started instead; raises `StartRefused` if nothing can be.

        Instead: a rollback that holds; the generation before an unconfirmed one; the last good one if the files are
        invalid, unless `strict`.
        """
        try:
            return await self._start_held() or await self._start_files(strict)
        finally:
            await self._flush()

    async def _start_files(self, strict: bool) -> Result:
        request = Request(trigger="start")
        while (result := await self._attempt(request)).result is Outcome.SUPERSEDED:
            request, waiting = Request(trigger="start"), self.take_plain()
            for other in waiting:
                request.join(other)
        if result.result in _RUNS:
            return result
        good = None if strict else await in_thread(self.history.last_good)
        if good is None:
            raise StartRefused(result)
        first = next((f"{i.file}:{i.line}:{i.col}: {i.message}" for i in result.issues if i.severity == "error"), "")
        self.degraded = f"the files are {result.result.value} ({first}), so generation {good.number} runs"
        again = await self._attempt(Request(trigger="start", rollback_to=good.number))
        if again.result not in _RUNS:
            raise StartRefused(result)
        return again

    async def _start_held(self) -> Result | None:
        """Start what a rollback, or a confirmation that never came, has decided; `None` if nothing has."""
        history, waiting, hold = self.history, self.history.unconfirmed, self.history.hold
        if waiting is None and hold is None:
            return None
        disk = await in_thread(lambda: read(self.sources))
        if waiting is not None:
            self.confirmation.end(rolled_back=True)
            target = waiting.previous if history.get(waiting.previous) else getattr(history.last_good(), "number", 0)
            reason = f"generation {waiting.generation} was never confirmed"
            hold = Hold(generation=target, fingerprint=disk.fingerprint, reason=reason)
        assert hold is not None
        if history.get(hold.generation) is None or hold.fingerprint != disk.fingerprint:
            return None
        history.hold = hold
        self.degraded = f"{hold.reason}, so generation {hold.generation} runs"
        self.watch.disk = disk
        result = await self._attempt(Request(trigger="start", rollback_to=hold.generation))
        if result.result in _RUNS:
            return result
        self.degraded = None
        return None

    async def run(self) -> None:
        """Serve wishes for ever, and watch. Cancel it to stop."""
        try:
            await self._serve()
        finally:
            self._over, left = True, self._queue
            for request in left:
                self.request(request)

    async def _serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            for name, work in (
                ("optional rows", self._supervisor.run), ("watch", self.watch.run), ("draining", self.drains.watch),
                ("confirmation", self.confirmation.watch), ("history", self._write),
            ):  # fmt: skip
                tasks.start_soon(partial(keep_going, name, work), name=name)
            while True:
                while not self._queue:
                    await self.arrival()
                await self._attempt(self._queue.pop(0))

    async def _attempt(self, request: Request, *, beside: bool = False) -> Result:
        """Run one attempt; whatever happens in it, it ends with a result and this goes on."""
        if not request.plan_only:
            self._call(self.options.on_begin, request.trigger)
        structlog.contextvars.bind_contextvars(attempt=request.id)
        try:
            result = await Attempt(self, request, beside=beside).run()
        except Superseded:
            result = self._said(request.trigger, Outcome.SUPERSEDED, attempt=request.id)
            self._tell(result)
            waiting = next((other for other in self._queue if other.plain), None)
            if waiting is not None:
                waiting.join(request)
            else:
                self._queue.append(request)
            return result
        except Exception as exc:
            _log.exception("the attempt failed in the loader itself")
            text = f"the loader failed: {type(exc).__name__}: {exc}"
            issue = Issue(code="E0699", severity="error", message=text, hint="please report this")
            result = self._said(request.trigger, Outcome.REJECTED, attempt=request.id, issues=(issue,))
        except anyio.get_cancelled_exc_class():
            if not beside:
                request.finish(self._said(request.trigger, Outcome.REJECTED, attempt=request.id, issues=(_OVER,)))
            raise
        finally:
            structlog.contextvars.unbind_contextvars("attempt")
        if result.result in _RUNS and request.trigger == "confirm":
            result = replace(result, result=Outcome.ROLLED_BACK)
        if not request.plan_only:
            self._tell(result)
        request.finish(result)
        return result

    def _tell(self, result: Result) -> None:
        self.last = result
        self.history.add_result(result.as_json())
        self._told.set()
        self._call(self.options.on_result, result)

    def _call(self, told: Callable[[Any], None], value: object) -> None:
        try:
            told(value)
        except (Exception, SystemExit):
            _log.exception("telling the process of an attempt failed")

    async def _write(self) -> None:
        """Bring to the disk what no answer waits for."""
        try:
            while True:
                await self._told.wait()
                self._told = anyio.Event()
                await self._flush()
        finally:
            await self._flush()

    async def _flush(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await in_thread(self.history.flush)
        except OSError as exc:
            _log.error("the state directory cannot be written", error=str(exc))

    def _said(
        self, trigger: str, outcome: Outcome, *, attempt: str | None = None, issues: tuple[Issue, ...] = ()
    ) -> Result:
        """A result without an attempt of its own."""
        return Result(
            attempt=attempt or attempt_id(),
            trigger=trigger,
            result=outcome,
            generation=self.generation,
            digest=self.digest,
            plan=Plan(),
            issues=issues,
            degraded=self.degraded,
            confirm_by=self.confirm_by,
            pending_restart=self.pending_restart,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    # -- told by the attempt

    def seen(self, reading: Reading, directories: frozenset[str], *, only_shown: bool) -> None:
        """These inputs are being judged: the watch looks for others. What is only shown leaves that as it was."""
        self._shown = reading
        if not only_shown:
            self.watch.judged(reading, directories)
            self.reading = reading

    def patience(self, reading: Reading) -> float:
        """Seconds to go on reading before these bytes are judged: they may be half of a save."""
        if self.watch.disk is not None and self.watch.disk.fingerprint == reading.fingerprint:
            return 0.0
        before = {} if self.reading is None else self.reading.desired.tree.texts
        now = reading.desired.tree.texts
        emptied = any(not text.strip() and before.get(name, "").strip() for name, text in now.items())
        broken = any(issue.code.startswith("E01") for issue in reading.desired.issues.errors)
        if reading.missing and not reading.desired.ok:
            return 2.0
        return 0.3 if emptied or broken else 0.0

    def adopt(self, request: Request, reading: Reading) -> None:
        """What these inputs say runs already."""
        disk = self.watch.disk
        if request.rollback_to is None or (disk is not None and disk.desired.digest == self.digest):
            self.degraded = self.history.hold = None
        elif request.trigger != "start":
            self._hold(request)
        if request.trigger in ("rollback", "confirm"):
            self.confirmation.end(rolled_back=request.trigger == "confirm")

    def _hold(self, request: Request) -> None:
        self.degraded = f"rolled back to generation {request.rollback_to}"
        disk = "" if self.watch.disk is None else self.watch.disk.fingerprint
        self.history.hold = Hold(generation=self.generation, fingerprint=disk, reason=self.degraded)

    def committed(self, request: Request, reading: Reading) -> None:
        """A new tree has been published: number it, and remember what must be rolled back to."""
        self.generation = self.history.last_number = self.history.last_number + 1
        self.digest, self.running = reading.desired.digest, reading.desired
        self._supervisor.poke()
        if request.trigger in ("rollback", "confirm"):
            self._hold(request)
            self.confirmation.end(rolled_back=request.trigger == "confirm")
        elif request.rollback_to is None:
            self.degraded = self.history.hold = None
        elif self.history.hold is not None:
            self.history.hold = replace(self.history.hold, generation=self.generation)
