"""What `make run` shows until the daemon exists: a tree of plugins, a provider replaced under a running consumer, a
failing plugin contained, and a clean end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import structlog

from dshd.kernel.context import Context
from dshd.kernel.inspect import FiberPicture, picture
from dshd.kernel.keys import ServiceKey
from dshd.kernel.plugin import Config, plugin
from dshd.kernel.runtime import open_kernel

GREETING = ServiceKey[str]("greeting")


class Words(Config):
    words: str = "hello"
    """What to say."""


@plugin("greeting", config=Words, provides=[GREETING])
async def greeting(ctx: Context, config: Words) -> AsyncIterator[None]:
    ctx.provide(GREETING, config.words)
    yield
    print(f"    (the greeting {config.words!r} has closed)")


@plugin("speaker", inject=[GREETING])
async def speaker(ctx: Context, config: Config) -> None:
    async def speak() -> None:
        for number in range(1, 7):
            print(f"    speaker: {ctx[GREETING]} {number}")
            await anyio.sleep(0.1)

    ctx.spawn(speak)


@plugin("listener", inject=[ServiceKey[object]("microphone")])
async def listener(ctx: Context, config: Config) -> None:
    pass


@plugin("clumsy")
async def clumsy(ctx: Context, config: Config) -> None:
    async def stumble() -> None:
        await anyio.sleep(0.25)
        raise RuntimeError("I stumbled")

    ctx.spawn(stumble)


def draw(fibers: tuple[FiberPicture, ...], indent: str = "    ") -> None:
    for fiber in fibers:
        why = f"  ({fiber.reason})" if fiber.reason else ""
        print(f"{indent}{fiber.path:<10} {fiber.state.value}{why}")
        for effect in fiber.effects:
            print(f"{indent}  · {effect.label}")
        draw(fiber.children, indent + "    ")


async def show() -> None:
    async with open_kernel() as root:
        print("Four plugins are mounted; one of them waits for a service nobody provides:")
        old = root.plugin(greeting)
        for body in (speaker, listener, clumsy):
            root.plugin(body)
        await anyio.sleep(0.05)
        draw(picture(root).fibers)
        await anyio.sleep(0.1)
        print("The greeting is replaced under the speaker, which is not restarted and misses nothing:")
        await old.update({"words": "good morning"})
        await anyio.sleep(0.25)
        print("One plugin has failed; the kernel contained it and will open it again:")
        draw(picture(root).fibers)
        await anyio.sleep(0.25)
        print("The end: everything is undone, last first.")


def main() -> None:
    # The demonstration prints; a plugin's traceback would only hide what it shows.
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.ReturnLoggerFactory()
    )
    anyio.run(show)


if __name__ == "__main__":
    main()
