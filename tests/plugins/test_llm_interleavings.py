"""Calls under random change: two hundred scripts of registration, replacement, preparation and streaming at once."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest
from structlog.testing import capture_logs

from dshd import Aborter, Config, Context, Fiber, RegistryChange, plugin
from dshd.capabilities.llm import (
    ADAPTERS_UPDATED,
    LLM,
    ROUTES,
    Aborted,
    AdapterRegistration,
    Failed,
    Finish,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmError,
    ResolvedModel,
    Stop,
    StreamChunk,
    TextDelta,
)
from dshd.capabilities.values import user_message
from dshd.kernel.signal import Signal
from dshd.testing.contracts.llm import consumer
from dshd.testing.kernel import running
from dshd_plugins.llm import llm

pytestmark = pytest.mark.anyio

ROWS = ("alpha", "beta", "gamma")
POOL = [f"extra-{number}" for number in range(5)]
CALLERS = 4
STEPS = 12


class Instance(LlmAdapter):
    """One adapter instance, which says in everything who it is."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.number = len(world.instances)
        self.open = 0
        self.closed = False
        world.instances.append(self)

    async def resolve_model(self, provider: str, model: str, signal: Signal | None) -> ResolvedModel | None:
        await self.world.pause()
        return ResolvedModel(provider=provider, id=model, name=model, description=str(self.number))

    async def stream(self, request: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.open += 1
        try:
            for _ in range(self.world.chance.randrange(4)):
                await self.world.pause()
                if self.closed:
                    raise RuntimeError(f"instance {self.number} was closed under a stream")
                yield TextDelta(0, str(self.number))
            if self.world.chance.random() < 0.2:
                raise LlmError("now and then")
            yield Finish(Stop())
        finally:
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                self.open -= 1


class World:
    """One script: what is mounted, and what is known of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.instances: list[Instance] = []
        self.registered: dict[str, tuple[Instance, AdapterRegistration]] = {}
        self.fibers: dict[str, Fiber] = {}
        self.disposed: set[int] = set()
        """Instances whose row was not replaced but disposed of, which waits for nobody."""
        self.missing: list[str] = []
        """Home routes that were not there when somebody looked."""
        self.calls = self.ended = 0
        self.retired: list[Fiber] = []
        self.running: dict[Aborter, None] = {}
        """What can be told to stop, whether it is being prepared, waits for a chunk or is about to end."""
        self.told = self.owed = 0
        """Change notices that came, and those that there had to be."""

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(3)):
            await anyio.lowlevel.checkpoint()

    def adapter(self, name: str) -> None:
        """A row whose home route has its own name."""

        @plugin(name, inject=[LLM])
        async def row(ctx: Context, config: Config) -> AsyncIterator[None]:
            await self.pause()
            instance = Instance(self, name)
            self.registered[name] = instance, ctx[LLM].register_adapter([name], instance)
            yield
            instance.closed = True

        self.fibers[name] = self.root.plugin(row)

    # -- what may happen

    async def run(self) -> None:
        async with running() as self.root:
            self.fibers["llm"] = self.root.plugin(llm)
            for name in ROWS:
                self.adapter(name)
            for fiber in self.fibers.values():
                await fiber.settled()
            watching = self.root.on(ADAPTERS_UPDATED, self.hear)
            ctx = await consumer(self.root)
            async with anyio.create_task_group() as tasks:
                for _ in range(CALLERS):
                    tasks.start_soon(self.caller, ctx)
                for _ in range(STEPS):
                    await self.change()
                    self.look()
                    await self.pause()
                    if self.running and self.chance.random() < 0.3:
                        self.chance.choice(list(self.running)).abort("enough")
            for fiber in self.fibers.values():
                await fiber.latest.settled()
            for retired in self.retired:
                await retired.closing()
            await watching.dispose()
            assert self.told == self.owed, "a change is told once, also where much comes and goes with it"
            assert self.missing == []
            assert self.ended == self.calls
            assert self.calls > 0
            assert [each.number for each in self.instances if each.open] == []
            assert not self.root.kernel.leases
            for name in ROWS:
                live = [each for each in self.instances if each.name == name and not each.closed]
                assert len(live) == 1, "what was replaced has closed"

    def hear(self, change: RegistryChange) -> None:
        self.told += 1
        self.look()

    @contextmanager
    def one_change(self) -> Iterator[None]:
        """What the block does is one change of the routes, or none."""
        before = list(self.root.registry(ROUTES).items())
        try:
            yield
        finally:
            self.owed += before != list(self.root.registry(ROUTES).items())
            assert self.told == self.owed

    def look(self) -> None:
        """A row that is live has its home route at every moment."""
        there = dict.fromkeys(self.root.registry(ROUTES))
        self.missing += [name for name in ROWS if self.fibers[name].latest.visible and name not in there]

    async def change(self) -> None:
        kind = self.chance.choice(("rows", "rows", "rows", "routes", "routes", "routes", "again"))
        if kind == "rows":
            async with self.root.kernel.stage() as stage:
                chosen = self.chance.sample(("llm", *ROWS), self.chance.randint(1, 3))
                before = dict(self.registered)
                successors = {name: stage.replace(self.fibers[name].latest) for name in chosen}
                await stage.settled()
                await self.pause()
                if self.chance.random() < 0.8:
                    self.retired += [self.fibers[name].latest for name in chosen]
                    with self.one_change():
                        stage.commit()
                    self.fibers |= successors
                else:
                    self.registered = before
        elif kind == "routes":
            name = self.chance.choice(ROWS)
            extra = self.chance.sample(POOL, self.chance.randrange(4))
            try:
                with self.one_change():
                    self.registered[name][1].replace([*extra, name] if self.chance.random() < 0.5 else [name, *extra])
            except LlmError as error:
                if error.code != "DUPLICATE_ADAPTER":
                    raise
        else:
            name = self.chance.choice(ROWS)
            self.disposed.add(self.registered[name][0].number)
            with self.one_change():
                await self.fibers[name].dispose()
            with self.one_change():
                self.adapter(name)
                await self.fibers[name].settled()

    async def caller(self, ctx: Context) -> None:
        for _ in range(STEPS // 2):
            await self.pause()
            aborter = Aborter()
            route = self.chance.choice((*ROWS, *POOL))
            proposal = LlmCallConfig(provider=route, model="m")
            self.calls += 1
            self.running[aborter] = None
            try:
                await self.call(ctx, proposal, aborter)
            except LlmError as error:
                if not aborter.signal.aborted or error.code != "ABORTED":
                    raise
            del self.running[aborter]
            self.ended += 1

    async def call(self, ctx: Context, proposal: LlmCallConfig, aborter: Aborter) -> None:
        async with ctx[LLM].prepare_call(proposal, signal=aborter.signal) as call:
            await self.pause()
            request = call.header().request([user_message("hi")], signal=aborter.signal)
            chunks: list[StreamChunk] = []
            leaves = self.chance.random() < 0.15
            async with call.stream(request) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    if leaves:
                        break
                    await self.pause()
                    if self.chance.random() < 0.1:
                        aborter.abort("enough")
            bound = None if call.model is None else call.model.description
        self.check_answer(chunks, bound, left=leaves)

    def check_answer(self, chunks: list[StreamChunk], bound: str | None, *, left: bool) -> None:
        finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
        said = {chunk.text for chunk in chunks if isinstance(chunk, TextDelta)}
        assert said <= {bound}, "a call streams from the instance it was prepared with"
        if left:
            return
        assert finishes == chunks[-1:], "a stream ends with exactly one finish"
        reason = finishes[0].reason
        if isinstance(reason, Aborted):
            return
        if bound is None:
            assert isinstance(reason, Failed)
            assert reason.failure.code == "NO_ADAPTER"
        elif isinstance(reason, Failed):
            assert reason.failure.message == "now and then" or int(bound) in self.disposed
        else:
            assert reason == Stop()


@pytest.mark.parametrize("hundred", range(2))
async def test_no_call_is_cut_or_mixed_whatever_is_replaced_meanwhile(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        with anyio.fail_after(20):
            try:
                with capture_logs():
                    await World(seed).run()
            except BaseException as exc:
                exc.add_note(f"seed {seed}")
                raise
