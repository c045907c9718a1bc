"""One attempt: read, compose, validate, plan, gate, prepare, commit, drain, record.

Only `prepare` and what follows touch fibers. Whatever goes wrong before the commit changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from dshd.kernel.errors import CommitRefusedError, describe
from dshd.kernel.fiber import Fiber
from dshd.kernel.stage import Stage, why_not_open

from .events import CONFIG_UPDATE, HMR_RELOAD, PARTIAL_DISPOSE, CodeReloaded, ConfigUpdated, RowClosing
from .history import Generation, Hold
from .issues import Issues
from .mount import open_row
from .plan import Plan, plan
from .resolve import CodeReload
from .result import Outcome, Result
from .sources import Reading, fingerprint_again, read
from .spec import Spec

if TYPE_CHECKING:
    from .reconciler import Reconciler

GATED_FROM = 6
"""So many rows there must be before removing more than half of them is held."""

_numbers = count()


def attempt_id() -> str:
    """Sortable, unique in this process and across restarts."""
    return f"{time.time_ns() // 1000:014x}{next(_numbers) % 4096:03x}"


@dataclass(eq=False, kw_only=True)
class Request:
    """Somebody's wish for an attempt, and later its result."""

    trigger: str
    plan_only: bool = False
    if_generation: int | None = None
    confirm_seconds: float | None = None
    allow_removals: bool = False
    rollback_to: int | None = None
    id: str = field(default_factory=attempt_id)
    followers: list[Request] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Result | None = None

    @property
    def plain(self) -> bool:
        """Whether it only asks for what the files say: then another such wish answers it as well."""
        return not self.plan_only and self.if_generation is None and self.rollback_to is None

    def join(self, other: Request) -> None:
        """Let `other`, which is answered by the same attempt, have its result too."""
        self.followers.append(other)
        self.allow_removals = self.allow_removals or other.allow_removals
        if other.confirm_seconds is not None:
            self.confirm_seconds = other.confirm_seconds

    def finish(self, result: Result) -> None:
        self.result = result
        self.done.set()
        for follower in self.followers:
            follower.finish(result)


class Superseded(Exception):
    """Newer inputs have arrived while an attempt was preparing."""


