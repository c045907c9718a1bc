"""What a shown line or field keeps to itself."""

from __future__ import annotations

import pytest

from dshd.app.redact import redacted, redacted_line


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  api_key: sk-12 34", "  api_key: ***"),
        ("  api_key: ${credential:X}", "  api_key: ${credential:X}"),
        ('  api_key: "${credential:X}"', '  api_key: "${credential:X}"'),
        ("  key: ${credential:X}", "  key: ${credential:X}"),
        ("{key: ${credential:X}, token: abc}", "{key: ${credential:X}, token: ***}"),
        ("{api_key: abc, x: 1}", "{api_key: ***, x: 1}"),
        ("  'Authorization': Bearer abc", "  'Authorization': ***"),
        ("  tokens: {ci: {secret: abc, scopes: [a]}}", "  tokens: {ci: {secret: ***, scopes: [a]}}"),
        ("  {password: 'a, b', z: 1}", "  {password: ***, z: 1}"),
        ("  x-api-key: abc", "  x-api-key: ***"),
        ("  auth: x", "  auth: ***"),
        ("base: https://u:p@h/x", "base: https://***@h/x"),
        ("  max_tokens: 5", "  max_tokens: 5"),
        ("  limits: {tokens: 200000}", "  limits: {tokens: 200000}"),
        ("  author: bob", "  author: bob"),
        ("  secret:", "  secret:"),
    ],
)
def test_secrets_in_a_line_are_masked_and_nothing_else(line: str, shown: str) -> None:
    assert redacted_line(line) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("token", "abc", "***"),
        ("token", "${env:T}", "${env:T}"),
        ("max_tokens", 5, 5),
        ("url", "postgres://u:p@h/d", "postgres://***@h/d"),
        ("who", "ann", "ann"),
    ],
)
def test_secrets_in_a_field_are_masked_and_references_are_not(name: str, value: object, shown: object) -> None:
    assert redacted(name, value) == shown
