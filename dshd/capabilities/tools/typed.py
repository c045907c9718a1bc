"""Definitions out of typed functions: annotations and docstring become the schema.

    @tool
    async def weather(city: str, days: int = 1, *, signal: Signal) -> str:
        \"\"\"The forecast for a city.

        Args:
            city: its name, in English
        \"\"\"

A parameter of type `ToolCall` is the call itself, one of type `Signal` its signal, and whoever takes the signal is
cooperative: it is not cancelled at once but ends by itself. A parameter that is a pydantic model is an object.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, overload

from dshd.capabilities.values.json import Json
from dshd.kernel.errors import DshdError, PluginDefinitionError

from . import docstring
from .call import ToolCall
from .definition import Classify, ExecutionMode, ToolDefinition
from .outcome import ToolCode
from .parameters import parameters_of, written


class ToolError(DshdError):
    """Raised by a tool to tell the model, in these words, that it could not do what was asked."""

    def __init__(self, message: str, code: str = ToolCode.TOOL_ERROR) -> None:
        self.message, self.code = message if str(message).strip() else "the tool gives no reason", code
        super().__init__(self.message)


@overload
def tool(function: Callable[..., Awaitable[Any]], /) -> ToolDefinition: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    mode: ExecutionMode | Classify = "exclusive",
    timeout: float | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], ToolDefinition]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """A definition made of an `async def`, also as a decorator with options.

    Its arguments are checked by pydantic, with members that nobody declared refused. Raises `PluginDefinitionError`
    for a function that is not async, a parameter without annotation, `*args` or `**kwargs`, a type that has no JSON
    Schema, or no docstring and no description.
    """
    if function is None:
        return lambda function: _defined(function, **options)
    return _defined(function, **options)


def _defined(
    function: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    mode: ExecutionMode | Classify = "exclusive",
    timeout: float | None = None,
) -> ToolDefinition:
    name = getattr(function, "__name__", None) if name is None else name
    if name is None:
        raise PluginDefinitionError(f"@tool makes a tool of an `async def`, not of {function!r}")
    if not inspect.iscoroutinefunction(function):
        raise PluginDefinitionError(f"tool {name!r}: write `async def`; it is no coroutine function")
    told, docs = docstring.read(written(function).__doc__)
    description = told if description is None else description
    if not description.strip():
        raise PluginDefinitionError(f"tool {name!r}: give it a docstring, or description=…, for the model to read")
    parameters = parameters_of(function, name, docs)

    async def execute(call: ToolCall) -> Any:
        positional, named = parameters.bound(call)
        return await function(*positional, **named)

    def check(arguments: Mapping[str, Json]) -> None:
        parameters.read(arguments)

    try:
        return ToolDefinition(
            name=name,
            description=description,
            parameters=parameters.schema,
            execute=execute,
            check=check,
            mode=mode,
            timeout=timeout,
            cooperative=parameters.takes_signal,
        )
    except ValueError as exc:
        raise PluginDefinitionError(str(exc)) from None
