"""Discovery: the models of a draft that configuration has not stored yet, by whoever can tell.

The credential of a draft is for this one call. No error that leaves here has it, nor the exceptions it came of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from urllib.parse import quote, quote_plus

from dshd import Context
from dshd.capabilities.llm import (
    CONFIGURABLE_PROVIDERS,
    ROUTES,
    DiscoveredModel,
    FailureCode,
    LlmError,
    LlmFailure,
    ModelDiscoveryRequest,
)
from dshd.capabilities.llm.service import Discoverer
from dshd.capabilities.values.json import whole

from .catalog import checked
from .faults import answer

HIDDEN = "…"


async def discover_models(view: Context, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
    """Ask the adapter of the route, else who could activate it, else who speaks the draft's protocol.

    Each may say that it cannot tell; then the next is asked. Raises `LlmError`, promptly when the signal says stop.
    """
    refused: LlmFailure | None = None
    for discover in _who_could(view, request):
        try:
            return await answer("asking for the models of a draft", partial(_asked, discover, request), request.signal)
        except LlmError as exc:
            refused = exc.failure
        if refused.code != FailureCode.NO_DISCOVERY:
            break
    # Raised where no exception is being handled: what was raised below may hold the credential in any of its parts.
    if refused is None or (refused.code == FailureCode.NO_DISCOVERY and request.base_url is None):
        refused = _nobody(view, request)
    raise LlmError(_without(request.api_key, refused))


async def _asked(discover: Discoverer, request: ModelDiscoveryRequest) -> list[DiscoveredModel]:
    return checked(await discover(request), DiscoveredModel, "the answer about a draft")


def _who_could(view: Context, request: ModelDiscoveryRequest) -> Iterator[Discoverer]:
    """Whoever may know, once each, the likeliest first. Those who only know a protocol need an endpoint to ask."""
    asked: list[Discoverer] = []
    route = None if request.provider is None else view.registry(ROUTES).get(request.provider)
    if route is not None:
        asked.append(route.adapter.discover_models)
    offers = dict(view.registry(CONFIGURABLE_PROVIDERS).items())
    mine = offers.get(request.provider or "")
    if mine is not None and mine.discover is not None:
        asked.append(mine.discover)
    if request.base_url is not None and request.api is not None:
        asked += [o.discover for o in offers.values() if o.discover is not None and request.api in o.apis]
    return (each for place, each in enumerate(asked) if each not in asked[:place])


def _nobody(view: Context, request: ModelDiscoveryRequest) -> LlmFailure:
    offers = view.registry(CONFIGURABLE_PROVIDERS).values()
    apis = sorted({api for offer in offers for api in offer.apis})
    if request.base_url is None:
        what = "a draft" if request.provider is None else f"route {request.provider!r}, which is not live,"
        why = f"nobody here knows the models of {what} without asking; give its base_url, and its api"
    elif request.api in apis or request.api is None:
        why = f"nobody here can ask {request.base_url!r} for its models; say which api it speaks"
    else:
        why = f"nobody here can ask an endpoint of api {request.api!r} for its models"
    known = f" (known: {', '.join(apis)})" if apis else ""
    return LlmFailure(message=f"{why}{known}", code=FailureCode.NO_DISCOVERY)


def _without(secret: str | None, failure: LlmFailure) -> LlmFailure:
    """`failure` without the credential, should what an endpoint or a library said quote it."""
    if not secret:
        return failure

    said = whole(secret)  # as a failure spells it
    plain = secret.encode(errors="surrogatepass")
    spellings = (secret, said, quote(plain, safe=""), quote_plus(plain), repr(secret)[1:-1], json.dumps(secret)[1:-1])

    def hidden(text: str) -> str:
        for spelling in spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    request_id = None if failure.request_id is None else hidden(failure.request_id)
    return replace(failure, message=hidden(failure.message), code=hidden(failure.code), request_id=request_id)
