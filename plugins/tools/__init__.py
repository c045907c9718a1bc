"""Tools: what plugins offer to agents, and the pipeline that every call goes through.

toolbox    the service, as one consumer sees it
visible    which tools a scope may see
arguments  the model's JSON text as arguments
raw        arguments against a JSON Schema written by hand
pipeline   one call, from its name to its outcome
body       the tool's own code, run under its timeout
content    what a tool returned, as something the model can read
faults     what went wrong, as a failure
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dshd import Config, Context, Duration, plugin
from dshd.capabilities.tools import TOOLS

from .toolbox import Toolbox


class Tools(Config):
    cancel_grace: Annotated[Duration, Field(gt=0)] = 10.0
    """How long a tool that looks at its signal may go on after it was told to stop, and listeners after a call."""


@plugin("tools", config=Tools, provides=[TOOLS])
async def tools(ctx: Context, config: Tools) -> None:
    ctx.provide_each(TOOLS, lambda consumer: Toolbox(consumer, config.cancel_grace))
