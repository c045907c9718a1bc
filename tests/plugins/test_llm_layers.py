"""What `intercept` lays over model calls, in files: `dshd check` refuses what no call could follow."""

from pathlib import Path

import anyio
import pytest

from dshd import Context
from dshd.capabilities.llm import LLM, LlmCallConfig
from dshd.loader.sources import read
from dshd.loader.spec import Desired
from dshd.testing.contracts.llm import row
from dshd.testing.loader import Site

pytestmark = pytest.mark.anyio

HERE = "tests.plugins.test_llm_layers"
seen: list[LlmCallConfig] = []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    seen.clear()
    return Site(tmp_path)


async def call(ctx: Context) -> None:
    async with ctx[LLM].prepare_call(LlmCallConfig(provider="ghost", model="m", max_tokens=500)) as prepared:
        seen.append(prepared.config)


caller = row("caller", lambda ctx: ctx.spawn(call, ctx))


def desired_of(site: Site, text: str) -> Desired:
    """What a configuration describes, with everything that is wrong about it."""
    site.write(text)
    return read(site.sources()).desired


def test_a_bad_layer_is_refused_with_its_place(site: Site) -> None:
    desired = desired_of(
        site,
        """\
        plugins:
          llm: {}
          cheap:
            intercept:
              llm:
                max_tokens: many
                modle: small
                temperature: .nan
            group:
              hello: {intercept: {llm: {stop: END, effort: low}}}
              again: {use: hello}
        """,
    )
    assert [(issue.code, issue.line, issue.col) for issue in desired.issues] == [
        ("E0510", 6, 9), ("E0510", 7, 9), ("E0510", 8, 9), ("E0510", 10, 33),
    ]  # fmt: skip
    assert [issue.message for issue in desired.issues] == [
        "intercept.llm.max_tokens: expected a whole number above 0",
        "intercept.llm.modle: a model call has no such setting; did you mean 'model'?",
        "intercept.llm.temperature: expected a number",
        "intercept.llm.stop: expected a list of texts",
    ]


def test_a_good_layer_is_not_refused_nor_one_over_another_service(site: Site) -> None:
    site.environ["CAP"] = "100"
    layer = "{route: a, model: b, effort: c, temperature: 1, max_tokens: '${env:CAP}', stop: [END], other: null}"
    wrong = desired_of(site, f"plugins: {{llm: {{}}, hello: {{intercept: {{llm: {layer}}}}}}}")
    assert [issue.message.partition(":")[0] for issue in wrong.issues] == ["intercept.llm.other"]
    fine = layer.replace(", other: null", "")
    assert not list(
        desired_of(site, f"plugins: {{llm: {{}}, hello: {{intercept: {{llm: {fine}, x: {{a: 1}}}}}}}}").issues
    )


async def test_a_layer_from_a_file_is_laid_over_the_calls_of_its_rows(site: Site) -> None:
    site.environ["CAP"] = "100"
    site.write(
        f"""\
        plugins:
          llm: {{}}
          cheap:
            intercept: {{llm: {{max_tokens: "${{env:CAP}}", temperature: 0}}}}
            group:
              caller: {{use: "{HERE}:caller", intercept: {{llm: {{max_tokens: 300}}}}}}
        """
    )
    with anyio.fail_after(20):
        async with site.running():
            await site.until(lambda: seen)
    assert seen == [LlmCallConfig(provider="ghost", model="m", max_tokens=100, temperature=0)]
