"""Who may come in over TCP: right host, right origin, right token, in this order and before any handler."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dshd.capabilities.http import Caller, Listener, Problem, Route, Scope
from dshd.kernel.secret import SecretUnavailableError

OPEN_ON_LOOPBACK: frozenset[Scope] = frozenset({"read", "chat"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class TcpGate:
    """The gate of one TCP listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in listener.hosts}

    def admit(self, connection: Mapping[str, Any], headers: Mapping[str, str], route: Route | None) -> Caller:
        if route is not None and route.scope is None:
            return Caller(name="anybody", scopes=frozenset())
        self._check_host(headers.get("host", ""))
        self._check_origin(headers)
        caller = self._caller(headers.get("authorization"))
        if caller is not None:
            return caller
        if self._listener.loopback and (route is None or route.scope in OPEN_ON_LOOPBACK):
            return Caller(name="the loopback interface", scopes=OPEN_ON_LOOPBACK)
        raise _unauthorized("this needs a token: authorization: Bearer …")

    def _check_host(self, header: str) -> None:
        # A page of another site reaches us by a name of its own that leads here (DNS rebinding); its name tells.
        name = _hostname(f"//{header}")
        if name is None or not self._ours(name):
            raise Problem(403, f"the host {header!r} is not served here; add it to `hosts` of the row if it is yours")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is not None:
            name = _hostname(origin)
            if name is None or not self._ours(name):
                raise Problem(403, f"requests from pages of {origin!r} are not taken")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Problem(403, "requests from pages of other sites are not taken")

    def _ours(self, name: str) -> bool:
        if name in self._hosts:
            return True
        if self._listener.loopback:
            return False
        try:
            ipaddress.ip_address(name)  # an address is no name that somebody could make lead here
        except ValueError:
            return False
        return True

    def _caller(self, authorization: str | None) -> Caller | None:
        if authorization is None:
            return None
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("the authorization scheme is Bearer")
        found: Caller | None = None
        for name, token in self._listener.tokens.items():
            try:
                secret = token.secret.reveal()
            except SecretUnavailableError:
                continue
            # Every token is compared, so that the time says nothing about which one came near.
            if secret and hmac.compare_digest(given.strip().encode(), secret.encode()):
                found = Caller(name=name, scopes=token.scopes, agents=token.agents)
        if found is None:
            raise _unauthorized("this token is not known")
        return found


def _hostname(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return None if parts.username is not None else parts.hostname


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, headers={"www-authenticate": "Bearer"})
