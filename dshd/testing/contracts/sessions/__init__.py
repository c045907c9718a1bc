"""The suite for whoever provides `SESSIONS`.

class TestMine(SessionsContract):
    plugin = my_sessions
"""

from __future__ import annotations

from .lifecycle import LifecycleContract
from .rows import A as A
from .rows import B as B
from .rows import Listener as Listener
from .rows import completed as completed
from .rows import consumer as consumer
from .rows import conversation as conversation
from .seeds import SeedsContract
from .telling import TellingContract


class SessionsContract(LifecycleContract, TellingContract, SeedsContract):
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `SESSIONS` and needs no config."""
