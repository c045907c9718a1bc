"""What there is: live routes, those that configuration could activate, and the models of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from dshd import Context
from dshd.capabilities.llm import (
    CONFIGURABLE_PROVIDERS,
    ROUTES,
    DirectoryEntry,
    FailureCode,
    LlmError,
    ModelInfo,
    ProviderInfo,
    Route,
)

from .faults import answer
from .handover import Report

PATIENCE = 30.0
"""Seconds after which a catalog is left out, so that one that hangs does not hide the others."""


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


async def list_models(view: Context, provider: str | None, report: Report) -> list[ModelInfo]:
    """The catalogs of one route or of all, asked side by side, in the order of the routes."""
    routes = dict(view.registry(ROUTES).items())
    if provider is not None and provider not in routes:
        there = f"there are {', '.join(routes)}" if routes else "there is none at all"
        raise LlmError(f"no route is called {provider!r}; {there}", FailureCode.NO_ADAPTER)
    asked = list(routes) if provider is None else [provider]
    found: dict[str, list[ModelInfo]] = {}

    async def ask(name: str) -> None:
        found[name] = await _catalog(name, routes[name], report)

    async with anyio.create_task_group() as tasks:
        for name in asked:
            tasks.start_soon(ask, name)
    return [model for name in asked for model in found[name]]


async def _catalog(name: str, route: Route, report: Report) -> list[ModelInfo]:
    what = f"the catalog of route {name!r}"

    async def listed() -> list[ModelInfo]:
        return checked(await route.adapter.list_models(name), ModelInfo, what, provider=name)

    try:
        with anyio.fail_after(PATIENCE):
            return await answer(what, listed)
    except (LlmError, TimeoutError) as exc:
        report("a catalog cannot be read", route=name, error=str(exc) or f"it took more than {PATIENCE:g} s")
        return []


def checked(found: object, kind: type[Any], what: str, **members: object) -> list[Any]:
    """What an adapter listed. Raises `LlmError` if that is no list of `kind`, each with an id and these members."""
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        raise LlmError(f"{what} is {type(found).__name__}, which is no list", FailureCode.PROVIDER)
    for each in found:
        if not isinstance(each, kind):
            raise LlmError(f"{what} lists {type(each).__name__}, which is no {kind.__name__}", FailureCode.PROVIDER)
        if not isinstance(each.id, str) or not each.id:
            raise LlmError(f"{what} lists a model with the id {each.id!r}", FailureCode.PROVIDER)
        for member, value in members.items():
            if getattr(each, member) != value:
                was = getattr(each, member)
                raise LlmError(f"{what} lists {each.id!r} with the {member} {was!r}", FailureCode.PROVIDER)
    return list(found)