class Attempt:
    """One run of the pipeline for one request."""

    def __init__(self, reconciler: Reconciler, request: Request) -> None:
        self.reconciler = reconciler
        self.request = request
        self.phase = "read"
        self.reading: Reading | None = None
        self.plan = Plan()
        self.issues = Issues()
        self.opened: dict[str, tuple[Spec, Fiber]] = {}
        self._phases: dict[str, float] = {}
        self._since = time.perf_counter()
        self._commit_ms: float | None = None
        self._draining: tuple[str, ...] = ()
        self._fresh: CodeReload | None = None

    # -- the pipeline

    async def run(self) -> Result:
        """Go through the phases; whatever the outcome, give the one result type."""
        try:
            return await self._run()
        finally:
            if self._fresh is not None:  # a no-op after the commit
                await anyio.to_thread.run_sync(self._fresh.discard)

    async def _run(self) -> Result:
        reconciler, request = self.reconciler, self.request
        expected = request.if_generation
        if expected is not None and expected != reconciler.generation:
            reason = f"generation {reconciler.generation} runs, not {expected}"
            return self._result(Outcome.CONFLICT, held=reason)
        reading = await self._read()
        if reading is None:
            return self._result(Outcome.REJECTED)
        self._enter("plan")
        desired = reading.desired
        stale: dict[str, str] = {}
        if self._fresh is None:
            stale = await anyio.to_thread.run_sync(reconciler.code.stale, reconciler.live.specs)
        self.plan = plan(reconciler.live.specs, desired.specs, stale)
        waiting = reconciler.apply_daemon(desired.daemon, dry=request.plan_only or not desired.ok)
        self.plan = Plan(actions=self.plan.actions, pending_restart=(*waiting, *self.plan.pending_restart))
        if not desired.ok:
            return self._result(Outcome.REJECTED)
        held = self._gate()
        if request.plan_only:
            return self._result(Outcome.HELD if held else Outcome.NOOP, held=held)
        if held:
            return self._result(Outcome.HELD, held=held)
        if self.plan.empty and desired.digest == reconciler.digest:
            reconciler.adopt(reading)
            return self._result(Outcome.NOOP)
        for last_try in (False, True):
            stage = await self._prepare()
            if stage is None:
                return self._result(Outcome.PREPARE_FAILED)
            refused = self._commit(stage)
            if refused is None:
                break
            self._discard(stage)
            if last_try:
                self.issues.error("0603", f"the tree moved while it was prepared: {refused}")
                return self._result(Outcome.PREPARE_FAILED)
        self._enter("record")
        result = self._result(Outcome.COMMITTED)
        await self._record(result)
        return result

    async def _read(self) -> Reading | None:
        """Read the sources; a source that is being written is given a moment."""
        reconciler, request = self.reconciler, self.request
        if request.rollback_to is not None:
            stored = await anyio.to_thread.run_sync(reconciler.history.get, request.rollback_to)
            if stored is None:
                kept = ", ".join(map(str, reconciler.history.numbers())) or "none"
                self.issues.error("0601", f"generation {request.rollback_to} is not stored", hint=f"stored: {kept}")
                return None
            self.reading = await anyio.to_thread.run_sync(read, reconciler.sources, reconciler.stored(stored))
        else:
            self._fresh, changed = await anyio.to_thread.run_sync(reconciler.code.judge)
            reconciler.code.tell(reconciler.root, changed)
            begun = anyio.current_time()
            while True:
                look = partial(read, reconciler.sources, running=dict(reconciler.live.specs))
                self.reading = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
                waited = anyio.current_time() - begun
                patience = 0.0 if request.trigger == "start" else reconciler.patience(self.reading)
                if waited >= patience:
                    break
                await anyio.sleep(0.05)
        reconciler.seen(self.reading)
        self.issues.add(self.reading.desired.issues)
        return self.reading

    def _gate(self) -> str | None:
        """Why a removal of much is held, or `None`."""
        if self.request.allow_removals or self.request.trigger in ("start", "rollback", "confirm"):
            return None
        running, removed = len(self.reconciler.live.specs), len(self.plan.of("remove"))
        if running and removed == running and not self.plan.of("add"):
            return f"it would remove all {running} rows; say --allow-removals if that is meant"
        if running >= GATED_FROM and removed * 2 > running:
            return f"it would remove {removed} of {running} rows; say --allow-removals if that is meant"
        return None

    async def _prepare(self) -> Stage | None:
        """Open what is new in a stage, beside what runs. `None` if something failed, which is then discarded."""
        self._enter("prepare")
        assert self.reading is not None
        reconciler, specs = self.reconciler, self.reading.desired.specs
        stage = reconciler.root.kernel.stage()
        try:
            leaving = [reconciler.live.fiber(path) for path in self.plan.of("remove", "replace")]
            for fiber in leaving:
                if fiber is not None:
                    stage.retire(fiber)
            reloaded = [
                action.row for action in self.plan.actions if "code" in action.changed and action.kind == "replace"
            ]
            if reloaded:
                reconciler.root.emit(HMR_RELOAD, CodeReloaded(tuple(reloaded)))
            self.opened = {
                path: (specs[path], open_row(reconciler.root, specs[path], stage))
                for path in self.plan.of("add", "replace")
            }
            for fiber in leaving:
                if fiber is not None:
                    stage.replace_pinned(fiber)
            await self._settle(stage)
        except Superseded:
            self._discard(stage)
            raise
        failed = [(spec, fiber) for spec, fiber in self.opened.values() if not fiber.is_open and not spec.optional]
        for spec, fiber in failed:
            reason = describe(fiber.error) if fiber.error is not None else why_not_open(fiber)
            self.issues.error("0602", f"row {spec.path!r} did not start: {reason}", spec.row.mark, row=spec.path)
        if failed:
            self._discard(stage)
            return None
        return stage

    async def _settle(self, stage: Stage) -> None:
        """Wait until the stage has settled, or newer inputs have arrived."""
        async with anyio.create_task_group() as tasks:

            async def settle() -> None:
                await stage.settled()
                tasks.cancel_scope.cancel()

            tasks.start_soon(settle, name="settle")
            while True:
                await self.reconciler.arrival()
                if await self._overtaken():
                    break
            tasks.cancel_scope.cancel()
        if stage.unsettled:
            raise Superseded

    async def _overtaken(self) -> bool:
        """Whether what has been asked for meanwhile is about other inputs; if not, this attempt answers it."""
        assert self.reading is not None
        if self.request.rollback_to is not None:
            return False
        again = await anyio.to_thread.run_sync(fingerprint_again, self.reconciler.sources, self.reading.files)
        if again != self.reading.fingerprint:
            return True
        for request in self.reconciler.take_plain():
            self.request.join(request)
        return False

    def _commit(self, stage: Stage) -> CommitRefusedError | None:
        """Publish, in one synchronous section; answers why not, if not."""
        self._enter("commit")
        reconciler, reading = self.reconciler, self.reading
        assert reading is not None
        old = [(path, reconciler.live.fiber(path)) for path in self.plan.of("remove", "replace")]
        begun = time.perf_counter()
        try:
            stage.commit()
        except CommitRefusedError as exc:
            return exc
        self._commit_ms = (time.perf_counter() - begun) * 1e3
        if self._fresh is not None:
            self._fresh.commit()
        reconciler.live.swap(self.opened, self.plan.of("remove"))
        reconciler.committed(self, reading)
        leased = reconciler.root.kernel.closing.is_leased
        self._draining = tuple(path for path, fiber in old if fiber is not None and not fiber.closed and leased(fiber))
        reconciler.drain([fiber for _, fiber in old if fiber is not None])
        for path, _ in old:
            reconciler.root.emit(PARTIAL_DISPOSE, RowClosing(path, path in self.opened))
        update = ConfigUpdated(reconciler.generation, self.request.id, self.request.trigger, self.plan.as_json())
        reconciler.root.emit(CONFIG_UPDATE, update)
        return None

    def _discard(self, stage: Stage) -> None:
        """Close what was prepared, without making anybody wait for it: each row has its own deadline."""
        kernel = self.reconciler.root.kernel
        kernel.start(stage.discard, "discard", kernel.vars.copy())

    async def _record(self, result: Result) -> None:
        """Keep the generation on disk, with the files it was read from."""
        reconciler, reading = self.reconciler, self.reading
        assert reading is not None
        generation = Generation(
            number=reconciler.generation,
            digest=reading.desired.digest,
            attempt=self.request.id,
            time=result.time,
            files=reading.files.to_json(),
            confirmed=reconciler.history.unconfirmed is None and self.request.confirm_seconds is None,
        )
        await anyio.to_thread.run_sync(reconciler.history.store, generation)

    # -- what it says

    def _enter(self, phase: str) -> None:
        now = time.perf_counter()
        self._phases[self.phase] = self._phases.get(self.phase, 0.0) + (now - self._since) * 1e3
        self.phase, self._since = phase, now

    def _result(self, outcome: Outcome, held: str | None = None) -> Result:
        self._enter("done")
        reconciler = self.reconciler
        return Result(
            attempt=self.request.id,
            trigger=self.request.trigger,
            result=outcome,
            generation=reconciler.generation,
            digest=reconciler.digest,
            plan=self.plan,
            issues=tuple(self.issues),
            phases_ms={phase: round(ms, 3) for phase, ms in self._phases.items()},
            commit_ms=None if self._commit_ms is None else round(self._commit_ms, 3),
            pending_restart=self.plan.pending_restart,
            held_reason=held,
            draining=self._draining,
            leaks=tuple(reconciler.leaks),
            degraded=reconciler.degraded,
            confirm_by=reconciler.confirm_by,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


def hold_for(generation: int, reading: Reading | None, reason: str) -> Hold:
    """A rollback that holds for as long as the sources stay what they are."""
    return Hold(generation=generation, fingerprint="" if reading is None else reading.fingerprint, reason=reason)
