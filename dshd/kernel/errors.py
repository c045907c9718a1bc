"""Every error the kernel raises on purpose.

DshdError
└── KernelError
    ├── PluginDefinitionError      a declaration of the wrong shape
    ├── InactiveFiberError         registering on what is neither loading nor active
    │   └── ClosedScopeError       registering in a scope that has ended
    ├── ServiceError
    │   ├── ServiceNotDeclaredError   read without `inject`, or provided without `provides`
    │   ├── ServiceUnavailableError   declared, but nobody provides it in this view
    │   └── ServiceConflictError      two providers in one slot
    ├── EntryConflictError         two registry entries of one name
    ├── EntryGoneError             an entry was set that is no longer registered
    ├── EventModeError             one event name used in two modes, or a listener of the wrong colour
    ├── NextCalledTwiceError       a waterfall listener delegated twice
    ├── UnscopedEventError         a scoped listener on an event that is about nobody
    ├── WrongTaskError             a call that only the plugin's own body may make
    ├── CommitRefusedError         a stage that may not be published; nothing was
    ├── LeaseEndedError            a leased view used after its block
    ├── UpdateRefusedError         an update of a fiber that has ended
    ├── FiberFailure               what a plugin did, seen from outside
    │   ├── LoadTimeoutError          the body did not finish opening in time
    │   ├── UnloadTimeoutError        cleanups, or the code after the `yield`, did not finish in time
    │   ├── AbandonedError            it ignored its cancellation and was left behind
    │   ├── StrayCancellationError    a cancellation none of our scopes asked for
    │   ├── PluginExitError           it called `sys.exit`
    │   └── KeeperLostError           shared state it held has failed
    ├── SecretUnavailableError     a secret that has no value just now (in `secret`)
    └── Aborted                    an operation was told to stop, with its cause
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

EXITS = (SystemExit, KeyboardInterrupt)
"""What a plugin may raise to end a process, and what ends only the plugin. A real interrupt comes by a signal."""


class DshdError(Exception):
    """Base of every error dshd raises on purpose."""


class KernelError(DshdError):
    """Base of every error the kernel raises on purpose."""


class PluginDefinitionError(KernelError, TypeError):
    """A plugin declares something the kernel cannot read."""


class InactiveFiberError(KernelError):
    """A contribution was offered to a fiber that is neither loading nor active; nothing was registered."""

    def __init__(self, fiber: str, state: str, what: str) -> None:
        self.fiber, self.state, self.what = fiber, state, what
        super().__init__(f"plugin {fiber!r} is {state}, so {what!r} was not registered; register while it is live")


class ClosedScopeError(InactiveFiberError):
    """A contribution was offered to a scope that has ended; nothing was registered."""

    def __init__(self, scope: str, what: str) -> None:
        KernelError.__init__(self, f"scope {scope!r} has ended, so {what!r} was not registered")
        self.fiber, self.state, self.what = scope, "ended", what


class ServiceError(KernelError, LookupError):
    """Base of the errors about services; has `.key`, the name of the service."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        super().__init__(message)


class ServiceNotDeclaredError(ServiceError):
    """A plugin used a service it does not declare, so the kernel could not have tracked the dependency."""


class ServiceUnavailableError(ServiceError):
    """A declared service has no provider in this view."""


class ServiceConflictError(ServiceError):
    """A second provider of one key in one realm; `.holder` is the first, `.challenger` the refused one."""

    def __init__(self, key: str, holder: str, challenger: str) -> None:
        self.holder, self.challenger = holder, challenger
        super().__init__(
            key,
            f"service {key!r} is already provided by {holder!r}, so {challenger!r} may not; "
            f"remove one of them or isolate {key!r} for one",
        )


class EntryConflictError(KernelError):
    """A second registry entry of one name; `.holder` is the first owner, `.challenger` the refused one."""

    def __init__(self, registry: str, name: str, holder: str, challenger: str) -> None:
        self.registry, self.name, self.holder, self.challenger = registry, name, holder, challenger
        if holder == challenger:
            super().__init__(f"{registry} {name!r} is registered twice by {holder!r}; give one of them another name")
        else:
            super().__init__(f"{registry} {name!r} is already registered by {holder!r}, so {challenger!r} may not")


class EntryGoneError(KernelError, LookupError):
    """A value was put into an entry that is no longer registered."""


class EventModeError(KernelError, TypeError):
    """An event was used in another mode than the one it is declared in, or with a listener of the wrong colour."""


class NextCalledTwiceError(KernelError):
    """A waterfall listener called `next()` a second time; `.listener` names it."""

    def __init__(self, event: str, listener: str) -> None:
        self.event, self.listener = event, listener
        super().__init__(f"listener {listener} of {event!r} called next() twice; keep the first answer instead")


class UnscopedEventError(KernelError):
    """A scoped listener was registered on an event without a subject; it could never be called."""


class WrongTaskError(KernelError):
    """A call that only the plugin's own body may make came from elsewhere."""


class CommitRefusedError(KernelError):
    """A stage was not published; `.reasons` says why, one sentence each. The running tree is untouched."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("nothing was committed: " + "; ".join(self.reasons))


class LeaseEndedError(KernelError):
    """A leased view was read after its `with` block ended."""


class UpdateRefusedError(KernelError):
    """An update was asked of a fiber that has ended, or that ended while the update was prepared."""


class FiberFailure(KernelError):
    """Base of what the kernel records as a plugin's failure; `.fiber` is the plugin's row path."""

    def __init__(self, fiber: str, message: str) -> None:
        self.fiber = fiber
        super().__init__(message)


class LoadTimeoutError(FiberFailure):
    """A body did not finish opening within its deadline, or was no longer wanted while it opened."""


class UnloadTimeoutError(FiberFailure):
    """The cleanups of a plugin, or its code after the `yield`, did not finish within their deadline."""


class AbandonedError(FiberFailure):
    """A body or cleanup ignored its cancellation; its task was left behind and is shown by name."""


class StrayCancellationError(FiberFailure):
    """A cancellation reached a plugin although no scope of ours asked for it."""


class PluginExitError(FiberFailure):
    """A plugin called `sys.exit`; the process goes on without it."""


class KeeperLostError(FiberFailure):
    """Shared state that a fiber held has failed; the fiber re-opens to ask for it anew."""


class Aborted(KernelError):
    """An operation was told to stop; `.cause` is the first cause given."""

    def __init__(self, cause: object) -> None:
        self.cause = cause
        super().__init__(f"aborted: {cause}")


def describe(error: BaseException) -> str:
    """`Type: message` on one line, for logs and pictures; a validation error as `field: what is wrong`."""
    if isinstance(error, ValidationError):
        found = [f"{'.'.join(map(str, e['loc'])) or error.title}: {e['msg']}" for e in error.errors(include_url=False)]
        text = "; ".join(found)
    else:
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def leaves(error: BaseException) -> list[BaseException]:
    """What was raised, one by one, when it comes out of task groups; an exception that is no group is its only leaf."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]
