"""The parameters of a typed function: which the model fills in, by what schema, and which the call itself is."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, SimpleNamespace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from dshd.capabilities.values.json import Json
from dshd.kernel.errors import PluginDefinitionError
from dshd.kernel.signal import Signal

from .arguments import InvalidArgumentsError
from .call import ToolCall
from .problems import dropped, problems_of
from .schema import schema_of

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=False, protected_namespaces=())


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one function, in its order."""

    model: type[BaseModel]
    schema: Mapping[str, Json]
    names: tuple[tuple[str, str | type], ...]
    """Of each parameter its name, and the field of the model that fills it, or `ToolCall` or `Signal`."""
    positional: int
    """How many come first and can be given by position only."""

    @property
    def takes_signal(self) -> bool:
        return any(source is Signal for _, source in self.names)

    def read(self, arguments: Mapping[str, Json]) -> BaseModel:
        """The arguments as the model of these parameters. Raises `InvalidArgumentsError`."""
        try:
            values = self.model.model_validate(thawed(arguments))
        except ValidationError as exc:
            raise InvalidArgumentsError(problems_of(exc, arguments), self.schema) from None
        lost = list(dropped(values, arguments))
        if lost:
            raise InvalidArgumentsError(lost, self.schema)
        return values

    def bound(self, call: ToolCall) -> tuple[list[Any], dict[str, Any]]:
        """What the function is called with. Raises `InvalidArgumentsError`."""
        values = self.read(call.arguments)
        given = {
            name: getattr(values, source) if isinstance(source, str) else call if source is ToolCall else call.signal
            for name, source in self.names
        }
        first = [given.pop(name) for name, _ in self.names[: self.positional]]
        return first, given


def thawed(value: Json) -> Any:
    """A copy of frozen JSON in the plain types that functions expect."""
    if isinstance(value, Mapping):
        return {name: thawed(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [thawed(part) for part in value]
    return value


def parameters_of(function: Callable[..., Any], tool: str, docs: Mapping[str, str]) -> Parameters:
    """The parameters of `function`, described by `docs`. Raises `PluginDefinitionError`."""
    signature = inspect.signature(function)
    scope = _scope(function)
    fields: dict[str, Any] = {}
    names: list[tuple[str, str | type]] = []
    positional = 0
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise PluginDefinitionError(f"tool {tool!r}: a model cannot fill in {stars}{name}; name each parameter")
        positional += parameter.kind is parameter.POSITIONAL_ONLY
        kind = _resolved(parameter, tool, scope)
        if kind is ToolCall or kind is Signal:
            names.append((name, kind))
            continue
        if isinstance(parameter.default, FieldInfo):
            kind = Annotated[kind, parameter.default]
        more: dict[str, Any] = {"description": docs[name]} if name in docs else {}
        if parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo):
            more["default"] = parameter.default
        field = f"p{len(fields)}"  # by the parameter's own name it might be that of a method of BaseModel
        fields[field] = (kind, Field(alias=name, **more))
        names.append((name, field))
    unknown = sorted(set(docs) - signature.parameters.keys())
    if unknown:
        raise PluginDefinitionError(f"tool {tool!r}: its docstring describes {unknown[0]!r}, which is no parameter")
    model, schema = _modelled(tool, fields)
    return Parameters(model, schema, tuple(names), positional)


def _modelled(tool: str, fields: Mapping[str, Any]) -> tuple[type[BaseModel], dict[str, Json]]:
    try:
        return _model(fields)
    except Exception as whole:  # pydantic's errors have no common base
        for kind, info in fields.values():  # which of them it is, pydantic does not say
            try:
                _model({"p0": (kind, info)})
            except Exception as exc:
                raise PluginDefinitionError(
                    f"tool {tool!r}: parameter {info.alias!r} is of type {_name_of(kind)}, which has no JSON Schema "
                    f"({_first_line(exc)}); a service or other object comes through a parameter of type ToolCall"
                ) from exc
        raise PluginDefinitionError(f"tool {tool!r}: its parameters do not fit: {_first_line(whole)}") from whole


def _model(fields: Mapping[str, Any]) -> tuple[type[BaseModel], dict[str, Json]]:
    model = create_model("Arguments", __config__=_STRICT, **fields)
    return model, schema_of(model)


def _first_line(error: Exception) -> str:
    """Its first sentence: in the next one pydantic recommends settings that a plugin author cannot reach."""
    lines = str(error).strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else type(error).__name__


def _name_of(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


# -- what annotations mean


def _resolved(parameter: inspect.Parameter, tool: str, scope: Mapping[str, Any]) -> Any:
    name, annotation = parameter.name, parameter.annotation
    if annotation is parameter.empty and name == "self":
        raise PluginDefinitionError(f"tool {tool!r}: a method is no tool; decorate a function in the plugin's body")
    if annotation is parameter.empty:
        raise PluginDefinitionError(f"tool {tool!r}: parameter {name!r} has no annotation; say what type it is of")
    holder = SimpleNamespace(__annotations__={name: annotation})
    try:
        kind = typing.get_type_hints(holder, dict(scope), include_extras=True)[name]
    except Exception as exc:  # an annotation is code, and may do anything
        raise PluginDefinitionError(
            f"tool {tool!r}: the annotation of parameter {name!r}, {annotation!r}, means nothing at run time "
            f"({_first_line(exc)}); define or import its names before the function, outside TYPE_CHECKING"
        ) from exc
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return bare if bare is ToolCall or bare is Signal else kind


def written(function: Callable[..., Any]) -> Any:
    """The function as it was written, without what wraps it."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.unwrap(function)


def _scope(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that the annotations of `function` may use: of its module, and of the functions it stands in.

    Python keeps of the latter only what the function itself uses. The rest is found in those that are still running,
    as the body of a plugin is while it defines its tools.
    """
    inner = written(function)
    code: CodeType | None = getattr(inner, "__code__", None)
    scope = dict(getattr(inner, "__globals__", {}))
    for frame in reversed(_standing_in(code)):
        scope.update(frame.f_locals)
    cells = zip(code.co_freevars if code else (), getattr(inner, "__closure__", None) or (), strict=False)
    for name, cell in cells:
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return scope


def _standing_in(code: CodeType | None) -> list[FrameType]:
    """The running functions that `code` was written in, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and code is not None:
        if code in frame.f_code.co_consts:
            found.append(frame)
            code = frame.f_code
        frame = frame.f_back
    return found
