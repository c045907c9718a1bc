"""The smallest plugin: it logs a greeting when it opens and a goodbye when it closes."""

from collections.abc import AsyncIterator

from dshd import Config, Context, plugin


class Hello(Config):
    who: str = "world"
    """Whom to greet."""


@plugin("hello", config=Hello)
async def hello(ctx: Context, config: Hello) -> AsyncIterator[None]:
    ctx.log.info("hello", who=config.who)
    yield
    ctx.log.info("goodbye", who=config.who)
