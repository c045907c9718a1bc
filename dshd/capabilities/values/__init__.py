"""Values: what a conversation is made of. Immutable, comparable, and with a JSON form that loses nothing.

ids       identifiers as distinct types over `str`
json      JSON as data: checked, frozen, lossless
kinds     open unions: kinds that plugins add, and stored ones nobody knows any more
blocks    content blocks: text, reasoning, tool call, tool result
message   messages with identity and source
"""

from __future__ import annotations

from .blocks import ContentBlock as ContentBlock
from .blocks import ReasoningBlock as ReasoningBlock
from .blocks import TextBlock as TextBlock
from .blocks import ToolCallBlock as ToolCallBlock
from .blocks import ToolResultBlock as ToolResultBlock
from .blocks import block_from_json as block_from_json
from .blocks import text_of as text_of
from .ids import CallId as CallId
from .ids import MessageId as MessageId
from .ids import ReasoningEffortId as ReasoningEffortId
from .ids import SessionId as SessionId
from .ids import call_id as call_id
from .ids import message_id as message_id
from .ids import reasoning_effort_id as reasoning_effort_id
from .ids import session_id as session_id
from .json import EMPTY as EMPTY
from .json import FrozenDict as FrozenDict
from .json import Json as Json
from .json import LossyValueError as LossyValueError
from .json import MalformedValueError as MalformedValueError
from .json import frozen as frozen
from .kinds import BLOCK_KINDS as BLOCK_KINDS
from .kinds import EVENT_KINDS as EVENT_KINDS
from .kinds import FINISH_KINDS as FINISH_KINDS
from .kinds import SOURCE_KINDS as SOURCE_KINDS
from .kinds import TURN_END_KINDS as TURN_END_KINDS
from .kinds import Extension as Extension
from .kinds import Kind as Kind
from .kinds import Kinds as Kinds
from .kinds import UnknownKindError as UnknownKindError
from .message import Catalog as Catalog
from .message import ContextForm as ContextForm
from .message import Instructions as Instructions
from .message import Message as Message
from .message import MessageSource as MessageSource
from .message import ModelSource as ModelSource
from .message import Notice as Notice
from .message import OtherForm as OtherForm
from .message import PluginSource as PluginSource
from .message import Recall as Recall
from .message import Relay as Relay
from .message import Role as Role
from .message import Snapshot as Snapshot
from .message import SnapshotSection as SnapshotSection
from .message import ToolSource as ToolSource
from .message import UserMessage as UserMessage
from .message import UserSource as UserSource
from .message import message_from_json as message_from_json
from .message import source_from_json as source_from_json
from .message import user_message as user_message
from .message import user_message_from_json as user_message_from_json
