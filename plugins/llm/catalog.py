"""What there is: live routes, those that configuration could activate, their models, and drafts of new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from dshd import Context
from dshd.capabilities.llm import (
    CONFIGURABLE_PROVIDERS,
    ROUTES,
    DirectoryEntry,
    DiscoveredModel,
    FailureCode,
    LlmError,
    ModelDiscoveryRequest,
    ModelInfo,
    ProviderInfo,
)
from dshd.capabilities.llm.service import Discoverer

from .faults import answer


def directory(view: Context) -> list[DirectoryEntry]:
    """Live routes in their order, then the dormant ones in theirs."""
    routes = dict(view.registry(ROUTES).items())
    offers = {name: offer.provider for name, offer in view.registry(CONFIGURABLE_PROVIDERS).items()}
    live = [DirectoryEntry(route.info, live=True, configurable=offers.get(name)) for name, route in routes.items()]
    dormant = [
        DirectoryEntry(ProviderInfo(name, offer.display_name), live=False, configurable=offer)
        for name, offer in offers.items()
        if name not in routes
    ]
    return live + dormant


async def list_models(view: Context, provider: str | None, warn: Callable[..., Any]) -> list[ModelInfo]:
    """The catalogs of one route or of all, asked side by side, in the order of the routes."""
    routes = dict(view.registry(ROUTES).items())
    if provider is not None and provider not in routes:
        raise LlmError(f"no route is called {provider!r}; {_there_are(list(routes))}", FailureCode.NO_ADAPTER)
    asked = list(routes) if provider is None else [provider]
    found: dict[str, list[ModelInfo]] = {}

    async def ask(name: str) -> None:
        what = f"the catalog of route {name!r}"
        try:
            listed = await answer(what, lambda: routes[name].adapter.list_models(name))
            found[name] = _checked(listed, ModelInfo, what)
        except LlmError as exc:
            warn("a catalog cannot be read", route=name, error=str(exc))

    async with anyio.create_task_group() as tasks:
        for name in asked:
            tasks.start_soon(ask, name)
    return [model for name in asked for model in found.get(name, ()) if model.provider == name]


async def discover_models(view: Context, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
    """The models of a draft, by whoever can tell."""
    what = f"asking {request.base_url or 'route ' + repr(request.provider)} for its models"
    discover = _discoverer(view, request)
    found = await answer(what, lambda: discover(request), request.signal)
    return _checked(found, DiscoveredModel, what)


def _discoverer(view: Context, request: ModelDiscoveryRequest) -> Discoverer:
    """The adapter of the live route, else whoever offers that route, else whoever speaks the protocol."""
    routes = dict(view.registry(ROUTES).items())
    if request.provider in routes:
        return routes[request.provider].adapter.discover_models
    if request.base_url is None:
        draft = "without a live route" if request.provider is None else f"of {request.provider!r}, which is not live,"
        raise LlmError(f"a draft {draft} needs a base_url to ask", FailureCode.NO_DISCOVERY)
    offers = dict(view.registry(CONFIGURABLE_PROVIDERS).items())
    offer = offers.get(request.provider or "")
    if offer is not None and offer.discover is not None:
        return offer.discover
    for other in offers.values():
        if other.discover is not None and request.api is not None and request.api in other.apis:
            return other.discover
    known = sorted({api for other in offers.values() for api in other.apis})
    hint = f"apis that somebody can: {', '.join(known)}" if known else "no adapter here offers to"
    raise LlmError(f"nobody can interrogate a draft of api {request.api!r}; {hint}", FailureCode.NO_DISCOVERY)


def _checked(found: object, kind: type[Any], what: str) -> list[Any]:
    if isinstance(found, Sequence) and all(isinstance(each, kind) for each in found):
        return list(found)
    raise LlmError(f"{what} gave something that is no list of {kind.__name__}", FailureCode.PROVIDER)


def _there_are(names: list[str]) -> str:
    return f"there are {', '.join(names)}" if names else "there are none"
