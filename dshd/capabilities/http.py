"""HTTP as plugins see it: routes they contribute, requests they answer, and sockets they let the app accept on.

The app serves what is registered here, on its control socket always and on every listener a row contributes. A route
belongs to the fiber that added it: it is served from the commit on and gone when that is retired.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from dshd.kernel.context import Context
from dshd.kernel.errors import DshdError
from dshd.kernel.events import Emit
from dshd.kernel.keys import RegistryKey
from dshd.kernel.registry import RegistryChange, RegistryEntry
from dshd.kernel.secret import Secret

Scope: TypeAlias = Literal["read", "chat", "approve", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "chat", "approve", "admin")

PHRASES = {
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    409: "Conflict", 411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type",
    422: "Unprocessable Content", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class Problem(DshdError):
    """An answer that is an error, sent as a problem document (RFC 9457); raise it from a handler.

    `more` are further members of the document, `headers` further headers of the response.
    """

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        self.status, self.detail, self.more, self.headers = status, detail, more, dict(headers or {})
        super().__init__(detail)

    @property
    def title(self) -> str:
        return PHRASES.get(self.status, "Error")

    def document(self) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the holder of the control socket, the holder of a token, or anybody on the loopback interface."""

    name: str
    scopes: frozenset[Scope]
    agents: frozenset[str] | None = None
    """The agents it may address; `None` for all."""

    def may(self, scope: Scope | None) -> bool:
        return scope is None or scope in self.scopes


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, its body already read. Header names are in lower case; of a repeated query name the last counts."""

    method: str
    path: str
    params: Mapping[str, str]
    """What the parts in braces of the route's path stand for, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller

    def json(self) -> Any:
        """The body as JSON, an empty one as `{}`. Raises `Problem` 400."""
        if not self.body:
            return {}
        try:
            return json.loads(self.body)
        except ValueError as exc:
            raise Problem(400, f"the body is not JSON: {exc}") from None

    def accepts(self, media_type: str) -> bool:
        """Whether the client names this type in its `Accept` header."""
        return media_type in [part.split(";")[0].strip() for part in self.headers.get("accept", "").split(",")]


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer: bytes, or a stream of them.

    A stream is read until it ends, the client leaves or the server stops; then it is closed, in the latter case after
    `farewell` was sent. It runs outside the lease under which the handler ran.
    """

    status: int = 200
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    farewell: bytes = b""
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return cls(status=status, body=text.encode(), headers=headers or {})

    @classmethod
    def text(cls, text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        return cls(status=status, body=text.encode(), media_type="text/plain; charset=utf-8", headers=headers or {})

    @classmethod
    def events(cls, stream: AsyncIterator[bytes]) -> Response:
        """Server-sent events; `stream` yields whole events, such as `event(…)` makes them."""
        return cls(
            stream=stream,
            farewell=event({"reason": "shutdown"}, name="end"),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )


def event(data: Any, *, id: str | int | None = None, name: str | None = None) -> bytes:
    """One server-sent event with JSON data."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if name is None else [f"event: {name}"]
    return "\n".join([*lines, f"data: {json.dumps(data, ensure_ascii=False)}", "", ""]).encode()


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method on one path: `/rows/{path*}` matches any number of segments, `/agents/{id}` exactly one.

    `scope` is what a caller must hold; `None` only for paths that say nothing worth hiding, such as health: they are
    answered without any check of host, origin or token. `max_body` in bytes.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    max_body: int = 1 << 20

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return f"{self.method} {self.path}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{([a-z_]+\*?)\}", self.path)
        for index in range(1, len(parts), 2):
            name = parts[index]
            parts[index] = f"(?P<{name[:-1]}>.+)" if name.endswith("*") else f"(?P<{name}>[^/]+)"
        parts[::2] = [re.escape(part) for part in parts[::2]]
        return re.compile("".join(parts))

    @property
    def rank(self) -> tuple[int, int]:
        """Routes of a lower rank are tried first: fixed paths, then those with more fixed text."""
        return self.path.count("{") + 10 * self.path.count("*}"), -len(self.path)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A secret that stands for scopes, and for some agents or all."""

    secret: Secret
    scopes: frozenset[Scope]
    agents: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A bound socket the app is to accept on from the commit that publishes its owner until that is retired.

    The socket stays the contributor's; the app works on a duplicate. `hosts` are the names by which clients may address
    it beside the loopback ones; `loopback` says that it can be reached from this machine only.
    """

    socket: socket.socket
    address: str
    loopback: bool
    hosts: frozenset[str] = frozenset()
    tokens: Mapping[str, Token] = field(default_factory=dict)
    grace: float = 5.0
    """Seconds that answers in progress get when it is retired."""


ROUTES_CHANGED = Emit[RegistryChange]("http/routes-updated")
LISTENERS_CHANGED = Emit[RegistryChange]("http/listeners-updated")
ROUTES = RegistryKey[Route]("http", changed=ROUTES_CHANGED)
LISTENERS = RegistryKey[Listener]("http listener", changed=LISTENERS_CHANGED)


def serve(ctx: Context, *routes: Route) -> list[RegistryEntry[Route]]:
    """Contribute routes for the life of the fiber. Raises `EntryConflictError` for one that somebody serves already."""
    return [ctx.registry(ROUTES).add(route.name, route) for route in routes]
