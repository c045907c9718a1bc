"""The suite for whoever provides `TOOLS`."""

from __future__ import annotations

from .ending import EndingContract
from .offer import OfferContract
from .pipeline import PipelineContract
from .rows import a_call as a_call
from .rows import around as around
from .rows import echo as echo
from .rows import failed as failed
from .rows import offering as offering
from .rows import results as results
from .rows import stumble as stumble
from .rows import succeeded as succeeded
from .rows import tools_of as tools_of


class ToolsContract(OfferContract, PipelineContract, EndingContract):
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `TOOLS` and needs no config."""
