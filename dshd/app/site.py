"""From a request to its answer: finds the route that is registered now, asks the gate, reads the body, sends.

An ASGI application over the registry `ROUTES`. Which route is served is decided at each request, so a commit changes
it for everybody at once; a plugin's handler runs under a lease, so its plugin stays open until it has answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, nullcontext
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

import anyio
import orjson
import structlog

from dshd.capabilities.http import ROUTES, ROUTES_CHANGED, Caller, Problem, Request, Response, Route
from dshd.kernel.context import Context
from dshd.kernel.registry import RegistryChange

_log = structlog.get_logger("dshd.http")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_WITHIN = 30.0
"""Seconds for a request's body to arrive."""

DISCARDED = 64 << 20
"""Bytes of a body that is too long which are taken in all the same."""


class Gate(Protocol):
    """Who may come in at one listener."""

    def admit(self, connection: Mapping[str, Any], headers: Mapping[str, str], route: Route | None) -> Caller:
        """Who asks. Raises `Problem`. `connection` is what the server noted when it was accepted."""


class Site:
    """The routes as one context sees them now, best matches first."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self._routes: list[Route] | None = None
        root.on(ROUTES_CHANGED, self._forget)

    def _forget(self, _change: RegistryChange) -> None:
        self._routes = None

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | set[str]:
        """The route with what its parameters stand for, or the methods that this path would take."""
        if self._routes is None:
            self._routes = sorted(self.root.registry(ROUTES).values(), key=lambda route: route.rank)
        allowed: set[str] = set()
        for route in self._routes:
            found = route.pattern.fullmatch(path)
            if found is not None:
                if route.method == method or (method == "HEAD" and route.method == "GET"):
                    return route, {name: unquote(value) for name, value in found.groupdict().items()}
                allowed.add(route.method)
        return allowed

    async def answer(self, route: Route, request: Request) -> Response:
        """Run a handler; what it raises becomes a problem document."""
        owner = self.root.registry(ROUTES).owner(route.name)
        # Our own routes take none: a reload that was asked for over HTTP must not keep what it replaces.
        ours = owner is None or owner == self.root.fiber.path
        try:
            with nullcontext() if ours else self.root.leased(route.name):
                return await route.handler(request)
        except Problem as problem:
            return problem_response(problem)
        except Exception:
            # Whatever a handler does wrong costs its caller one answer, and the log names the plugin.
            _log.exception("a request failed", route=route.name, row=owner)
            return problem_response(Problem(500, f"the handler of {route.name!r} failed; the daemon's log says more"))


class Door:
    """The site as one listener offers it: an ASGI application with a gate of its own, and an end."""

    def __init__(self, site: Site, gate: Gate) -> None:
        self._site = site
        self._gate = gate
        self._closing = anyio.Event()

    def close(self) -> None:
        """End all streams, each with its farewell."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method = scope["method"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            response = await self._respond(scope, method, headers, receive)
        except Problem as problem:
            if problem.status == 413:
                await _discard(receive)
            response = problem_response(problem)
        if response.stream is None or method == "HEAD":
            await _send_whole(response, method, send)
        else:
            await self._send_stream(response, receive, send)

    async def _respond(self, scope: Scope, method: str, headers: Mapping[str, str], receive: Receive) -> Response:
        path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
        path = path.partition("?")[0]
        found = self._site.find(method, path)
        route = None if isinstance(found, set) else found[0]
        caller = self._gate.admit(scope.get("state", {}), headers, route)
        if isinstance(found, set):
            if not found:
                raise Problem(404, f"there is nothing at {path!r}")
            allow = ", ".join(sorted(found))
            raise Problem(405, f"{path!r} takes {allow}, not {method}", headers={"allow": allow})
        route, params = found
        if not caller.may(route.scope):
            raise Problem(403, f"{route.name!r} needs the scope {route.scope!r}, which {caller.name!r} does not have")
        body = await _read_body(headers, receive, route.max_body)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        request = Request(
            method=method, path=path, params=params, query=query, headers=headers, body=body, caller=caller
        )
        return await self._site.answer(route, request)

    async def _send_stream(self, response: Response, receive: Receive, send: Send) -> None:
        assert response.stream is not None
        await send(_start(response, None))

        async def watch(scope: anyio.CancelScope) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

        async def end(scope: anyio.CancelScope) -> None:
            await self._closing.wait()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope, name="client of a stream")
            tasks.start_soon(end, tasks.cancel_scope, name="end of a stream")
            async with aclosing(_closable(response.stream)) as stream:
                async for chunk in stream:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            tasks.cancel_scope.cancel()
        farewell = response.farewell if self._closing.is_set() else b""
        with anyio.move_on_after(1):  # a client that does not read waits for nothing
            await send({"type": "http.response.body", "body": farewell, "more_body": False})


async def _closable(stream: Any) -> Any:
    """The stream as a generator, closed with it in the same task, whatever kind of iterator it is."""
    try:
        async for chunk in stream:
            yield chunk
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 5):
                await close()


async def _read_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    declared = headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > limit:
        raise Problem(413, f"the body may have {limit} bytes", headers={"connection": "close"})
    parts: list[bytes] = []
    size = 0
    with anyio.move_on_after(BODY_WITHIN) as scope:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise Problem(413, f"the body may have {limit} bytes", headers={"connection": "close"})
            if not message.get("more_body"):
                break
    if scope.cancelled_caught:
        raise Problem(400, "the body did not arrive in time", headers={"connection": "close"})
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    # A web page can post any text without asking the browser for permission, but no JSON.
    if size and media_type != "application/json" and not media_type.endswith("+json"):
        raise Problem(415, "a body must be JSON and say so: content-type: application/json")
    return b"".join(parts)


async def _discard(receive: Receive) -> None:
    """Take in the rest of a body that is too long, within reason: a client that still sends would miss the answer."""
    left = DISCARDED
    with anyio.move_on_after(5):
        while left > 0 and (message := await receive()).get("more_body"):
            left -= len(message.get("body", b""))


async def _send_whole(response: Response, method: str, send: Send) -> None:
    await send(_start(response, len(response.body)))
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else response.body})


def _start(response: Response, length: int | None) -> dict[str, Any]:
    headers = {"content-type": response.media_type, "x-content-type-options": "nosniff", **response.headers}
    if length is not None:
        headers["content-length"] = str(length)
    return {
        "type": "http.response.start",
        "status": response.status,
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
    }


def problem_response(problem: Problem) -> Response:
    return Response(
        status=problem.status,
        body=orjson.dumps(problem.document()),
        media_type="application/problem+json",
        headers=problem.headers,
    )
