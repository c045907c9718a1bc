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
    from .kernel.duration import Duration as Duration
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
    from .kernel.registry import EntryGroup as EntryGroup
    from .kernel.registry import Registry as Registry
    from .kernel.registry import RegistryChange as RegistryChange
    from .kernel.runtime import open_kernel as open_kernel
    from .kernel.secret import Secret as Secret
    from .kernel.secret import SecretHandle as SecretHandle
    from .kernel.secret import SecretUnavailableError as SecretUnavailableError
    from .kernel.signal import Aborter as Aborter
    from .kernel.signal import Signal as Signal
    from .kernel.signal import leashed as leashed
    from .kernel.signal import obey as obey
    from .kernel.stage import Stage as Stage
    from .kernel.states import FiberState as FiberState
    from .kernel.stray import is_fault as is_fault
    from .kernel.watchdog import Backoff as Backoff
    from .kernel.watchdog import Timing as Timing
    from .loader.events import CONFIG_UPDATE as CONFIG_UPDATE
    from .loader.events import ENTRY_INIT as ENTRY_INIT
    from .loader.events import EXIT as EXIT
    from .loader.events import HMR as HMR
    from .loader.events import HMR_CHANGE as HMR_CHANGE
    from .loader.events import HMR_RELOAD as HMR_RELOAD
    from .loader.events import LOADER as LOADER
    from .loader.events import PARTIAL_DISPOSE as PARTIAL_DISPOSE
    from .loader.events import PATCH_CONTEXT as PATCH_CONTEXT
    from .loader.events import CodeReloaded as CodeReloaded
    from .loader.events import ConfigUpdated as ConfigUpdated
    from .loader.events import Exiting as Exiting
    from .loader.events import RowClosing as RowClosing
    from .loader.events import RowContext as RowContext
    from .loader.events import RowOpening as RowOpening
    from .loader.events import SourceChanged as SourceChanged

_HOME = {
    "Aborted": "kernel.errors", "Aborter": "kernel.signal", "Backoff": "kernel.watchdog", "Bail": "kernel.events",
    "CONFIG_UPDATE": "loader.events", "CodeReloaded": "loader.events", "CommitRefusedError": "kernel.errors",
    "Config": "kernel.plugin", "ConfigUpdated": "loader.events", "Context": "kernel.context",
    "DshdError": "kernel.errors", "Duration": "kernel.duration", "ENTRY_INIT": "loader.events",
    "EXIT": "loader.events", "Effect": "kernel.effects", "Emit": "kernel.events",
    "EntryConflictError": "kernel.errors", "EntryGroup": "kernel.registry", "Exiting": "loader.events",
    "Fiber": "kernel.fiber", "FiberState": "kernel.states", "HMR": "loader.events", "HMR_CHANGE": "loader.events",
    "HMR_RELOAD": "loader.events", "InactiveFiberError": "kernel.errors", "KernelError": "kernel.errors",
    "LOADER": "loader.events", "Next": "kernel.events", "PARTIAL_DISPOSE": "loader.events",
    "PATCH_CONTEXT": "loader.events", "Parallel": "kernel.events", "Picture": "kernel.inspect",
    "Plugin": "kernel.plugin", "Realm": "kernel.keys", "Registry": "kernel.registry",
    "RegistryChange": "kernel.registry", "RegistryKey": "kernel.keys", "RowClosing": "loader.events",
    "RowContext": "loader.events", "RowOpening": "loader.events", "Scope": "kernel.effects",
    "Secret": "kernel.secret", "SecretHandle": "kernel.secret", "SecretUnavailableError": "kernel.secret",
    "Serial": "kernel.events", "ServiceConflictError": "kernel.errors", "ServiceKey": "kernel.keys",
    "ServiceNotDeclaredError": "kernel.errors", "ServiceUnavailableError": "kernel.errors",
    "SharedKey": "kernel.keys", "Signal": "kernel.signal", "SourceChanged": "loader.events", "Stage": "kernel.stage",
    "Timing": "kernel.watchdog", "Waterfall": "kernel.events", "errors": "", "internal": "",
    "is_fault": "kernel.stray", "leashed": "kernel.signal", "obey": "kernel.signal", "open_kernel": "kernel.runtime",
    "picture": "kernel.inspect", "plugin": "kernel.plugin", "still_opening": "kernel.inspect",
}  # fmt: skip

__all__ = [
    "Aborted", "Aborter", "Backoff", "Bail", "CONFIG_UPDATE", "CodeReloaded", "CommitRefusedError", "Config",
    "ConfigUpdated", "Context", "DshdError", "Duration", "ENTRY_INIT", "EXIT", "Effect", "Emit",
    "EntryConflictError", "EntryGroup", "Exiting", "Fiber", "FiberState", "HMR", "HMR_CHANGE", "HMR_RELOAD",
    "InactiveFiberError", "KernelError", "LOADER", "Next", "PARTIAL_DISPOSE", "PATCH_CONTEXT", "Parallel", "Picture",
    "Plugin", "Realm", "Registry", "RegistryChange", "RegistryKey", "RowClosing", "RowContext", "RowOpening",
    "Scope", "Secret", "SecretHandle", "SecretUnavailableError", "Serial", "ServiceConflictError", "ServiceKey",
    "ServiceNotDeclaredError", "ServiceUnavailableError", "SharedKey", "Signal", "SourceChanged", "Stage", "Timing",
    "Waterfall", "errors", "internal", "is_fault", "leashed", "obey", "open_kernel", "picture", "plugin",
    "still_opening",
]  # fmt: skip


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'dshd' has no attribute {name!r}") from None
    value: object = import_module(f"dshd.{home or f'kernel.{name}'}")
    if home:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
