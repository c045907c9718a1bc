"""The HTTP interface on a TCP address. Loopback by default; any other address is refused without a token."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator

import anyio.to_thread
from pydantic import Field, field_validator, model_validator

from dshd import Config, Context, Secret, SharedKey, plugin
from dshd.capabilities.http import LISTENERS, Listener, Scope, Token

Address = tuple[str, int]


class TokenConfig(Config):
    secret: Secret
    """What a client sends as `Authorization: Bearer …`; best a `${credential:…}`."""
    scopes: frozenset[Scope] = frozenset({"read"})
    """What it may do: `read`, `chat`, `approve`, `admin`."""
    agents: frozenset[str] | None = None
    """The agents it may address; without it all."""


class HttpTcp(Config):
    listen: str = "127.0.0.1:8642"
    """Address and port, such as `127.0.0.1:8642` or `[::1]:8642`."""
    hosts: frozenset[str] = frozenset()
    """Names under which clients reach this address, beside `localhost`; requests to other names are refused."""
    tokens: dict[str, TokenConfig] = Field(default_factory=dict)
    """Who may come in, by a name of yours for each. On the loopback interface `read` and `chat` need none."""

    @field_validator("listen")
    @classmethod
    def _parsed(cls, text: str) -> str:
        parse(text)
        return text

    @model_validator(mode="after")
    def _closed(self) -> HttpTcp:
        if not is_loopback(self.address[0]) and not self.tokens:
            raise ValueError(
                f"{self.listen!r} can be reached from other machines, so it needs a token: add one under `tokens`, "
                f"or listen on 127.0.0.1"
            )
        return self

    @property
    def address(self) -> Address:
        return parse(self.listen)


def parse(text: str) -> Address:
    """`host:port`, an IPv6 address in brackets. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address; write one such as 127.0.0.1:8642 or [::1]:8642")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets: [{host}]:{port}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address for certain. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        # Only listening claims the port: two sockets may be bound to one address until then.
        bound.listen(128)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def shown(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@plugin("http_tcp", config=HttpTcp)
async def http_tcp(ctx: Context, config: HttpTcp) -> None:
    host, port = config.address

    async def open_socket(_keeper: Context) -> AsyncIterator[socket.socket]:
        with await anyio.to_thread.run_sync(bind, host, port) as bound:
            yield bound

    # Shared by the instances of this row, so that changing a token leaves no instant without somebody who accepts.
    name = config.listen if port else f"{config.listen} of {ctx.fiber.path}"
    bound = await ctx.shared(SharedKey[socket.socket]("http_tcp socket", (name,)), open_socket)
    listener = Listener(
        socket=bound,
        address=shown(bound),
        loopback=is_loopback(host),
        hosts=config.hosts,
        tokens={
            name: Token(secret=token.secret, scopes=token.scopes, agents=token.agents)
            for name, token in config.tokens.items()
        },
    )
    ctx.registry(LISTENERS).add(name, listener)
