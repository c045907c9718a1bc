"""A model that needs no key: its answers come from rules and scripts in YAML, or repeat what was said.

[scripted.md](scripted.md) explains the fields, with examples.
"""

from __future__ import annotations

from dshd import Context, plugin
from dshd.capabilities.llm import LLM

from .adapter import ScriptedAdapter
from .config import LlmScripted
from .memory import remembered
from .routes import Route


@plugin("llm_scripted", config=LlmScripted, inject=[LLM])
async def llm_scripted(ctx: Context, config: LlmScripted) -> None:
    row = ctx.fiber.path.rpartition("/")[2]
    routes = {row: Route()} if config.routes is None else config.routes
    adapter = ScriptedAdapter(routes, config, await remembered(ctx))
    ctx[LLM].register_adapter(list(routes), adapter)
