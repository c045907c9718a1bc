"""The Python in the documents runs, and prints what they say it prints.

Every ```python block is run by itself in a process of its own and must end with status 0. A ```text block after it,
with nothing but empty lines between, is its output. A block whose first line is `# continues` is run after the blocks
before it, back to one without that line, and only its own output is compared. One whose first line is a name such as
`# count.py` is that file, and lies beside every example of its page; `test_*.py` is run by pytest.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dshd import Bail, Emit, Waterfall
from dshd.kernel import internal

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/kernel.md", "docs/plugins.md", "docs/scripted.md")
FILE = re.compile(r"# (\w+\.py)")
CONTINUES = "# continues"
MARK = "--- the block itself begins here ---"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, its lines, and the number of the first of them in the document."""

    language: str
    lines: tuple[str, ...]
    number: int
    adjacent: bool
    """Whether only empty lines stand between the block before and this one."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One program, padded so that a traceback has the line numbers of the document, and what it must print."""

    name: str
    program: str
    output: str | None
    file: str = "example.py"
    beside: Mapping[str, str] = field(default_factory=dict)
    """The files of its page."""


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    language: str | None = None
    begun, adjacent = 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if language is None and line.startswith("```"):
            language, begun = line.removeprefix("```").strip(), number
        elif language is not None and line == "```":
            body = tuple(lines[begun : number - 1])
            found.append(Block(language=language, lines=body, number=begun + 1, adjacent=adjacent))
            language, adjacent = None, True
        elif language is None and line.strip():
            adjacent = False
    if language is not None:
        raise ValueError(f"the block that begins in line {begun} has no end")
    return found


def named(block: Block) -> str | None:
    """The file that a block is."""
    match = FILE.fullmatch(block.lines[0]) if block.language == "python" and block.lines else None
    return None if match is None else match[1]


def examples(document: str, text: str) -> list[Example]:
    found: list[Example] = []
    chain: list[Block] = []
    every = blocks(text)
    files = {file: "\n".join(block.lines) + "\n" for block in every if (file := named(block)) is not None}
    for block, following in zip(every, [*every[1:], None], strict=True):
        if block.language != "python":
            continue
        continued = block.lines[:1] == (CONTINUES,)
        if continued and not chain:
            raise ValueError(f"{document}:{block.number} continues nothing")
        chain = [*chain, block] if continued else [block]
        program: list[str] = []
        for part in chain:
            program += [""] * (part.number - 1 - len(program))
            if part is block and continued:
                program[-1] = f"print({MARK!r})"
            program += part.lines
        answered = following is not None and following.language == "text" and following.adjacent
        output = "".join(f"{line}\n" for line in following.lines) if following is not None and answered else None
        name, whole = f"{document}:{block.number}", "\n".join(program) + "\n"
        file = named(block) or "example.py"
        found.append(Example(name=name, program=whole, output=output, file=file, beside=files))
    return found


def run(example: Example, directory: Path) -> str:
    """What the example prints. Warnings are errors in it, as they are in tests."""
    for name, text in {**example.beside, example.file: example.program}.items():
        (directory / name).write_text(text, encoding="utf-8")
    tested = ["-m", "pytest", "-q", "-W", "error"] if example.file.startswith("test_") else []
    command = [sys.executable, "-W", "error", "-X", "utf8", *tested, example.file]
    done = subprocess.run(command, cwd=directory, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, f"{example.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout.rpartition(f"{MARK}\n")[2]


EXAMPLES = [
    example for document in DOCUMENTS for example in examples(document, (ROOT / document).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_runs_and_prints_what_the_document_says(example: Example, tmp_path: Path) -> None:
    printed = run(example, tmp_path)
    if example.output is not None:
        assert printed == example.output


def test_the_plugin_in_the_readme_is_the_one_in_the_repository() -> None:
    plugin = (ROOT / "plugins/hello.py").read_text(encoding="utf-8")
    assert f"```python\n{plugin}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_lists_every_file_of_the_kernel_and_every_event_of_its_own() -> None:
    page = (ROOT / "docs/kernel.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "dshd/kernel").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE)) == files
    events = {value.name for value in vars(internal).values() if isinstance(value, (Emit, Bail, Waterfall))}
    assert set(re.findall(r"^\| `(internal/\w+)` \|", page, re.MULTILINE)) == events


def test_the_glossary_lists_every_part_of_the_vocabulary() -> None:
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    parts = {path.stem for path in (ROOT / "dshd/capabilities").iterdir() if not path.name.startswith("_")}
    glossary = page.partition("## The vocabulary")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", glossary, re.MULTILINE)) == parts


def test_every_document_has_examples_and_most_of_those_that_are_no_file_an_output() -> None:
    assert {example.name.partition(":")[0] for example in EXAMPLES} == set(DOCUMENTS)
    scripts = [example for example in EXAMPLES if example.file == "example.py"]
    assert sum(example.output is not None for example in scripts) > len(scripts) / 2


def test_every_file_of_the_page_about_plugins_has_a_test_beside_it() -> None:
    files = {example.file for example in EXAMPLES if example.name.startswith("docs/plugins.md")} - {"example.py"}
    plugins = {file for file in files if not file.startswith("test_") and file != "conftest.py"}
    assert {f"test_{file}" for file in plugins} <= files


# -- the reader of documents finds what it should ----------------------------------------------------------------------

SAMPLE = """\
```python
x = 1
print("first")
```

Prose.

```python
# continues
print(x + 1)
```

```text
2
```

```python
raise SystemExit(3)
```

Prose.

```text
not an output
```
"""


def test_a_block_may_continue_the_one_before_and_only_its_own_output_counts(tmp_path: Path) -> None:
    second = examples("sample.md", SAMPLE)[1]
    assert (second.name, second.output) == ("sample.md:9", "2\n")
    assert run(second, tmp_path) == "2\n"


def test_a_text_block_after_prose_is_no_output_and_a_failing_block_is_named(tmp_path: Path) -> None:
    failing = examples("sample.md", SAMPLE)[2]
    assert failing.output is None
    with pytest.raises(AssertionError, match=r"sample\.md:18 ended with 3"):
        run(failing, tmp_path)


FILES = """\
```python
# one.py
ONE = 1
```

```python
# test_one.py
from one import ONE

def test_one() -> None:
    assert ONE == 2
```
"""


def test_a_block_that_is_a_file_lies_beside_the_others_and_a_test_is_run(tmp_path: Path) -> None:
    one, tested = examples("sample.md", FILES)
    assert (one.file, run(one, tmp_path)) == ("one.py", "")
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        run(tested, tmp_path)


def test_lines_of_a_program_have_the_numbers_of_the_document() -> None:
    program = examples("sample.md", SAMPLE)[1].program.splitlines()
    assert program[SAMPLE.splitlines().index("print(x + 1)")] == "print(x + 1)"


@pytest.mark.parametrize("text", ["```python\nx = 1\n", "```python\n# continues\n```\n"])
def test_a_block_without_end_or_beginning_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no end|continues nothing"):
        examples("sample.md", text)
