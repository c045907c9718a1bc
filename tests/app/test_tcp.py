"""A row that listens on TCP: who gets in, and what a reload does to those who are in."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Process

QUIET = {"DSHD_WATCH": "off"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def row(port: int, more: str = "", host: str = "127.0.0.1") -> str:
    return (
        f"plugins:\n  http:\n    use: http_tcp\n    config: {{listen: '{host}:{port}'{', ' + more if more else ''}}}\n"
    )


TOKENS = "tokens: {ci: {secret: s3cret, scopes: [read, admin]}, look: {secret: look1, scopes: [read]}}"


def come(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        given.setdefault("content-type", "application/json")
    try:
        connection.request(method, path, None if body is None else json.dumps(body), given)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if "json" in response.getheader("content-type", "") else content
    finally:
        connection.close()


def test_the_loopback_interface_may_read_and_nothing_more(process: Process) -> None:
    port = free_port()
    process.start(row(port), environ=QUIET)
    assert come(port, "GET", "/api/v1/status")[0] == 200
    assert come(port, "POST", "/api/v1/reload", {})[0] == 401
    assert process.ask("GET", "/api/v1/status")[1]["listeners"] == [f"127.0.0.1:{port}"]


def test_a_token_opens_what_its_scopes_say(process: Process) -> None:
    port = free_port()
    process.start(row(port, TOKENS), environ=QUIET)
    assert come(port, "POST", "/api/v1/reload", {}, authorization="Bearer s3cret")[0] == 200
    assert come(port, "POST", "/api/v1/reload", {}, authorization="Bearer look1")[0] == 403
    assert come(port, "GET", "/api/v1/status", authorization="Bearer wrong")[0] == 401
    assert come(port, "GET", "/api/v1/status", authorization="Basic eDp5")[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8642"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "user@localhost"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8642"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "dshd.example"}, 200),
        ({"origin": "http://localhost:8642"}, 200),
        ({"origin": "http://dshd.example"}, 200),
    ],
)
def test_web_pages_of_others_get_nothing(process: Process, headers: dict[str, str], status: int) -> None:
    port = free_port()
    process.start(row(port, f"hosts: [dshd.example], {TOKENS}"), environ=QUIET)
    assert come(port, "GET", "/api/v1/status", **headers)[0] == status
    token = {"authorization": "Bearer s3cret"}
    assert come(port, "POST", "/api/v1/reload", {}, **headers, **token)[0] == status
    assert come(port, "GET", "/livez", **headers)[0] == 200


def test_a_body_that_is_not_said_to_be_json_is_refused_before_any_handler(process: Process) -> None:
    port = free_port()
    process.start(row(port, TOKENS), environ=QUIET)
    found = come(port, "POST", "/api/v1/reload", {}, authorization="Bearer s3cret", content_type="text/plain")
    assert found[0] == 415
    assert process.ask("GET", "/api/v1/reload")[1]["trigger"] == "start"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "dshd.example"])
def test_an_open_address_without_a_token_is_refused_and_the_old_listener_stays(process: Process, host: str) -> None:
    port = free_port()
    assert process.root.exists()
    process.write(row(port, host=host))
    assert process.cli("check", "--config", "dshd.yaml").returncode == 3
    process.start(row(port), environ=QUIET)
    process.write(row(port, host=host))
    status, result = process.ask("POST", "/api/v1/reload")
    assert (status, result["result"]) == (422, "rejected")
    assert "needs a token" in json.dumps(result["issues"])
    assert come(port, "GET", "/livez")[0] == 200


def test_an_address_in_use_fails_the_row_and_nothing_else(process: Process) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process.start("plugins:\n  hello: {}\n", environ=QUIET)
        process.write("plugins:\n  hello: {}\n" + row(taken.getsockname()[1]).removeprefix("plugins:\n"))
        status, result = process.ask("POST", "/api/v1/reload")
    assert (status, result["result"]) == (422, "prepare_failed")
    assert "Address already in use" in json.dumps(result["issues"])


def test_who_moves_the_port_and_rotates_the_token_hears_about_it_first(process: Process) -> None:
    old, new = free_port(), free_port()
    process.start(row(old, TOKENS), environ=QUIET)
    process.write(row(new, TOKENS.replace("s3cret", "fresh")))
    status, result = come(old, "POST", "/api/v1/reload", {}, authorization="Bearer s3cret")
    assert (status, result["result"]) == (200, "committed")
    assert come(new, "GET", "/api/v1/status", authorization="Bearer fresh")[0] == 200
    assert come(new, "GET", "/api/v1/status", authorization="Bearer s3cret")[0] == 401
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        try:
            come(old, "GET", "/livez")
        except OSError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the old address is still served")


def test_a_rotated_token_binds_without_a_moment_in_which_nobody_answers(process: Process) -> None:
    port = free_port()
    process.start(row(port, TOKENS), environ=QUIET)
    for n in range(5):
        process.write(row(port, TOKENS.replace("s3cret", f"fresh{n}")))
        assert process.ask("POST", "/api/v1/reload")[1]["result"] == "committed"
        assert come(port, "GET", "/livez")[0] == 200
        assert come(port, "GET", "/api/v1/status", authorization=f"Bearer fresh{n}")[0] == 200
    assert come(port, "GET", "/api/v1/status", authorization="Bearer s3cret")[0] == 401


def test_a_client_that_never_reads_does_not_hold_a_removed_listener(process: Process) -> None:
    process.plugin(
        "ticker",
        "import anyio\nfrom dshd import Config, Context, plugin\n"
        "from dshd.capabilities.http import Response, Route, event, serve\n"
        "@plugin('ticker')\nasync def ticker(ctx: Context, config: Config) -> None:\n"
        "    async def answer(request):\n"
        "        async def ticks():\n"
        "            while True:\n"
        "                yield event({'filler': 'x' * 100000})\n"
        "        return Response.events(ticks())\n"
        "    serve(ctx, Route(method='GET', path='/ticks', handler=answer, scope='read'))\n",
    )
    port = free_port()
    with_ticker = row(port) + "  ticker: {use: ./plugins/ticker.py}\n"
    process.start(with_ticker, environ=QUIET)
    with socket.create_connection(("127.0.0.1", port)) as hung:
        hung.sendall(b"GET /ticks HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert hung.recv(12) == b"HTTP/1.1 200"
        process.write("plugins:\n  ticker: {use: ./plugins/ticker.py}\n")
        begun = time.monotonic()
        assert process.ask("POST", "/api/v1/reload")[1]["result"] == "committed"
        from .conftest import until

        until(lambda: process.logged("no longer accepting connections"), "the end of the listener")
        assert time.monotonic() - begun < 10
    assert process.ask("GET", "/api/v1/status")[1]["listeners"] == []


def test_a_stream_ends_with_its_farewell_when_the_daemon_stops(process: Process) -> None:
    process.plugin(
        "quiet",
        "import anyio\nfrom dshd import Config, Context, plugin\n"
        "from dshd.capabilities.http import Response, Route, event, serve\n"
        "@plugin('quiet')\nasync def quiet(ctx: Context, config: Config) -> None:\n"
        "    async def answer(request):\n"
        "        async def events():\n"
        "            yield event({'n': 1}, id=1)\n"
        "            await anyio.sleep(1000)\n"
        "        return Response.events(events())\n"
        "    serve(ctx, Route(method='GET', path='/quiet', handler=answer, scope='read'))\n",
    )
    process.start("plugins:\n  quiet: {use: ./plugins/quiet.py}\n", environ=QUIET)
    from .conftest import UnixConnection

    connection = UnixConnection(process.socket)
    connection.request("GET", "/quiet")
    response = connection.getresponse()
    assert response.readline() == b"id: 1\n"
    begun = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - begun < 8
    assert b'event: end\ndata: {"reason": "shutdown"}\n\n' in response.read()
    connection.close()
