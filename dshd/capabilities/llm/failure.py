"""What goes wrong with a model call: a serialisable value in streams and logs, an exception at the service's door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dshd.capabilities.values.json import Json, MalformedValueError, make_whole, member, optional
from dshd.kernel.errors import DshdError

from .counts import check_optional_count


class FailureCode:
    """The codes the harness itself uses or understands. Adapters may add stable ones of their own."""

    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    EMPTY_RESPONSE = "EMPTY_RESPONSE"
    TRUNCATED = "TRUNCATED"
    TIMEOUT = "TIMEOUT"
    ABORTED = "ABORTED"
    RATE_LIMITED = "RATE_LIMITED"
    AUTH = "AUTH"
    INVALID_REQUEST = "INVALID_REQUEST"
    PROVIDER = "PROVIDER_ERROR"
    """Anything an adapter raised that says no more about itself."""
    NO_ADAPTER = "NO_ADAPTER"
    DUPLICATE_ADAPTER = "DUPLICATE_ADAPTER"
    INVALID_REGISTRATION = "INVALID_REGISTRATION"
    REGISTRATION_DISPOSED = "REGISTRATION_DISPOSED"
    INVALID_PREPARED_CALL = "INVALID_PREPARED_CALL"
    INVALID_CALL_CONFIG = "INVALID_CALL_CONFIG"
    UNSUPPORTED_EFFORT = "UNSUPPORTED_EFFORT"
    NO_DISCOVERY = "NO_DISCOVERY"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmFailure:
    """Facts about a failed call, as the last adapter boundary has normalised them.

    Raises `MalformedValueError` for what could not be logged: a failure is serialisable from its making on.
    """

    message: str
    code: str
    status: int | None = None
    """The HTTP status, if there was one."""
    provider_retry_after_ms: int | None = None
    """How long the provider asks to wait."""
    request_id: str | None = None
    """The provider's name for the request, for its support."""

    def __post_init__(self) -> None:
        texts: tuple[object, ...] = (self.message, self.code, self.request_id or "")
        if not all(isinstance(text, str) for text in texts) or not self.code:
            raise MalformedValueError(f"message, code and request id of a failure are text, not {texts!r}")
        make_whole(self, "message", "code", "request_id")
        check_optional_count("the status of a failure", self.status)
        check_optional_count("provider_retry_after_ms", self.provider_retry_after_ms)

    def to_json(self) -> dict[str, Json]:
        members: dict[str, Any] = {
            "message": self.message, "code": self.code, "status": self.status,
            "provider_retry_after_ms": self.provider_retry_after_ms, "request_id": self.request_id,
        }  # fmt: skip
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def from_json(cls, data: Json) -> LlmFailure:
        """What `to_json` gave. Raises `MalformedValueError`."""
        what = "a model failure"
        return cls(
            message=member(data, "message", str, what),
            code=member(data, "code", str, what),
            status=optional(data, "status", int, what),
            provider_retry_after_ms=optional(data, "provider_retry_after_ms", int, what),
            request_id=optional(data, "request_id", str, what),
        )


class LlmError(DshdError):
    """A call of the service that cannot be carried out, or what an adapter raises to say what went wrong.

    Raised by an adapter it becomes a terminal finish with exactly this failure.
    """

    def __init__(self, failure: LlmFailure | str, code: str = FailureCode.PROVIDER) -> None:
        self.failure = failure if isinstance(failure, LlmFailure) else LlmFailure(message=failure, code=code)
        super().__init__(self.failure.message)

    @property
    def code(self) -> str:
        return self.failure.code
