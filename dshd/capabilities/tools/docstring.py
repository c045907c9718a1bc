"""What a docstring says of a tool: the text for the model, and a line for each parameter."""

from __future__ import annotations

import inspect
import re

_HEADING = re.compile(r"(Args|Arguments|Parameters):\s*")
_ITEM = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:(?:\s+(.*)|\s*)")


def read(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The description, and by name what the list under `Args:` says of parameters.

    An entry is `name: text`, or `name (type): text`; lines that are indented deeper go on with it. The list ends with
    the first line that is not indented deeper than its heading, and is no part of the description.
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    begin = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), None)
    if begin is None:
        return "\n".join(lines).strip(), {}
    end = next((n for n in range(begin + 1, len(lines)) if lines[n].strip() and not lines[n][0].isspace()), len(lines))
    docs: dict[str, str] = {}
    indent: int | None = None
    name = ""
    for line in lines[begin + 1 : end]:
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        item = _ITEM.fullmatch(text) if depth <= indent else None
        if item is not None:
            name = item[1]
            docs[name] = item[2] or ""
        elif name:
            docs[name] = f"{docs[name]} {text}".strip()
    rest = [*lines[:begin], *lines[end:]]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), {name: text for name, text in docs.items() if text}
