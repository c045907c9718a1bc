"""What must and what must not type-check, asked of mypy with the project's own strict settings."""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXPECTED = re.compile(r"# E: (?P<codes>[a-z, -]+)$")
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$")


def errors_of(path: Path) -> set[tuple[int, str]]:
    """What mypy says about one file, as line and error code."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary", "--no-pretty",
         "--hide-error-context", str(path.relative_to(ROOT))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = set()
    for text in done.stdout.splitlines():
        match = ERROR.match(text)
        if match is not None:
            assert (ROOT / match["file"]) == path, text
            found.add((int(match["line"]), match["code"]))
        else:
            assert ": note: " in text, text
    return found


def test_right_uses_type_check() -> None:
    assert errors_of(HERE / "typing" / "must_compile.py") == set()


def test_wrong_uses_do_not_type_check() -> None:
    path = HERE / "typing" / "must_not_compile.py"
    expected = {
        (number, code)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line)) is not None
        for code in match["codes"].split(", ")
    }
    assert len(expected) > 50
    assert errors_of(path) == expected
