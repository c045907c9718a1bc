"""What is on offer, and to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dshd.capabilities.tools import (
    TOOLS,
    TOOLS_CHANGED,
    ToolCode,
    tool,
)
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.errors import EntryConflictError
from dshd.testing.contracts.expect import same

from .rows import Mounting, a_call, around, echo, failed, offering, results, succeeded, tools_of


class OfferContract(Mounting):
    """What is on offer, and to whom."""

    # -- what is on offer

    async def test_a_tool_is_there_for_as_long_as_the_row_that_registered_it(self) -> None:
        async with self.with_rows() as root:
            changes: list[object] = []
            root.on(TOOLS_CHANGED, changes.append)
            fiber = root.plugin(offering("row", echo))
            await fiber.settled()
            service = tools_of(root)
            same([schema.name for schema in service.schemas()], ["echo"])
            same(service.get("echo"), echo)
            await fiber.dispose()
            same((tools_of(root).schemas(), tools_of(root).get("echo")), ([], None))
            same(len(changes), 2)

    async def test_a_name_is_given_once_and_a_scope_may_shadow_it(self) -> None:
        agent = Scope("agent")
        own = replace(echo, description="mine")
        async with self.with_rows(offering("first", echo), offering("own", own, scope=agent)) as root:
            second = root.plugin(offering("second", echo))
            try:
                await second.settled()
            except EntryConflictError:
                pass
            else:
                raise AssertionError("two tools have one name")
            same([schema.description for schema in tools_of(root, agent).schemas()], ["mine"])
            same([schema.description for schema in tools_of(root).schemas()], [echo.description])

    async def test_a_scope_sees_its_own_tools_and_of_the_others_none_unless_one_is_named(self) -> None:
        agent = Scope("agent")
        own, other = replace(echo, name="own"), replace(echo, name="other")
        async with self.with_rows(offering("row", echo, other), offering("mine", own, scope=agent)) as root:
            service = tools_of(root, agent)

            def names() -> list[str]:
                return sorted(schema.name for schema in service.schemas())

            same(names(), ["own"])
            allowed = service.restrict(allow=["echo", "o*"])
            same(names(), ["echo", "other", "own"])
            service.restrict(allow=["*"], deny=["oth*"])
            same(names(), ["echo", "own"])
            await allowed.dispose()
            same(names(), ["echo", "own"])
            same(sorted(schema.name for schema in tools_of(root).schemas()), ["echo", "other"])

    async def test_a_tool_that_is_hidden_is_not_told_from_one_that_does_not_exist(self) -> None:
        agent = Scope("agent")
        async with self.with_rows(offering("row", echo)) as root:
            service = tools_of(root, agent)
            told = results(root)
            hidden = failed(await service.execute(a_call("echo")), ToolCode.UNKNOWN_TOOL, "'echo'")
            same(service.get("echo"), None)
        async with self.with_rows() as root:
            unknown = failed(await tools_of(root, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
        same(hidden, unknown)
        same([each.outcome for each in told], [hidden])

    async def test_a_denial_that_comes_during_a_lease_binds_at_once_and_a_removed_one_still(self) -> None:
        agent = Scope("agent")

        def deny(ctx: Context) -> None:
            ctx.scoped(agent)[TOOLS].restrict(deny=["echo"])

        allow = around("allow", lambda ctx: ctx.scoped(agent)[TOOLS].restrict(allow=["*"]))
        async with self.with_rows(offering("row", echo), allow) as root:
            with root.leased("step") as view:
                succeeded(await tools_of(view, agent).execute(a_call("echo")))
                denying = root.plugin(around("deny", deny))
                await denying.settled()
                failed(await tools_of(view, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
            with root.leased("step") as view:
                async with root.kernel.stage() as stage:
                    stage.retire(denying)
                    stage.commit()
                failed(await tools_of(view, agent).execute(a_call("echo")), ToolCode.UNKNOWN_TOOL)
                succeeded(await tools_of(root, agent).execute(a_call("echo")))

    async def test_a_call_may_run_beside_others_only_if_its_tool_says_so(self) -> None:
        def picky(arguments: Any) -> Any:
            if "mode" not in arguments:
                raise KeyError("mode")
            return arguments["mode"]

        @tool(mode=picky)
        async def asked(mode: str) -> None:
            """Asked."""

        @tool(mode="parallel")
        async def free() -> None:
            """Free."""

        async with self.with_rows(offering("row", asked, free, echo)) as root:
            classify = tools_of(root).classify
            same(classify(a_call("asked", {"mode": "parallel"})), "parallel")
            same(classify(a_call("free")), "parallel")
            calls = [("asked", {"mode": "exclusive"}), ("asked", {"mode": "x"}), ("asked", {}), ("asked", "no JSON")]
            for name, arguments in [*calls, ("echo", {}), ("nowhere", {})]:
                same(classify(a_call(name, arguments)), "exclusive")
