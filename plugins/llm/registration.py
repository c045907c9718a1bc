"""Registrations: which adapter instance serves which routes. They act on the kernel's registry, not on the service."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from dshd import Context, EntryConflictError, EntryGroup, InactiveFiberError, errors
from dshd.capabilities.llm import (
    CONFIGURABLE_PROVIDERS,
    ROUTES,
    ConfigurableOffer,
    ConfigurableProvider,
    FailureCode,
    LlmAdapter,
    LlmError,
    ProviderInfo,
    RetryPolicy,
    Route,
)
from dshd.capabilities.llm.service import Discoverer

from .faults import words_of


class Registration:
    """What `register_adapter` gives: the routes of one adapter instance, as one group of entries."""

    __slots__ = ("_adapter", "_group", "_routes")

    def __init__(self, adapter: LlmAdapter, group: EntryGroup[Route], routes: Mapping[str, Route]) -> None:
        self._adapter = adapter
        self._group = group
        self._routes = routes

    @property
    def routes(self) -> tuple[str, ...]:
        """The routes it holds, in order."""
        return tuple(self._routes) if self._group.live else ()

    def replace(self, providers: Sequence[str]) -> None:
        """See `AdapterRegistration.replace`."""
        self._check_live()
        routes = _routes(providers, self._adapter, known=self._routes)
        try:
            self._group.replace(routes)
        except EntryConflictError as exc:
            raise _taken("route", exc) from None
        except (errors.EntryGoneError, InactiveFiberError):
            raise self._disposed() from None
        self._routes = routes

    def release(self) -> None:
        """See `AdapterRegistration.release`."""
        self._group.release()

    def _check_live(self) -> None:
        if not self._group.live:
            raise self._disposed()

    def _disposed(self) -> LlmError:
        row = self._group.owner.path
        message = f"the registration of an adapter by row {row!r} was released, so it has no routes to replace"
        return LlmError(message, FailureCode.REGISTRATION_DISPOSED)

    def __repr__(self) -> str:
        return f"<registration of {', '.join(self.routes) or 'no routes'} by {self._group.owner.path}>"


def register(consumer: Context, providers: Sequence[str], adapter: LlmAdapter) -> Registration:
    """Register routes for the life of `consumer`. Raises `LlmError`, having registered nothing."""
    if not isinstance(adapter, LlmAdapter):
        raise _invalid(f"{adapter!r} is no adapter; derive its class from LlmAdapter")
    routes = _routes(providers, adapter)
    if not routes:
        raise _invalid("an adapter is registered for at least one route; only replace() may leave it without")
    try:
        group = consumer.registry(ROUTES).add_group(f"adapter for {', '.join(routes)}", routes)
    except EntryConflictError as exc:
        raise _taken("route", exc) from None
    return Registration(adapter, group, routes)


def register_configurable(
    consumer: Context,
    providers: Sequence[ConfigurableProvider],
    discover: Discoverer | None,
    apis: Sequence[str],
) -> None:
    """Register what configuration could activate, for the life of `consumer`. Raises `LlmError`, whole."""
    if not _are_names(apis) or not all(apis):
        raise _invalid(f"apis is a list of names of wire protocols, not {apis!r}")
    if apis and discover is None:
        raise _invalid("apis says which drafts discover can interrogate, so it needs one")
    offers: dict[str, ConfigurableOffer] = {}
    for provider in providers:
        if not isinstance(provider, ConfigurableProvider):
            raise _invalid(f"{provider!r} is no configurable provider")
        _check_name(provider.provider)
        if provider.provider in offers:
            raise _invalid(f"the configurable provider {provider.provider!r} is listed twice")
        for field in ("display_name", "settings_ns"):
            text = getattr(provider, field)
            if not isinstance(text, str) or not text:
                raise _invalid(f"the configurable provider {provider.provider!r} has no {field}")
        if not _are_names(provider.settings_path):
            path = provider.settings_path
            raise _invalid(f"settings_path of {provider.provider!r} is a tuple of names, not {path!r}")
        offers[provider.provider] = ConfigurableOffer(provider, discover, frozenset(apis))
    if not offers:
        raise _invalid("no configurable provider is listed")
    try:
        consumer.registry(CONFIGURABLE_PROVIDERS).add_group(f"configurable {', '.join(offers)}", offers)
    except EntryConflictError as exc:
        raise _taken("configurable provider", exc) from None


# -- what is checked


def _are_names(names: object) -> bool:
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
        return False
    return all(isinstance(name, str) for name in names)


def _routes(
    providers: Sequence[str], adapter: LlmAdapter, known: Mapping[str, Route] | None = None
) -> dict[str, Route]:
    """The routes by name, all of them valid; those of `known` that have not changed are kept as they are."""
    if isinstance(providers, (str, bytes)) or not isinstance(providers, Sequence):
        raise _invalid(f"routes are given as a list of names, not as {providers!r}")
    routes: dict[str, Route] = {}
    for name in providers:
        _check_name(name)
        if name in routes:
            raise _invalid(f"route {name!r} is listed twice")
        info, policy = _info(adapter, name), _policy(adapter, name)
        old = (known or {}).get(name)
        unchanged = old is not None and (old.info, old.retry_policy) == (info, policy)
        routes[name] = old if old is not None and unchanged else Route(adapter, info, policy)
    return routes


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or "/" in name or any(map(str.isspace, name)) or not name.isprintable():
        raise _invalid(f"a route's name is text without white space and slashes, and not empty; {name!r} is none")


def _info(adapter: LlmAdapter, name: str) -> ProviderInfo:
    info = _said(adapter, "provider_info", name)
    if not isinstance(info, ProviderInfo):
        raise _invalid(f"{_of(adapter)}: provider_info({name!r}) gave {info!r}, which is no ProviderInfo")
    shown: object = info.name
    if info.id != name or not isinstance(shown, str) or not shown.strip():
        raise _invalid(f"{_of(adapter)}: provider_info({name!r}) gave {info!r}; it needs this id, and a name")
    return info


def _policy(adapter: LlmAdapter, name: str) -> RetryPolicy | None:
    policy = _said(adapter, "retry_policy", name)
    if policy is None:
        return None
    if not isinstance(policy, RetryPolicy):
        raise _invalid(f"{_of(adapter)}: retry_policy({name!r}) gave {policy!r}, which is no RetryPolicy")
    return policy


def _said(adapter: LlmAdapter, method: str, name: str) -> object:
    """What a plain method of an adapter answers about a route."""
    try:
        said: object = getattr(adapter, method)(name)
    except BaseException as exc:  # an adapter may even call sys.exit
        raise _invalid(f"{_of(adapter)}: {method}({name!r}) failed: {words_of(exc)}") from exc
    if inspect.iscoroutine(said):
        said.close()
    return said


def _of(adapter: LlmAdapter) -> str:
    return f"adapter {type(adapter).__name__}"


def _invalid(message: str) -> LlmError:
    return LlmError(message, FailureCode.INVALID_REGISTRATION)


def _taken(what: str, conflict: EntryConflictError) -> LlmError:
    message = (
        f"{what} {conflict.name!r} is registered by row {conflict.holder!r} already, so row {conflict.challenger!r} "
        f"may not; remove one of them, or give it another name"
    )
    return LlmError(message, FailureCode.DUPLICATE_ADAPTER)
