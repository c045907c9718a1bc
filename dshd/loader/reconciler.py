"""The reconciler: one task for every trigger, which keeps the live tree equal to what the files say.

It is no row, so nothing in the YAML can remove it, and it waits for no plugin without a deadline, so nothing can wedge
it. One attempt runs, plain wishes that wait are merged, and an edit that lands while an attempt prepares overtakes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog

from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber

from .attempt import Attempt, Request, Superseded, attempt_id, hold_for
from .code import Code
from .events import LOADER
from .face import LoaderFace
from .files import Files, Stored
from .history import Generation, History, Unconfirmed
from .issues import Issue
from .mount import LiveTree
from .options import ReloadOptions as ReloadOptions
from .plan import Plan
from .result import Outcome, Result
from .sources import Reading, Sources, fingerprint_again
from .spec import Spec
from .supervise import Supervisor
from .watch import Watch

_log = structlog.get_logger("dshd.loader")


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
        self.last: Result | None = None
        self.leaks: dict[str, None] = {}
        self.reading: Reading | None = None
        self.desired_issues: tuple[Issue, ...] = ()
        self._queue: list[Request] = []
        self._arrived = anyio.Event()
        self._supervisor = Supervisor(root, self.live, self.options.backoff)
        self._watch = Watch(self)
        self._face = root.provide(LOADER, LoaderFace(self))
        self._draining: dict[Fiber, float] = {}
        self._draining_changed = anyio.Event()

    # -- what others read

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self.live.specs

    def fiber(self, path: str) -> Fiber | None:
        return self.live.fiber(path)

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the sources as last read, for showing lines."""
        return {} if self.reading is None else self.reading.desired.tree.texts

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
        return self._watch.mode

    @property
    def draining(self) -> list[Fiber]:
        """Retired instances that are still open."""
        return [fiber for fiber in self._draining if not fiber.closed]

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
        return await self._ask(
            Request(
                trigger=trigger,
                plan_only=plan_only,
                if_generation=if_generation,
                confirm_seconds=confirm_seconds,
                allow_removals=allow_removals,
            )
        )

    async def rollback(self, generation: int | None = None) -> Result:
        """Go back to a stored generation, by default the one before the present, and stay there."""
        target = generation
        if target is None:
            earlier = [number for number in self.history.numbers() if number < self.generation]
            target = earlier[-1] if earlier else 0
        return await self._ask(Request(trigger="rollback", rollback_to=target))

    async def confirm(self) -> Result:
        """Keep a generation that would have rolled back. The result says `rolled_back` if it has."""
        waiting = self.history.unconfirmed
        if waiting is None:
            rolled = self.last is not None and self.last.result is Outcome.ROLLED_BACK
            return self._said("confirm", Outcome.ROLLED_BACK if rolled else Outcome.NOOP)
        await anyio.to_thread.run_sync(self.history.confirm, self.generation)
        return self._said("confirm", Outcome.COMMITTED)

    def request(self, request: Request) -> None:
        """Queue a wish without waiting; plain ones that wait are merged into the latest."""
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

    async def arrival(self) -> None:
        """Wait until something is asked for."""
        await self._arrived.wait()
        self._arrived = anyio.Event()

    def take_plain(self) -> list[Request]:
        """The waiting wishes that the running attempt answers as well."""
        taken = [request for request in self._queue if request.plain]
        self._queue = [request for request in self._queue if not request.plain]
        return taken

    # -- the task

    async def start(self, *, strict: bool = False) -> Result:
        """Start what the files say, or what is to be started instead; raises `StartRefused` if nothing can be.

        Instead: a rollback that holds; the generation before an unconfirmed one; the last good one if the files are
        invalid, unless `strict`.
        """
        held = await self._start_held()
        if held is not None:
            return held
        result = await self._attempt(Request(trigger="start"))
        if result.result in (Outcome.COMMITTED, Outcome.NOOP):
            return result
        good = None if strict else self.history.last_good()
        if good is None:
            raise StartRefused(result)
        self.degraded = f"the files are {result.result.value}, so generation {good.number} runs"
        self.desired_issues = result.issues
        again = await self._attempt(Request(trigger="start", rollback_to=good.number))
        if again.result not in (Outcome.COMMITTED, Outcome.NOOP):
            raise StartRefused(result)
        return again

    async def _start_held(self) -> Result | None:
        waiting, hold = self.history.unconfirmed, self.history.hold
        target, reason = None, ""
        if waiting is not None:
            target, reason = waiting.previous, f"generation {waiting.generation} was never confirmed"
            await anyio.to_thread.run_sync(self.history.set_unconfirmed, None)
        elif hold is not None:
            target, reason = hold.generation, hold.reason
        stored = None if target is None else self.history.get(target)
        if stored is None or (hold is not None and waiting is None and not await self._same_inputs(hold.fingerprint)):
            return None
        self.degraded = f"{reason}, so generation {stored.number} runs"
        result = await self._attempt(Request(trigger="start", rollback_to=stored.number))
        if result.result in (Outcome.COMMITTED, Outcome.NOOP):
            return result
        self.degraded = None
        return None

    async def _same_inputs(self, fingerprint: str) -> bool:
        from .sources import read

        reading = await anyio.to_thread.run_sync(read, self.sources)
        return reading.fingerprint == fingerprint

    async def run(self) -> None:
        """Serve wishes for ever, and watch. Cancel it to stop."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervisor.run, name="optional rows")
            tasks.start_soon(self._watch.run, name="watch")
            tasks.start_soon(self._watch_confirmation, name="confirmation")
            tasks.start_soon(self._watch_draining, name="draining")
            while True:
                while not self._queue:
                    await self.arrival()
                await self._attempt(self._queue.pop(0))

    async def _attempt(self, request: Request) -> Result:
        """Run one attempt; whatever happens in it, it ends with a result and this goes on."""
        self.options.on_begin(request.trigger)
        structlog.contextvars.bind_contextvars(attempt=request.id)
        try:
            result = await Attempt(self, request).run()
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
        finally:
            structlog.contextvars.unbind_contextvars("attempt")
        if result.result is Outcome.COMMITTED and request.trigger == "confirm":
            result = self._said("confirm", Outcome.ROLLED_BACK, attempt=request.id)
        self._tell(result)
        request.finish(result)
        return result

    def _tell(self, result: Result) -> None:
        self.last = result
        self.history.add_result(result.as_json())
        try:
            self.options.on_result(result)
        except Exception:
            _log.exception("telling of a result failed")

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

    def stored(self, generation: Generation) -> Files:
        return Stored.from_json(generation.files)

    def seen(self, reading: Reading) -> None:
        """These inputs are being judged: the watch looks for others."""
        self._watch.judged(reading)
        self.reading = reading

    def patience(self, reading: Reading) -> float:
        """Seconds to go on reading before these bytes are judged: they may be half of a save."""
        if reading.missing:
            return 2.0
        before = {} if self.reading is None else self.reading.desired.tree.texts
        now = reading.desired.tree.texts
        emptied = any(not text.strip() and before.get(name, "").strip() for name, text in now.items())
        broken = any(issue.code.startswith("E01") for issue in reading.desired.issues.errors)
        return 0.3 if emptied or broken else 0.0

    def apply_daemon(self, daemon: Mapping[str, Any], dry: bool) -> tuple[str, ...]:
        return self.options.apply_daemon(daemon, dry)

    def adopt(self, reading: Reading) -> None:
        """The files say what runs already."""
        self.degraded = None
        if self.history.hold is not None:
            self.history.set_hold(None)

    def committed(self, attempt: Attempt, reading: Reading) -> None:
        """A new tree has been published: number it, and remember what it must be rolled back to."""
        request, previous = attempt.request, self.generation
        self.generation = self.history.last_number = self.history.last_number + 1
        self.digest = reading.desired.digest
        if request.trigger in ("rollback", "confirm"):
            target = request.rollback_to
            self.degraded = f"rolled back to generation {target}"
            self.history.set_hold(hold_for(self.generation, self._watch.disk, self.degraded))
            self.history.set_unconfirmed(None)
        elif request.trigger != "start" or request.rollback_to is None:
            self.degraded = None
            if self.history.hold is not None:
                self.history.set_hold(None)
        if request.confirm_seconds is not None:
            waiting = self.history.unconfirmed
            first = previous if waiting is None else waiting.previous
            by = time.time() + request.confirm_seconds
            self.history.set_unconfirmed(Unconfirmed(generation=self.generation, previous=first, by=by))

    def drain(self, fibers: list[Fiber]) -> None:
        now = anyio.current_time()
        self._draining.update(dict.fromkeys(fibers, now))
        self._draining_changed.set()

    # -- beside the attempts

    async def _watch_confirmation(self) -> None:
        """Roll back what is not confirmed in time."""
        while True:
            waiting = self.history.unconfirmed
            if waiting is not None and time.time() >= waiting.by and self.generation:
                await self._ask(Request(trigger="confirm", rollback_to=waiting.previous))
                if self.history.unconfirmed is waiting:  # it could not be rolled back: say so once, not for ever
                    self.history.set_unconfirmed(None)
            await anyio.sleep(0.2 if waiting is not None else 1.0)

    async def _watch_draining(self) -> None:
        """Name what drains for long, and report what never ended."""
        warned: dict[Fiber, None] = {}
        while True:
            for fiber, since in list(self._draining.items()):
                if fiber.closed:
                    del self._draining[fiber]
                    warned.pop(fiber, None)
                    if fiber.abandoned:
                        self.leaks[fiber.path] = None
                elif anyio.current_time() - since > self.options.drain_warn_after and fiber not in warned:
                    warned[fiber] = None
                    _log.warning("still draining", row=fiber.path, seconds=round(anyio.current_time() - since))
            with anyio.move_on_after(1.0 if self._draining else None):
                await self._draining_changed.wait()
                self._draining_changed = anyio.Event()

    async def changed_on_disk(self) -> bool:
        """Whether the inputs differ from those judged last."""
        if self.reading is None:
            return True
        again = await anyio.to_thread.run_sync(fingerprint_again, self.sources, self.reading.files)
        return again != self.reading.fingerprint
