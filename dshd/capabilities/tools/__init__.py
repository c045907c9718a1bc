"""Tools: what an agent can do, defined by plugins and run through one policy pipeline.

call        one call on its way through the pipeline, and the decisions about it
outcome     what comes of a call
definition  what every tool is
typed       definitions out of typed functions: `parameters` reads annotations, `docstring` docstrings,
            `schema` makes the JSON Schema, `problems` words for what does not fit it
arguments   what the model is told of arguments that do not fit
restrict    which inherited tools a scope may see
service     `ctx[TOOLS]` and its events
"""

from __future__ import annotations

from .arguments import InvalidArgumentsError as InvalidArgumentsError
from .arguments import Problem as Problem
from .call import Allow as Allow
from .call import Ask as Ask
from .call import Denial as Denial
from .call import Deny as Deny
from .call import PostDecision as PostDecision
from .call import PreDecision as PreDecision
from .call import ToolCall as ToolCall
from .definition import Check as Check
from .definition import Classify as Classify
from .definition import ExecutionMode as ExecutionMode
from .definition import ToolDefinition as ToolDefinition
from .definition import ToolView as ToolView
from .outcome import ToolCode as ToolCode
from .outcome import ToolFailure as ToolFailure
from .outcome import ToolOutcome as ToolOutcome
from .outcome import ToolSuccess as ToolSuccess
from .restrict import Restriction as Restriction
from .restrict import permitted as permitted
from .service import GUARD as GUARD
from .service import POST_EXECUTE as POST_EXECUTE
from .service import PRE_EXECUTE as PRE_EXECUTE
from .service import RESTRICTIONS as RESTRICTIONS
from .service import TOOL_DEFINITIONS as TOOL_DEFINITIONS
from .service import TOOL_EXECUTE as TOOL_EXECUTE
from .service import TOOL_RESULT as TOOL_RESULT
from .service import TOOLS as TOOLS
from .service import TOOLS_CHANGED as TOOLS_CHANGED
from .service import AfterExecution as AfterExecution
from .service import Tools as Tools
from .typed import ToolError as ToolError
from .typed import tool as tool
