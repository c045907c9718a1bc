"""The YAML in the documents is valid, or is refused as it says.

Each ```yaml block of these pages is a whole file, judged by `dshd check` as a process. One whose first line is
`# refused: E0401` must be refused, with that code first. Python blocks that are files lie beside it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("docs/configuration.md", "docs/plugins.md", "docs/reload.md", "docs/scripted.md")
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
REFUSED = re.compile(r"# refused: ([EW]\d{4})\n")

MINE = """\
from dshd import Config, Context, plugin


class Mine(Config):
    every: float = 1


@plugin("mine", config=Mine)
async def mine(ctx: Context, config: Mine) -> None:
    pass
"""


def examples() -> list[tuple[str, str, dict[str, str]]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        files = dict(FILE.findall(text))
        for match in BLOCK.finditer(text):
            found.append((f"{page}:{text.count(chr(10), 0, match.start()) + 2}", match.group(1), files))
    return found


@pytest.mark.parametrize(("text", "files"), [pytest.param(text, files, id=name) for name, text, files in examples()])
def test_an_example_is_judged_as_the_page_says(text: str, files: dict[str, str], tmp_path: Path) -> None:
    for name, source in files.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(MINE)
    file = tmp_path / "dshd.yaml"
    file.write_text(text, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DSHD_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-m", "dshd", "check", "--json", "--no-credentials", "--config", str(file),
         "--state-dir", str(tmp_path / "state")],
        env=clean, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    issues = [issue["code"] for issue in json.loads(done.stdout)["issues"]]
    refused = REFUSED.match(text)
    if refused is None:
        assert (done.returncode, issues) == (0, []), done.stdout
    else:
        assert done.returncode == 3
        assert issues[0] == refused.group(1), done.stdout


def test_the_pages_have_examples_of_both_kinds() -> None:
    wrong = [text for _, text, _ in examples() if REFUSED.match(text)]
    assert 5 <= len(wrong) < len(examples()) - 10


def test_the_generated_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, "run: python docs/generate.py"
