"""Sessions: the append-only log of a conversation, what is derived from it, and the service that holds them.

event      the entries of a log, as typed data, and their JSON
boundary   the data of events that bracket others: turns, steps, seeds, compactions
surface    the data of events that make messages, and how they enter the surface
activity   the data of events of an agent at work: chunks, calls, headers, the inbox
admission  what may enter a log
header     what is stored beside a log
history    the surface of a log: the messages a model sees, kept as the log grows
log        `Session`, one log
live       the live sessions of a realm, which survive whoever serves them
recovery   how a log that breaks off is closed
store      `ctx[SESSIONS]`, and the seam of stores that make logs durable
"""

from __future__ import annotations

from .activity import AssistantChunk as AssistantChunk
from .activity import InboxSpliced as InboxSpliced
from .activity import InboxTarget as InboxTarget
from .activity import RequestContext as RequestContext
from .activity import RequestHeader as RequestHeader
from .activity import ToolCalled as ToolCalled
from .boundary import CompactEnd as CompactEnd
from .boundary import CompactStart as CompactStart
from .boundary import CompactSummary as CompactSummary
from .boundary import EndSeed as EndSeed
from .boundary import StepEnd as StepEnd
from .boundary import StepStart as StepStart
from .boundary import TurnEnd as TurnEnd
from .boundary import TurnEndReason as TurnEndReason
from .boundary import TurnStart as TurnStart
from .event import EventData as EventData
from .event import KnownKinds as KnownKinds
from .event import LogData as LogData
from .event import SessionEvent as SessionEvent
from .event import event_from_json as event_from_json
from .header import SessionHeader as SessionHeader
from .history import derive as derive
from .log import Session as Session
from .log import SessionError as SessionError
from .store import SESSION_CREATED as SESSION_CREATED
from .store import SESSION_EVENT as SESSION_EVENT
from .store import SESSION_FLUSH as SESSION_FLUSH
from .store import SESSION_PERSISTENCE as SESSION_PERSISTENCE
from .store import SESSIONS as SESSIONS
from .store import Detach as Detach
from .store import SessionAppended as SessionAppended
from .store import SessionPersistence as SessionPersistence
from .store import Sessions as Sessions
from .store import StoredSession as StoredSession
from .surface import AssistantMessage as AssistantMessage
from .surface import Replace as Replace
from .surface import SurfaceData as SurfaceData
from .surface import SurfaceOp as SurfaceOp
from .surface import ToolError as ToolError
from .surface import ToolResult as ToolResult
from .surface import UserMessageAdded as UserMessageAdded
