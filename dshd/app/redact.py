"""Keeping secrets out of what is shown, where only a name tells that a text is one."""

from __future__ import annotations

import re

MASK = "***"

_NAMES = (
    r"(?:api[-_]?key|auth(?:orization)?|bearer|cookie|credentials?|passphrase|passw(?:or)?d|private[-_]?key"
    r"|secret|token)s?"
)
_NAMED = re.compile(rf"(?:^|[-_.]){_NAMES}$", re.IGNORECASE)
_IN_LINE = re.compile(
    rf"((?:^|(?<!\$)\{{|[^\w{{-])[\"']?(?:[\w-]*[-_])?{_NAMES}[\"']?\s*:\s*)(\$\{{[^}}]*\}}|\"[^\"]*\"|'[^']*'|[^\s,{{}}\[\]&*|>][^,{{}}\n]*)",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(\w+://)[^/\s@:]*(?::[^/\s@]*)?@")
_REFERENCE = re.compile(r"\$\{[^}]*\}")


def is_secret(name: str) -> bool:
    """Whether a field of this name probably holds a secret; `max_tokens` and `token_limit` do not."""
    return _NAMED.search(name) is not None and not re.search(r"(?:^|_)(?:max|min|limit|count)", name, re.IGNORECASE)


def redacted(name: str, value: object) -> object:
    """The value of a field as it may be shown: references as they are written, literal secrets masked."""
    if isinstance(value, str):
        if is_secret(name) and not _REFERENCE.fullmatch(value.strip()):
            return MASK
        return _USERINFO.sub(rf"\1{MASK}@", value)
    return value


def redacted_line(line: str) -> str:
    """A line of YAML as it may be shown. What stands before the secret keeps its column."""

    def hide(found: re.Match[str]) -> str:
        key = found[1].strip(" {,:\"'")
        value = found[2].strip()
        if not is_secret(key) or _REFERENCE.fullmatch(value.strip("\"'")) or value.isdigit():
            return found[0]
        return f"{found[1]}{MASK}"

    return _USERINFO.sub(rf"\1{MASK}@", _IN_LINE.sub(hide, line))
