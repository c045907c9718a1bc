"""`docs/coverage.md` names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?P<id>[A-Z]{4}-\d\d) \|.*\|(?P<done>[^|]*)\|$")
CLAIM = re.compile(r"`(?P<file>(?:contracts/|test_)\w+)`: (?P<names>[^;]+)")


def claims() -> list[tuple[str, str, str]]:
    """(row, test file, beginning of a test's name) for every test the page names."""
    found = []
    for line in (ROOT / "docs" / "coverage.md").read_text("utf-8").splitlines():
        row = ROW.match(line)
        for claim in CLAIM.finditer(row["done"]) if row else ():
            assert row is not None
            for name in claim["names"].split(","):
                found.append((row["id"], claim["file"], name.strip().replace(" ", "_")))
    return found


def test_every_test_named_in_the_coverage_page_exists() -> None:
    known: dict[str, set[str]] = {}
    suites = ROOT / "dshd" / "testing" / "contracts"
    for path in [*ROOT.glob("tests/**/test_*.py"), *suites.rglob("*.py")]:
        inside = path.is_relative_to(suites)
        name = f"contracts/{path.relative_to(suites).with_suffix('').parts[0]}" if inside else path.stem
        known.setdefault(name, set()).update(re.findall(r"def test_(\w+)", path.read_text("utf-8")))
    named = claims()
    assert len(named) > 40
    missing = [claim for claim in named if not any(test.startswith(claim[2]) for test in known.get(claim[1], ()))]
    assert missing == []
