"""What a plugin is: a name, a body, the shape of its config and what it needs. A value; defining one has no effect."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict

from .errors import PluginDefinitionError
from .keys import ServiceKey

if TYPE_CHECKING:
    from .context import Context


class Config(BaseModel):
    """Base of a plugin's config: frozen, no unknown fields; the string under a field documents it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)


C = TypeVar("C", bound=BaseModel)

Body: TypeAlias = "Callable[[Context, C], Awaitable[None]] | Callable[[Context, C], AsyncIterator[None]]"
"""Set up and return, or set up, `yield` while live, tear down."""


@dataclass(frozen=True)
class Plugin(Generic[C]):
    """A plugin, ready to be mounted any number of times. Made by `@plugin`."""

    name: str
    body: Body[C]
    config: type[C]
    inject: tuple[ServiceKey[Any], ...] = ()
    """Services that must be visible before the body opens; replacing one leaves this plugin running."""
    pinned: tuple[ServiceKey[Any], ...] = ()
    """Those of `inject` whose object the body keeps: replaced together with their provider."""
    provides: tuple[ServiceKey[Any], ...] = ()
    """Services the body may provide. Declared, so that a tree can be checked before anything is opened."""
    validate: Callable[[Any], None] | None = None
    """A rule across rows, pure: looks at a `dshd.loader.rules.View` of the tree as it would be, says what is wrong."""

    @cached_property
    def yields(self) -> bool:
        """Whether the body is of the kind that yields."""
        return inspect.isasyncgenfunction(self.body)

    def parse(self, config: BaseModel | dict[str, Any] | None) -> C:
        """The config as this plugin's model. Raises pydantic's `ValidationError`."""
        if isinstance(config, self.config):
            return config
        if isinstance(config, BaseModel):
            config = config.model_dump()
        return self.config.model_validate({} if config is None else config)

    def __repr__(self) -> str:
        return f"<plugin {self.name}>"


@overload
def plugin(
    name: str,
    *,
    inject: Sequence[ServiceKey[Any]] = (),
    pinned: Sequence[ServiceKey[Any]] = (),
    provides: Sequence[ServiceKey[Any]] = (),
    validate: Callable[[Any], None] | None = None,
) -> Callable[[Body[Config]], Plugin[Config]]: ...
@overload
def plugin(
    name: str,
    *,
    config: type[C],
    inject: Sequence[ServiceKey[Any]] = (),
    pinned: Sequence[ServiceKey[Any]] = (),
    provides: Sequence[ServiceKey[Any]] = (),
    validate: Callable[[Any], None] | None = None,
) -> Callable[[Body[C]], Plugin[C]]: ...
def plugin(
    name: str,
    *,
    config: Any = Config,
    inject: Sequence[ServiceKey[Any]] = (),
    pinned: Sequence[ServiceKey[Any]] = (),
    provides: Sequence[ServiceKey[Any]] = (),
    validate: Callable[[Any], None] | None = None,
) -> Callable[[Any], Plugin[Any]]:
    """Make a plugin of an `async def` body taking `(ctx, config)`.

    `pinned` keys need not be repeated in `inject`. Raises `PluginDefinitionError` for a declaration of another shape.
    """
    needed = _keys(name, "inject", inject)
    kept = _keys(name, "pinned", pinned)
    needed += tuple(key for key in kept if key not in needed)
    provided = _keys(name, "provides", provides)
    if callable(name):
        raise PluginDefinitionError(f"write @plugin({getattr(name, '__name__', 'name')!r}), with the plugin's name")
    if not name:
        raise PluginDefinitionError("a plugin's name may not be empty")
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise PluginDefinitionError(f"plugin {name!r}: config is a pydantic model class, not {config!r}")

    def make(body: Any) -> Plugin[Any]:
        if not (inspect.isasyncgenfunction(body) or inspect.iscoroutinefunction(body)):
            given = f"def {body.__name__}" if inspect.isfunction(body) else repr(body)
            raise PluginDefinitionError(
                f"plugin {name!r}: the body is `async def body(ctx, config)`, with or without a `yield`, not {given}"
            )
        try:
            inspect.signature(body).bind(None, None)
        except TypeError as exc:
            raise PluginDefinitionError(f"plugin {name!r}: the body takes (ctx, config); {exc}") from exc
        return Plugin(name, body, config, needed, kept, provided, validate)

    return make


def _keys(name: str, field: str, keys: object) -> tuple[ServiceKey[Any], ...]:
    if isinstance(keys, (list, tuple)) and all(isinstance(key, ServiceKey) for key in keys):
        return tuple(dict.fromkeys(keys))
    raise PluginDefinitionError(
        f"plugin {name!r}: {field} is a list of service keys, such as {field}=[LLM, TOOLS], not {keys!r}; "
        f"read an optional service with ctx.get(KEY) and do not declare it"
    )
