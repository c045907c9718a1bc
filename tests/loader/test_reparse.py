"""A file read again gives exactly what it would give read for the first time; only quicker."""

import random
from typing import Any

import pytest

from dshd.loader.document import Document, parse
from dshd.loader.issues import Issues
from dshd.loader.node import Node
from dshd.loader.reparse import Parses

BLOCKS = """\
# a comment
bundles: [core]
plugins:
  one:
    use: hello   # trailing
    config:
      who: "some
        body"
      text: |
        first
          second

  # between
  two: {use: hello, config: {who: [a, b, 'c']}}
  three:
    use: hello
    config: {who:
      flow over lines, n: 1}
  plain: several
    words
  folded: >-
    some
    text

agents:
  ops:
    persona: |+
      keeps

      its end

  last: {}
"""
FLOW = "plugins: {\n  one: 1,\n  two: {a: b},\n  three: [1,\n    2]\n}\nagents:\n  a: 1\n"
ANCHORS = "plugins:\n  one: &x {a: 1}\n  two: *x\n  three:\n    <<: *x\n    b: 2\n  four: 4\n"
EXPLICIT = "plugins:\n  ? one\n  : 1\n  two: 2\n  ? three\n  : {a: 1}\n"
SCALAR = "plugins:\n  one: 1\n  two: 2\nagents: none\nsettings:\n- a\n- b\n"
ROOTS = [
    BLOCKS,
    FLOW,
    ANCHORS,
    EXPLICIT,
    SCALAR,
    "{plugins: {a: 1}}\n",
    "",
    "plugins:\n",
    "\ufeffplugins:\n  a: 1\n  b: 2\n",
]

PIECES = [
    "", " ", "  ", "    ", "\t", "x", "1", "true", "null", "~", ":", ": ", "#", " # c", "'", '"', "{", "}", "[", "]",
    ",", "|", ">", "|2", "-", "- ", "&x ", "*x", "<<: ", "? ", "!t ", "%", "---", "...", "@", "`", "two: 2", "  two: 3",
    "    who: other", "plugins:", "\\", "\u2028", "é", "\x00", "${env:X}", "a: b: c",
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Node):
        return (a.mark, a.keys, list(a.keys), a.quoted) == (b.mark, b.keys, list(b.keys), b.quoted) and same(
            a.value, b.value
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def check(parses: Parses, text: str) -> Document:
    """Read `text` with what is remembered and without, and compare."""
    again, fresh = Issues(), Issues()
    found = parses.parse("f.yaml", text.encode(), again)
    wanted = parse("f.yaml", text.encode(), fresh)
    assert list(again) == list(fresh), text
    assert (found.ok, found.text) == (wanted.ok, wanted.text), text
    assert same(found.root, wanted.root), text
    assert found.anchored == wanted.anchored
    assert found.count >= wanted.count
    return found


def edited(rng: random.Random, text: str) -> str:
    """The text with one to three small changes, most of which keep the number of lines."""
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        number = rng.randrange(len(lines))
        line = lines[number]
        at = rng.randint(0, len(line))
        match rng.randrange(8):
            case 0:
                lines[number] = line[:at] + rng.choice(PIECES) + line[at:]
            case 1:
                lines[number] = rng.choice(PIECES)
            case 2:
                lines[number] = line[:at] + line[at + rng.randint(1, 3) :]
            case 3:
                lines[number] = lines[rng.randrange(len(lines))]
            case 4:
                lines[number] = " " * rng.randint(0, 6) + line.lstrip()
            case 5:
                other = rng.randrange(len(lines))
                lines[number], lines[other] = lines[other], line
            case 6:
                lines.insert(number, rng.choice(PIECES))
            case _:
                lines[number] = line + rng.choice(PIECES)
        text = "\n".join(lines)
    return text


@pytest.mark.parametrize("root", ROOTS)
def test_any_chain_of_edits_gives_what_reading_each_text_anew_gives(root: str) -> None:
    rng = random.Random(f"reparse {root}")
    for _ in range(60):
        parses, text = Parses(), root
        check(parses, text)
        for _ in range(12):
            text = edited(rng, text)
            if not check(parses, text).ok:
                text = root
                check(parses, text)


def test_an_edit_inside_one_entry_leaves_every_other_node_as_it_is() -> None:
    parses = Parses()
    before = check(parses, BLOCKS).root
    after = check(parses, BLOCKS.replace("[a, b, 'c']", "[a, b, d]")).root
    assert before is not None
    assert after is not None
    old, new = before.mapping(), after.mapping()
    assert new["agents"] is old["agents"]
    assert [key for key, node in new["plugins"].mapping().items() if node is not old["plugins"].mapping()[key]] == [
        "two"
    ]


def test_a_file_that_did_not_change_is_not_parsed_again() -> None:
    parses = Parses()
    assert check(parses, BLOCKS) is check(parses, BLOCKS)


def test_what_the_last_reading_found_wrong_is_told_again_while_it_is_wrong() -> None:
    parses = Parses()
    check(parses, BLOCKS)
    for text in (BLOCKS.replace("hello  ", "*hello"), BLOCKS.replace("hello  ", "*hello"), BLOCKS):
        check(parses, text)
