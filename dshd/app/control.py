"""The app's own routes: health, metrics, what runs, and reloads. Everything here reads; only the reconciler acts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dshd.capabilities.http import SCOPES, Caller, Problem, Request, Response, Route
from dshd.loader.result import Result

from . import metrics
from .peers import Peer, objection
from .picture import moment, row_json, rows_json, status_json
from .text import result_text

if TYPE_CHECKING:
    from .daemon import Daemon

M = TypeVar("M", bound=BaseModel)

CLI = "dshd-cli"
"""What the command line calls itself in `User-Agent`, so that its attempts have the trigger `cli`."""


class ReloadBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    plan_only: bool = False
    if_generation: int | None = Field(default=None, ge=0)
    confirm_seconds: float | None = Field(default=None, gt=0, strict=False)
    allow_removals: bool = False


class RollbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    generation: int | None = Field(default=None, ge=1)


class NoBody(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)


class ControlGate:
    """The control socket's: the user, root and one group may do everything, the daemon's descendants nothing."""

    def __init__(self) -> None:
        self.group: int | None = None
        self._caller = Caller(name="the control socket", scopes=frozenset(SCOPES))

    def admit(self, connection: Mapping[str, Any], headers: Mapping[str, str], route: Route | None) -> Caller:
        peer = connection.get("peer")
        reason = objection(peer, self.group) if isinstance(peer, Peer) else "the peer is unknown"
        if reason is not None:
            raise Problem(403, reason, headers={"connection": "close"})
        return self._caller


class Control:
    """Handlers over one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def routes(self) -> list[Route]:
        def get(path: str, handler: Any, scope: Any = "read") -> Route:
            return Route(method="GET", path=path, handler=handler, scope=scope)

        def post(path: str, handler: Any) -> Route:
            return Route(method="POST", path=path, handler=handler, scope="admin")

        return [
            get("/livez", self.live, None),
            get("/startupz", self.started, None),
            get("/readyz", self.ready, None),
            get("/metrics", self.metrics),
            get("/api/v1/status", self.status),
            get("/api/v1/tree", self.tree),
            get("/api/v1/rows/{path*}", self.row),
            get("/api/v1/reload", self.last),
            get("/api/v1/reloads", self.history),
            post("/api/v1/reload", self.reload),
            post("/api/v1/confirm", self.confirm),
            post("/api/v1/rollback", self.rollback),
        ]

    # -- health

    async def live(self, request: Request) -> Response:
        """The loop runs, or it could not say so."""
        return Response.json({"status": "ok"})

    async def started(self, request: Request) -> Response:
        return _health([] if self._daemon.started else ["starting"])

    async def ready(self, request: Request) -> Response:
        """Degraded is ready: what runs, runs. What was abandoned holds things that only a restart gets back."""
        daemon = self._daemon
        reasons = [] if daemon.started else ["starting"]
        if daemon.stopping.is_set():
            reasons.append("stopping")
        reasons += [f"abandoned: {name}" for name in daemon.root.kernel.abandoned.values()]
        return _health(reasons)

    async def metrics(self, request: Request) -> Response:
        daemon = self._daemon
        now = moment(daemon)
        text = await anyio.to_thread.run_sync(metrics.render, daemon.reloads, now)
        return Response(body=text, media_type=metrics.TEXT)

    # -- what runs

    async def status(self, request: Request) -> Response:
        return Response.json(status_json(self._daemon))

    async def tree(self, request: Request) -> Response:
        return Response.json({"generation": self._daemon.generation, "rows": rows_json(self._daemon)})

    async def row(self, request: Request) -> Response:
        path = request.params["path"].strip("/")
        found = row_json(self._daemon, path)
        if found is None:
            raise Problem(404, f"there is no row {path!r}; `dshd tree` lists them")
        return Response.json(found)

    # -- reloads

    async def last(self, request: Request) -> Response:
        last = self._daemon.reconciler.last
        if last is None:
            raise Problem(404, "nothing was attempted yet")
        return self._said(request, last, status=200)

    async def history(self, request: Request) -> Response:
        return Response.json({"reloads": list(self._daemon.reconciler.results), "next": None})

    async def reload(self, request: Request) -> Response:
        body = _body(request, ReloadBody)
        wanted = _if_match(request)
        if wanted is not None and body.if_generation not in (None, wanted):
            raise Problem(400, "If-Match and if_generation name two generations")
        result = await self._daemon.ask(
            lambda reconciler: reconciler.reload(
                _trigger(request),
                plan_only=body.plan_only,
                if_generation=wanted if body.if_generation is None else body.if_generation,
                confirm_seconds=body.confirm_seconds,
                allow_removals=body.allow_removals,
            )
        )
        return self._said(request, result, plan_only=body.plan_only)

    async def confirm(self, request: Request) -> Response:
        _body(request, NoBody)
        return self._said(request, await self._daemon.ask(lambda reconciler: reconciler.confirm()))

    async def rollback(self, request: Request) -> Response:
        generation = _body(request, RollbackBody).generation
        stored = self._daemon.reconciler.history.numbers()
        if generation is not None and generation not in stored:
            kept = ", ".join(map(str, stored)) or "none"
            raise Problem(404, f"generation {generation} is not stored; there is {kept}", stored=stored)
        return self._said(request, await self._daemon.ask(lambda reconciler: reconciler.rollback(generation)))

    def _said(
        self, request: Request, result: Result, *, status: int | None = None, plan_only: bool = False
    ) -> Response:
        """A result as JSON, or as the text that shows source lines to whoever asks for text."""
        code = result.result.http_status if status is None else status
        headers = {"dshd-result": result.result.value, "cache-control": "no-store"}
        if request.accepts("text/plain"):
            daemon = self._daemon
            text = result_text(result, daemon.reconciler.texts, daemon.summary(), plan_only=plan_only)
            return Response.text(text, status=code, headers=headers)
        return Response.json(result.as_json(), status=code, headers=headers)


def _health(reasons: list[str]) -> Response:
    if not reasons:
        return Response.json({"status": "ok"})
    return Response.json({"status": "unavailable", "reasons": reasons}, status=503)


def _trigger(request: Request) -> str:
    return "cli" if request.headers.get("user-agent", "").startswith(CLI) else "api"


def _if_match(request: Request) -> int | None:
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    found = re.fullmatch(r'\s*"?(\d+)"?\s*', given)
    if found is None:
        raise Problem(400, f"If-Match takes the number of a generation, not {given!r}")
    return int(found[1])


def _body(request: Request, model: type[M]) -> M:
    try:
        return model.model_validate(request.json())
    except ValidationError as exc:
        wrong = [f"{'.'.join(map(str, error['loc'])) or 'body'}: {error['msg']}" for error in exc.errors()]
        raise Problem(400, "; ".join(wrong)) from None
