"""One attempt: read, compose, validate, plan, gate, prepare, commit, drain, record.

Only `prepare` and what follows touch fibers. Whatever goes wrong before the commit changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import structlog

from dshd.kernel.errors import CommitRefusedError
from dshd.kernel.fiber import Fiber
from dshd.kernel.stage import Stage, why_not_open

from .code import Verdict
from .events import CONFIG_UPDATE, HMR_RELOAD, PARTIAL_DISPOSE, CodeReloaded, ConfigUpdated, RowClosing
from .files import Stored
from .history import Generation
from .imports import described
from .issues import Issues
from .mount import open_row
from .plan import Plan, changed_sections, plan, removes_much
from .request import Request, Superseded
from .resolve import CodeReload
from .result import Outcome, Result
from .sources import Reading, fingerprint_again, read
from .spec import Spec
from .stall import Stall
from .threads import in_thread
from .watch import places

if TYPE_CHECKING:
    from .reconciler import Reconciler

_log = structlog.get_logger("dshd.loader")


class Attempt:
    """One run of the pipeline for one request. With `beside` it runs while another does, and only to plan."""

    def __init__(self, reconciler: Reconciler, request: Request, *, beside: bool = False) -> None:
        self.reconciler = reconciler
        self.request = request
        self.phase = "read"
        self.reading: Reading | None = None
        self.plan = Plan()
        self.issues = Issues()
        self.opened: dict[str, tuple[Spec, Fiber]] = {}
        self._beside = beside
        self._stall = Stall()
        self._phases: dict[str, float] = {}
        self._since = time.perf_counter()
        self._commit_ms: float | None = None
        self._draining: tuple[str, ...] = ()
        self._stale: dict[str, tuple[str, ...]] = {}
        self._fresh: CodeReload | None = None
        self._late = False

    # -- the pipeline

    async def run(self) -> Result:
        """Go through the phases; whatever the outcome, give the one result type. Raises `Superseded`."""
        try:
            result = await self._stall.during(self._run)
        finally:
            if self._fresh is not None:  # a no-op after the commit
                await in_thread(self._fresh.discard)
        return replace(result, loop_stall_ms=self._stall.worst_ms)

    async def _run(self) -> Result:
        reconciler, request = self.reconciler, self.request
        expected = request.if_generation
        if expected is not None and expected != reconciler.generation:
            reason = f"generation {reconciler.generation} runs, not {expected}"
            return self._result(Outcome.CONFLICT, held=reason)
        reconciler.watch.reading(request.rollback_to is None and not request.plan_only)
        try:
            outcome = await self._read()
        finally:
            reconciler.watch.reading(False)
        if outcome is not None:
            return self._result(outcome)
        assert self.reading is not None
        self._enter("plan")
        desired = self.reading.desired
        if not desired.ok:
            return self._result(Outcome.REJECTED)
        self.plan = plan(
            reconciler.live.specs, desired.specs, reconciler.code.stale(reconciler.live.specs, self._stale)
        )
        dry = request.plan_only or request.trigger != "start"  # at start it says with which deadlines rows open
        waiting, live = reconciler.options.apply_daemon(desired.daemon, dry)
        applied = (*live, *changed_sections(reconciler.running, desired))
        self.plan = replace(self.plan, pending_restart=(*waiting, *self.plan.pending_restart), applied=applied)
        held = self._gate()
        if held or request.plan_only:
            return self._result(Outcome.HELD if held else Outcome.NOOP, held=held)
        if self.plan.empty and desired.digest == reconciler.digest:
            return await self._nothing_to_do()
        for last_try in (False, True):
            stage = await self._prepare()
            if stage is None:
                return self._result(Outcome.PREPARE_FAILED)
            if not await self._announce():
                self._discard(stage)
                return self._result(Outcome.PREPARE_FAILED)
            refused = self._commit(stage)
            if refused is None:
                break
            if request.confirm_seconds is not None:
                reconciler.confirmation.withdraw()
            self._discard(stage)
            if last_try:
                self.issues.error("0603", f"the tree moved while it was prepared: {refused}")
                return self._result(Outcome.PREPARE_FAILED)
        self._enter("record")
        await self._record()
        return self._result(Outcome.COMMITTED)

    async def _nothing_to_do(self) -> Result:
        assert self.reading is not None
        if self._fresh is not None:
            self._fresh.commit()  # no row uses what has changed
        self.reconciler.adopt(self.request, self.reading)
        self._apply_daemon()
        if self.reconciler.history.unsaved:
            await self._save(self.reconciler.history.save)
        return self._result(Outcome.NOOP)

    async def _read(self) -> Outcome | None:
        """Read the sources; a source that is being written is given a moment. Gives the outcome if it ends here."""
        reconciler, request = self.reconciler, self.request
        begun = anyio.current_time()
        while True:
            with anyio.move_on_after(reconciler.options.read_timeout) as limit:
                stored, directories = await in_thread(self._look, abandon=True)
            if limit.cancelled_caught:
                self._late = True
                seconds = reconciler.options.read_timeout
                hint = "importing a plugin, or reading a file, does not return"
                self.issues.error("0604", f"reading the configuration took longer than {seconds:g} s", hint=hint)
                return Outcome.TIMED_OUT
            if self.reading is None:
                what = f"generation {request.rollback_to}" if request.rollback_to else "an earlier generation"
                self.issues.error("0601", f"{what} is not stored", hint=f"stored: {stored or 'none'}")
                return Outcome.REJECTED
            waited = anyio.current_time() - begun
            if request.rollback_to is not None or request.trigger == "start":
                break
            if waited >= reconciler.patience(self.reading):
                break
            await anyio.sleep(0.05)
        reconciler.seen(self.reading, directories, only_shown=request.plan_only)
        self.issues.add(self.reading.desired.issues)
        return None

    def _look(self) -> tuple[str, frozenset[str]]:
        """Read once; gives the numbers that are stored, if that matters, and the directories to watch. Blocks."""
        reconciler, number = self.reconciler, self.request.rollback_to
        stored = None
        if number is not None:
            stored = reconciler.history.get(number)
            if stored is None:
                return ", ".join(map(str, reconciler.history.numbers())), frozenset()
        elif self.reading is None and not self._beside:
            self._judge(reconciler.code.judge())
        view = None if stored is None else Stored.from_json(stored.files)
        reading = read(reconciler.sources, view, running=dict(reconciler.live.specs))
        directories = places(reading, reconciler.code.files() if reconciler.code.reloading else ())
        self.reading = reading
        return "", directories

    def _judge(self, verdict: Verdict) -> None:
        """Take over what the look at the code has found, unless nobody waits for it any more."""
        self._fresh, self._stale = verdict.fresh, verdict.changed
        if self._late and verdict.fresh is not None:
            verdict.fresh.discard()
        elif verdict.fresh is not None:
            anyio.from_thread.run_sync(self.reconciler.code.tell, self.reconciler.root, verdict.files)

    def _gate(self) -> str | None:
        """Why a removal of much is held, or `None`."""
        if self.request.allow_removals or self.request.trigger in ("start", "rollback", "confirm"):
            return None
        return removes_much(self.plan, len(self.reconciler.live.specs))

    async def _prepare(self) -> Stage | None:
        """Open what is new in a stage, beside what runs. `None` if something failed, which is then discarded."""
        self._enter("prepare")
        assert self.reading is not None
        reconciler, specs = self.reconciler, self.reading.desired.specs
        variables = reconciler.root.kernel.vars.copy()
        variables.run(structlog.contextvars.bind_contextvars, attempt=self.request.id)  # for what the rows log
        stage = reconciler.root.kernel.stage(variables)
        try:
            leaving = [reconciler.live.fiber(path) for path in self.plan.of("remove", "replace")]
            for fiber in leaving:
                if fiber is not None:
                    stage.retire(fiber)
            self.opened = {}
            for path in self.plan.of("add", "replace"):
                self.opened[path] = (specs[path], open_row(reconciler.root, specs[path], stage))
            for fiber in leaving:
                if fiber is not None:
                    stage.replace_pinned(fiber)
            await self._settle(stage)
        except BaseException:
            self._discard(stage)
            raise
        failed = await self._failures(stage)
        if failed:
            self._discard(stage)
            return None
        return stage

    async def _failures(self, stage: Stage) -> bool:
        """Report what has not opened; answers whether that is more than rows which may fail alone."""
        failed = False
        for spec, fiber in self.opened.values():
            if fiber.is_open or (spec.optional and fiber.error is None):  # one that waits was reported by validation
                continue
            failed = failed or not spec.optional
            reason = described(fiber.error, spec.code) if fiber.error is not None else why_not_open(fiber)
            tell = self.issues.warn if spec.optional else self.issues.error
            tell("0602", f"row {spec.path!r} did not start: {reason}", spec.row.mark, row=spec.path)
            if spec.optional and fiber.abandoned:
                await stage.drop(fiber)  # it never comes back, and holds up no commit
        return failed

    async def _settle(self, stage: Stage) -> None:
        """Wait until the stage has settled, or newer inputs have arrived. Plans asked for meanwhile are answered."""
        if not stage.unsettled:
            return
        async with anyio.create_task_group() as tasks:

            async def settle() -> None:
                await stage.settled()
                tasks.cancel_scope.cancel()

            tasks.start_soon(settle, name="settle")
            while True:
                await self.reconciler.arrival()
                for request in self.reconciler.take_plans():
                    tasks.start_soon(self.reconciler.answer, request, name="plan")
                if await self._overtaken():
                    break
            tasks.cancel_scope.cancel()
        if stage.unsettled:
            raise Superseded

    async def _overtaken(self) -> bool:
        """Whether what has been asked for meanwhile is about other inputs; if not, this attempt answers it."""
        assert self.reading is not None
        if self.request.rollback_to is not None or not self.reconciler.plain_waiting:
            return False
        if await in_thread(self._differs):
            return True
        for request in self.reconciler.take_plain():
            self.request.join(request)
        return False

    def _differs(self) -> bool:
        assert self.reading is not None
        again = fingerprint_again(self.reconciler.sources, self.reading.files)
        return again != self.reading.fingerprint or self.reconciler.code.differs()

    async def _announce(self) -> bool:
        """Have it on disk before the commit that what is committed now must be confirmed. Answers whether it is."""
        seconds, reconciler = self.request.confirm_seconds, self.reconciler
        if seconds is None:
            return True
        try:
            await reconciler.confirmation.announce(reconciler.history.last_number + 1, reconciler.generation, seconds)
        except OSError as exc:
            reconciler.confirmation.withdraw()
            self.issues.error("0605", f"that it must be confirmed cannot be kept in the state directory: {exc}")
            return False
        return True

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
        reconciler.committed(self.request, reading)
        leased = reconciler.root.kernel.closing.is_leased
        self._draining = tuple(path for path, fiber in old if fiber is not None and not fiber.closed and leased(fiber))
        reconciler.drains.add(fiber for _, fiber in old if fiber is not None)
        self._apply_daemon()
        self._announce_rows([path for path, _ in old])
        return None

    def _announce_rows(self, old: list[str]) -> None:
        """Tell who listens what was committed. The kernel contains what listeners raise."""
        reconciler, emit = self.reconciler, self.reconciler.root.emit
        for path in old:
            emit(PARTIAL_DISPOSE, RowClosing(path, path in self.opened))
        coded = [action.row for action in self.plan.actions if "code" in action.changed and action.kind == "replace"]
        if self._fresh is not None and coded:
            emit(HMR_RELOAD, CodeReloaded(tuple(coded)))
        told = (reconciler.generation, self.request.id, self.request.trigger, self.plan.as_json())
        emit(CONFIG_UPDATE, ConfigUpdated(*told))

    def _apply_daemon(self) -> None:
        """Let `daemon:` take effect, with the commit. What fails there cannot undo it."""
        assert self.reading is not None
        if self.request.trigger == "start":
            return
        try:
            self.reconciler.options.apply_daemon(self.reading.desired.daemon, False)
        except Exception as exc:
            _log.exception("settings of the process could not be applied")
            self.issues.warn("0606", f"'daemon' could not be applied: {exc}")

    def _discard(self, stage: Stage) -> None:
        """Close what was prepared, without making anybody wait for it: each row has its own deadline."""
        stage.kernel.start(stage.discard, "discard", stage.kernel.vars.copy())

    async def _record(self) -> None:
        """Keep the generation on disk, with the files it was read from.

        It is renamed into place before anybody is answered, so it outlives the process; that it outlives the machine
        is seen to afterwards, since waiting for the disk would cost more than the rest of an attempt.
        """
        reconciler, reading = self.reconciler, self.reading
        assert reading is not None
        number, history = reconciler.generation, reconciler.history
        confirmed = history.unconfirmed is None and self.request.confirm_seconds is None

        def store() -> None:
            history.store(
                Generation(
                    number=number,
                    digest=reading.desired.digest,
                    attempt=self.request.id,
                    time=_now(),
                    files=reading.files.to_json(),
                    confirmed=confirmed,
                )
            )

        await self._save(store)

    async def _save(self, save: Callable[[], None]) -> None:
        """Write something to the state directory; that it cannot be written is told, and changes nothing else."""
        try:
            await in_thread(save)
        except OSError as exc:
            _log.error("the state directory cannot be written", error=str(exc))
            self.issues.warn("0607", f"it runs, but could not be kept in the state directory: {exc}")

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
            leaks=tuple(reconciler.drains.leaks),
            degraded=reconciler.degraded,
            confirm_by=reconciler.confirm_by,
            time=_now(),
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
