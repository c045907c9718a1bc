"""What the suite is made of: rows that offer tools, calls, and what came of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
from structlog.testing import capture_logs

from dshd.capabilities.tools import (
    TOOL_RESULT,
    TOOLS,
    AfterExecution,
    ToolCall,
    ToolDefinition,
    ToolFailure,
    ToolOutcome,
    Tools,
    ToolSuccess,
    tool,
)
from dshd.capabilities.values import CallId, text_of
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.testing.kernel import running


def offering(name: str, *definitions: ToolDefinition, scope: Scope | None = None) -> Plugin[Config]:
    """A row that registers tools, for one agent or for all."""

    @plugin(name, inject=[TOOLS])
    async def row(ctx: Context, config: Config) -> None:
        service = (ctx if scope is None else ctx.scoped(scope))[TOOLS]
        for definition in definitions:
            service.register(definition)

    return row


def around(name: str, set_up: Callable[[Context], object]) -> Plugin[Config]:
    """A row that does something with its context: listens, guards, restricts."""

    @plugin(name, inject=[TOOLS])
    async def row(ctx: Context, config: Config) -> None:
        set_up(ctx)

    return row


def tools_of(ctx: Context, scope: Scope | None = None) -> Tools:
    """The service as `ctx` sees it, or an agent of it."""
    service = (ctx if scope is None else ctx.scoped(scope)).get(TOOLS)
    assert service is not None, "nobody provides the tools service"
    return service


def a_call(tool: str, arguments: Any = None, **more: Any) -> ToolCall:
    """A call as a model makes it: with its arguments as text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id=CallId("call"), name=tool, raw_arguments=text, **more)


def failed(outcome: ToolOutcome, code: str, *words: str) -> ToolFailure:
    """The outcome as a failure with this code, whose text for the model has all these words."""
    assert isinstance(outcome, ToolFailure), f"a failure was due, but this came: {outcome!r}"
    assert outcome.code == code, f"{code} was due, but this came: {outcome!r}"
    missing = [word for word in words if word not in text_of(outcome.content)]
    assert not missing, f"{text_of(outcome.content)!r} does not say {missing}"
    return outcome


def succeeded(outcome: ToolOutcome, text: str | None = None) -> ToolSuccess:
    """The outcome as a success, with this text for the model."""
    assert isinstance(outcome, ToolSuccess), f"a success was due, but this came: {outcome!r}"
    assert text is None or text_of(outcome.content) == text, f"{text!r} was due, but this came: {outcome.content!r}"
    return outcome


def results(root: Context) -> list[AfterExecution]:
    """Everything that `tools/result` tells from now on."""
    told: list[AfterExecution] = []
    root.on(TOOL_RESULT, told.append)
    return told


@tool
async def echo(text: str = "") -> str:
    """Say it again."""
    return text


@tool
async def stumble() -> str:
    """Stumble."""
    raise RuntimeError("over a stone")


class Mounting:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `TOOLS` and needs no config."""

    plugin: ClassVar[Plugin[Any]]
    patience: ClassVar[float] = 20
    """Seconds after which a test that hangs has failed."""

    @asynccontextmanager
    async def with_rows(self, *rows: Plugin[Config]) -> AsyncIterator[Context]:
        with anyio.fail_after(self.patience), capture_logs():
            async with running(self.plugin, *rows) as root:
                yield root
