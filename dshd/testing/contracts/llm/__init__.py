"""The suite for whoever provides `LLM`, and the adapter its tests ask.

class TestMine(LlmContract):
    plugin = my_llm
"""

from __future__ import annotations

from .calls import CallsContract
from .routes import RoutesContract
from .streams import StreamsContract
from .voice import Mounted as Mounted
from .voice import Script as Script
from .voice import Voice as Voice
from .voice import ask as ask
from .voice import asking as asking
from .voice import consumer as consumer
from .voice import failure as failure
from .voice import hello as hello
from .voice import model as model
from .voice import raising as raising
from .voice import refused as refused
from .voice import replaced as replaced
from .voice import routes as routes
from .voice import row as row
from .voice import service as service
from .voice import serving as serving
from .voice import stalled as stalled
from .voice import text as text


class LlmContract(RoutesContract, CallsContract, StreamsContract):
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `LLM` and needs no config."""
