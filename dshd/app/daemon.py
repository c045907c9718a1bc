"""The running process: one kernel, one reconciler, one control socket, and what signals do to them.

It starts in the foreground, becomes ready with the first commit, and ends by draining: what runs may finish within the
deadline, and nothing new begins.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import anyio
import structlog

from dshd.capabilities.http import Problem, serve
from dshd.kernel.context import Context
from dshd.kernel.fiber import Fiber
from dshd.kernel.runtime import open_kernel
from dshd.kernel.watchdog import Timing
from dshd.loader.credentials import Credentials
from dshd.loader.events import EXIT, Exiting
from dshd.loader.reconciler import Reconciler, ReloadOptions, StartRefused
from dshd.loader.result import Result
from dshd.loader.sources import Sources, state_key

from .control import Control, ControlGate
from .endpoint import control_socket, share
from .logging import Log
from .metrics import Reloads
from .notify import Notifier
from .peers import become_subreaper, group_id, reap_orphans
from .picture import rows_of
from .places import Places
from .pool import Pool
from .report import log_result
from .settings import RESTART, DaemonSettings, applied, effective, shadowed, waiting
from .site import Door, Site
from .stall import AFTER, Heartbeat
from .text import rows_text

_log = structlog.get_logger("dshd.daemon")

HURRY = 3.0
"""Seconds that closing may take after a second signal."""

SERVE_AFTER = 0.2
"""Seconds after which the control socket answers even if the tree is still starting."""

REFUSED = 78
"""What the process ends with when there is nothing it could start."""


@dataclass(kw_only=True)
class Daemon:
    """One daemon, from its places being made to its end. `run` may be called once."""

    places: Places
    environ: Mapping[str, str]
    log: Log
    notifier: Notifier
    overrides: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    refused: Result | None = None
    """Why nothing was started, if so."""
    settings: DaemonSettings = field(init=False)
    root: Context = field(init=False)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.settings = effective({}, self.overrides)
        self.reloads = Reloads()
        self.since = datetime.now(UTC).isoformat(timespec="seconds")
        self.began = time.monotonic()
        self.started = False
        self.stopping = anyio.Event()
        self._settled = False
        self._first_commit = anyio.Event()
        self._hurry = anyio.Event()
        self._over = anyio.Event()
        self._signal = ""
        self._retired: dict[Fiber, float] = {}
        self._pool: Pool | None = None
        self._gate = ControlGate()

    # -- what others read

    @cached_property
    def version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version  # looks through everything that is installed

        try:
            return version("dshd")
        except PackageNotFoundError:
            return "unknown"

    @property
    def generation(self) -> int:
        return self.reconciler.generation

    @property
    def state(self) -> str:
        if self.stopping.is_set():
            return "stopping"
        if not self.started:
            return "starting"
        return "degraded" if self.reconciler.degraded else "running"

    def summary(self) -> str:
        """What runs now, in one line."""
        if not self.started:
            return "nothing runs yet"
        why = f"; degraded: {self.reconciler.degraded}" if self.reconciler.degraded else ""
        return f"generation {self.generation} runs, {rows_text(len(self.reconciler.specs))}{why}"

    def listening(self) -> list[str]:
        """The TCP addresses that are accepted on."""
        return [] if self._pool is None else self._pool.addresses

    def retired_at(self, fiber: Fiber) -> float:
        """When this instance was seen to be replaced, on the loop's clock."""
        return self._retired.setdefault(fiber, anyio.current_time())

    async def ask(self, question: Callable[[Reconciler], Awaitable[Result]]) -> Result:
        """Ask the reconciler. Raises `Problem` 503 when the daemon stops before it has answered."""
        answer: list[Result] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                answer.append(await question(self.reconciler))
                tasks.cancel_scope.cancel()

            if self.started and not self.stopping.is_set():
                tasks.start_soon(wait, name="attempt asked for")
                await self.stopping.wait()
                tasks.cancel_scope.cancel()
        if not answer:
            raise Problem(503, f"the daemon is {self.state}; nothing was attempted, or its outcome is in the log")
        return answer[0]

    # -- from start to end

    async def run(self) -> int:
        """Serve until told to stop; give the exit status. Raises `InUseError`, and `OSError` for places."""
        with (
            anyio.open_signal_receiver(signal.SIGHUP, signal.SIGTERM, signal.SIGINT) as signals,
            control_socket(self.places.socket) as bound,
        ):
            async with (
                open_kernel(timing=self._timing(), development=self.settings.development) as self.root,
                anyio.create_task_group() as tasks,
            ):
                self.reconciler = self._reconciler()
                self.log.facts = lambda: {"generation": self.generation}
                tasks.start_soon(self._listen, signals, tasks, name="signals")
                tasks.start_soon(self._heartbeat().run, name="heartbeat")
                if become_subreaper():
                    tasks.start_soon(reap_orphans, name="orphans")
                site = Site(self.root)
                serve(self.root, *Control(self).routes())
                self._pool = Pool(self.root, site)
                tasks.start_soon(self._pool.run, name="listeners")
                async with anyio.create_task_group() as serving:
                    serving.start_soon(self._serve, site, bound, name="control socket")
                    async with anyio.create_task_group() as working:
                        working.start_soon(self._until_stopping, working, name="stop")
                        if await self._start():
                            working.start_soon(self.reconciler.run, name="reconciler")
                            self._ready()
                        else:
                            self.stopping.set()
                    await self._stop()
                    self._over.set()
                    self._first_commit.set()
                tasks.cancel_scope.cancel()
                abandoned = list(self.root.kernel.abandoned.values())
                if abandoned:
                    self._leave(abandoned)
        return REFUSED if self.refused is not None else 0

    async def _serve(self, site: Site, bound: socket.socket) -> None:
        """Answer on the control socket until everything else is over.

        Who connects is queued by the kernel from the first moment. The server itself costs a tenth of the start, so it
        comes after the tree, unless that takes long.
        """
        with anyio.move_on_after(SERVE_AFTER):
            await self._first_commit.wait()
        if self._over.is_set():  # it was refused before anybody could ask
            return
        from .server import accepting

        async with accepting(Door(site, self._gate), bound, grace=2):
            await self._over.wait()

    def _reconciler(self) -> Reconciler:
        sources = Sources(
            roots=self.places.config,
            environ=self.environ,
            credentials=Credentials(self.environ, self.places.state),
            key=state_key(self.places.state),
            daemon_model=DaemonSettings,
            also=lambda tree: shadowed(tree.daemon, self.environ),
        )
        options = replace(
            self._options(ReloadOptions()),
            apply_daemon=self._apply,
            on_begin=self._attempt_begins,
            on_result=self._attempt_ended,
        )
        return Reconciler(self.root, sources, self.places.state, options=options)

    async def _start(self) -> bool:
        """Start the tree; answers whether something runs."""
        try:
            await self.reconciler.start(strict=self.strict)
        except StartRefused as exc:
            self.refused = exc.result
            self.notifier.status("refused to start: the configuration is invalid")
            return False
        return True

    def _ready(self) -> None:
        self.started = True
        self.notifier.ready(self.summary())
        self._first_commit.set()
        _log.info("ready", socket=str(self.places.socket), ms=round((time.monotonic() - self.began) * 1e3))
        # What is there now stays for long: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.enable()  # `run` has switched it off: a start makes much and throws little away

    async def _until_stopping(self, tasks: anyio.abc.TaskGroup) -> None:
        """Say so at once, whatever the reconciler still has to finish; from here on nothing new begins."""
        await self.stopping.wait()
        if self.refused is None:
            drain = self.settings.drain
            self.notifier.stopping(f"stopping on {self._signal}; what runs may finish within {drain:g} s")
            self.notifier.extend(drain + self.settings.unload_timeout + 10)
            _log.info("stopping", signal=self._signal, drain_seconds=drain)
            self.root.emit(EXIT, Exiting(self._signal))
        tasks.cancel_scope.cancel()

    async def _stop(self) -> None:
        """Retire everything, let it finish within `drain`, and close; a second signal does not wait."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_at_once, name="hurry")
            tasks.start_soon(self._name_what_is_left, name="what is left")
            await self.root.kernel.stop(anyio.current_time() + self.settings.drain)
            tasks.cancel_scope.cancel()
        if self.refused is None:
            _log.info("stopped")

    async def _stop_at_once(self) -> None:
        await self._hurry.wait()
        _log.warning("not waiting any longer", signal=self._signal)
        self.root.kernel.timing = Timing(load=1, unload=1, grace=0.5, slow=1)
        with anyio.move_on_after(HURRY):
            await self.root.fiber.dispose()
            return
        self._leave(self._open_rows())

    async def _name_what_is_left(self) -> None:
        while True:
            await anyio.sleep(5)
            held = [f"{lease.who} ({time.monotonic() - lease.since:.0f} s)" for lease in self.root.kernel.leases]
            _log.info("still stopping", rows=self._open_rows(), held_by=held)

    def _open_rows(self) -> list[str]:
        return sorted({fiber.path for fiber in rows_of(self) if not fiber.closed})

    def _leave(self, names: list[str]) -> None:
        """End the process in spite of tasks that nothing else ends."""
        _log.critical("ending the process in spite of what does not end", names=names)
        self.notifier.close()
        sys.stdout.flush()
        sys.stderr.flush()
        self.places.socket.unlink(missing_ok=True)
        os._exit(REFUSED if self.refused is not None else 0)

    # -- signals

    async def _listen(self, signals: Any, tasks: anyio.abc.TaskGroup) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                if not self.stopping.is_set():
                    self.notifier.reloading()
                    tasks.start_soon(self._reload_on_signal, name="reload on signal")
                continue
            self._signal = name
            if self.stopping.is_set():
                self._hurry.set()
            self.stopping.set()

    async def _reload_on_signal(self) -> None:
        try:
            if self.started:
                await self.ask(lambda reconciler: reconciler.reload("signal"))
        except Problem as problem:
            _log.warning("the reload on SIGHUP has no result", reason=problem.detail)
        finally:
            self.notifier.reloaded(self.summary())

    def _heartbeat(self) -> Heartbeat:
        # A third, so that a beat which is a little late still comes within half of what the manager grants.
        watchdog = self.notifier.watchdog
        every = 1.0 if watchdog is None else min(1.0, watchdog / 3)
        return Heartbeat(every, self.notifier.alive, AFTER if watchdog is None else min(AFTER, watchdog))

    # -- settings

    def _apply(self, section: Mapping[str, Any], dry: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Take over what of `daemon:` is live; name what waits, and what does not. At first everything is live."""
        wanted = effective(section, self.overrides)
        if not self._settled:
            if dry:
                return (), ()
            self._settled = True
            self.settings = wanted
            self._take_over()
            return (), ()
        left, changed = waiting(self.settings, wanted), applied(self.settings, wanted)
        if not dry:
            kept = {name: getattr(self.settings, name) for name in RESTART}
            self.settings = wanted.model_copy(update=kept)
            if changed:
                self._take_over()
                _log.info("settings applied", fields=list(changed))
        return left, changed

    def _take_over(self) -> None:
        settings, kernel = self.settings, self.root.kernel
        self.log.apply(settings.log_level, settings.log_format)
        kernel.timing = self._timing()
        kernel.development = settings.development
        self.reconciler.options = self._options(self.reconciler.options)
        group = None if settings.group is None else group_id(settings.group)
        if group != self._gate.group:
            self._share(group)
        if settings.timezone is not None and os.environ.get("TZ") != settings.timezone:
            os.environ["TZ"] = settings.timezone
            time.tzset()

    def _share(self, group: int | None) -> None:
        try:
            share(self.places.socket, group)
        except OSError as exc:
            _log.error("the control socket cannot be shared with daemon.group", group=group, error=str(exc))
        else:
            self._gate.group = group

    def _options(self, options: ReloadOptions) -> ReloadOptions:
        settings = self.settings
        return replace(
            options, watch=settings.watch, rescan=settings.rescan, drain_warn_after=settings.drain_warn_after
        )

    def _timing(self) -> Timing:
        return Timing(load=self.settings.load_timeout, unload=self.settings.unload_timeout)

    # -- attempts

    def _attempt_begins(self, trigger: str) -> None:
        if trigger != "signal":  # then it was said when the signal came
            self.notifier.reloading()

    def _attempt_ended(self, result: Result) -> None:
        self.reloads.count(result, time.time())
        for fiber in [fiber for fiber in self._retired if fiber.closed]:
            del self._retired[fiber]
        for fiber in self.root.kernel.draining:
            self.retired_at(fiber)
        log_result(result)
        if result.trigger != "signal":
            self.notifier.reloaded(self.summary())
