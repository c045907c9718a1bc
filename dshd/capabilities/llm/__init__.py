"""Model calls: what is asked, what streams back, who answers, and the service in between.

counts     token counts and caps: whole numbers every JSON reader reads alike
failure    what went wrong with a call, as a value
stream     the chunks an adapter emits, why a response stopped, what it used
assembler  chunks back into blocks and a message
request    one model request, the call config, and the logged header
catalog    providers and models, as adapters describe them; retry policies
adapter    what an adapter is
service    `ctx[LLM]`: registration, catalogs, preparation, streaming
"""

from __future__ import annotations

from .adapter import LlmAdapter as LlmAdapter
from .assembler import Assembled as Assembled
from .assembler import BlockAssembler as BlockAssembler
from .catalog import ConfigurableProvider as ConfigurableProvider
from .catalog import DiscoveredModel as DiscoveredModel
from .catalog import ModelContext as ModelContext
from .catalog import ModelDiscoveryRequest as ModelDiscoveryRequest
from .catalog import ModelInfo as ModelInfo
from .catalog import ModelReasoning as ModelReasoning
from .catalog import ProviderInfo as ProviderInfo
from .catalog import ReasoningEffort as ReasoningEffort
from .catalog import ResolvedModel as ResolvedModel
from .catalog import RetryPolicy as RetryPolicy
from .failure import FailureCode as FailureCode
from .failure import LlmError as LlmError
from .failure import LlmFailure as LlmFailure
from .request import EpochHeader as EpochHeader
from .request import GenerateOptions as GenerateOptions
from .request import LlmCallConfig as LlmCallConfig
from .request import Purpose as Purpose
from .request import ToolSchema as ToolSchema
from .service import ADAPTERS_UPDATED as ADAPTERS_UPDATED
from .service import CONFIGURABLE_PROVIDERS as CONFIGURABLE_PROVIDERS
from .service import LLM as LLM
from .service import LLM_STREAM as LLM_STREAM
from .service import ROUTES as ROUTES
from .service import AdapterRegistration as AdapterRegistration
from .service import ChunkStream as ChunkStream
from .service import ConfigurableOffer as ConfigurableOffer
from .service import DirectoryEntry as DirectoryEntry
from .service import Llm as Llm
from .service import PreparedCall as PreparedCall
from .service import Route as Route
from .stream import Aborted as Aborted
from .stream import BlockEnd as BlockEnd
from .stream import BlockStart as BlockStart
from .stream import Failed as Failed
from .stream import Finish as Finish
from .stream import FinishReason as FinishReason
from .stream import MaxTokens as MaxTokens
from .stream import ReasoningDelta as ReasoningDelta
from .stream import ReplayEnvelope as ReplayEnvelope
from .stream import Stop as Stop
from .stream import StreamChunk as StreamChunk
from .stream import TextDelta as TextDelta
from .stream import TokenUsage as TokenUsage
from .stream import ToolCallDelta as ToolCallDelta
from .stream import ToolCalls as ToolCalls
from .stream import UsageReport as UsageReport
from .stream import chunk_from_json as chunk_from_json
