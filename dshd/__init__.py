"""dshd: a daemon that runs LLM agents the way a good init system runs services.

The public names of the kernel, resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .kernel import errors as errors
    from .kernel import internal as internal
    from .kernel.context import Context as Context
    from .kernel.effects import Effect as Effect
    from .kernel.effects import Scope as Scope
    from .kernel.errors import Aborted as Aborted
    from .kernel.errors import CommitRefusedError as CommitRefusedError
    from .kernel.errors import DshdError as DshdError
    from .kernel.errors import EntryConflictError as EntryConflictError
    from .kernel.errors import InactiveFiberError as InactiveFiberError
    from .kernel.errors import KernelError as KernelError
    from .kernel.errors import ServiceConflictError as ServiceConflictError
    from .kernel.errors import ServiceNotDeclaredError as ServiceNotDeclaredError
    from .kernel.errors import ServiceUnavailableError as ServiceUnavailableError
    from .kernel.events import Bail as Bail
    from .kernel.events import Emit as Emit
    from .kernel.events import Next as Next
    from .kernel.events import Parallel as Parallel
    from .kernel.events import Serial as Serial
    from .kernel.events import Waterfall as Waterfall
    from .kernel.fiber import Fiber as Fiber
    from .kernel.inspect import Picture as Picture
    from .kernel.inspect import picture as picture
    from .kernel.inspect import still_opening as still_opening
    from .kernel.keys import Realm as Realm
    from .kernel.keys import RegistryKey as RegistryKey
    from .kernel.keys import ServiceKey as ServiceKey
    from .kernel.keys import SharedKey as SharedKey
    from .kernel.plugin import Config as Config
    from .kernel.plugin import Plugin as Plugin
    from .kernel.plugin import plugin as plugin
    from .kernel.registry import Registry as Registry
    from .kernel.registry import RegistryChange as RegistryChange
    from .kernel.runtime import open_kernel as open_kernel
    from .kernel.secret import Secret as Secret
    from .kernel.signal import Aborter as Aborter
    from .kernel.signal import Signal as Signal
    from .kernel.signal import obey as obey
    from .kernel.stage import Stage as Stage
    from .kernel.states import FiberState as FiberState
    from .kernel.watchdog import Backoff as Backoff
    from .kernel.watchdog import Timing as Timing

_HOME = {
    "Aborted": "errors", "Aborter": "signal", "Backoff": "watchdog", "Bail": "events", "CommitRefusedError": "errors",
    "Config": "plugin", "Context": "context", "DshdError": "errors", "Effect": "effects", "Emit": "events",
    "EntryConflictError": "errors", "Fiber": "fiber", "FiberState": "states", "InactiveFiberError": "errors",
    "KernelError": "errors", "Next": "events", "Parallel": "events", "Picture": "inspect", "Plugin": "plugin",
    "Realm": "keys", "Registry": "registry", "RegistryChange": "registry", "RegistryKey": "keys", "Scope": "effects",
    "Secret": "secret", "Serial": "events", "ServiceConflictError": "errors", "ServiceKey": "keys",
    "ServiceNotDeclaredError": "errors", "ServiceUnavailableError": "errors", "SharedKey": "keys", "Signal": "signal",
    "Stage": "stage", "Timing": "watchdog", "Waterfall": "events", "errors": "", "internal": "", "obey": "signal",
    "open_kernel": "runtime", "picture": "inspect", "plugin": "plugin", "still_opening": "inspect",
}  # fmt: skip

__all__ = [
    "Aborted", "Aborter", "Backoff", "Bail", "CommitRefusedError", "Config", "Context", "DshdError", "Effect", "Emit",
    "EntryConflictError", "Fiber", "FiberState", "InactiveFiberError", "KernelError", "Next", "Parallel", "Picture",
    "Plugin", "Realm", "Registry", "RegistryChange", "RegistryKey", "Scope", "Secret", "Serial",
    "ServiceConflictError", "ServiceKey", "ServiceNotDeclaredError", "ServiceUnavailableError", "SharedKey", "Signal",
    "Stage", "Timing", "Waterfall", "errors", "internal", "obey", "open_kernel", "picture", "plugin", "still_opening",
]  # fmt: skip


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'dshd' has no attribute {name!r}") from None
    value: object = import_module(f"dshd.kernel.{home or name}")
    if home:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
