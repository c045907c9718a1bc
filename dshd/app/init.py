"""`dshd init`: a small configuration that runs as it is, with a plugin of its own beside it to begin with."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path

from .places import shown

CONFLICT, FAILED = 4, 1

CONFIG = """\
# What this daemon runs. Start it with:   dshd run --config {name}/dshd.yaml
# Every save is applied at once, as a whole or not at all; look with `dshd status` and `dshd tree`.
# An editor completes and checks this file after `dshd schema > schema.json`, with this as its first line:
#   yaml-language-server: $schema=schema.json

daemon:
  log_level: info      # debug shows more; applied with the next save
  drain: 60s           # how long running work may go on when the daemon stops

plugins:               # id: row
  hello:               # a plugin that comes with dshd; `use` defaults to the id
    config:
      who: world       # change this and save

  greeter:             # a plugin of yours, in a file beside this one
    use: ./plugins/greeter.py
    config:
      every: 60        # seconds
      text: I am still here.
"""

PLUGIN = '''\
"""A plugin of yours: says something now and then. Change it as you like; `every` and `text` come from dshd.yaml."""

import anyio

from dshd import Config, Context, plugin


class Greeter(Config):
    every: float = 60
    """How often, in seconds."""
    text: str = "hello"
    """What to say."""


@plugin("greeter", config=Greeter)
async def greeter(ctx: Context, config: Greeter) -> None:
    async def greet() -> None:
        while True:
            ctx.log.info(config.text)
            await anyio.sleep(config.every)

    ctx.spawn(greet)  # runs from the moment this row is live until it is edited away
'''

IGNORED = """\
__pycache__/
*.pyc
# where a daemon started with --state-dir here would keep its state, and its credentials
/state/
credentials.yaml
"""


def init(directory: str, *, json: bool = False) -> int:
    """Write the files; refuse if one of them is there already."""
    root = Path(directory)
    files = {
        root / "dshd.yaml": CONFIG.format(name=directory.rstrip("/") or "."),
        root / "plugins" / "greeter.py": PLUGIN,
        root / ".gitignore": IGNORED,
    }
    there = [str(path) for path in files if path.exists() or path.is_symlink()]
    if there:
        return _say(f"{there[0]} is there already and is not overwritten; name another directory", CONFLICT)
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as exc:
        return _say(f"{exc.filename}: {exc.strerror}", FAILED)
    if json:
        print(json_.dumps({"files": [str(path) for path in files]}))
    else:
        print("\n".join(f"wrote {shown(path)}" for path in files))
        print(f"now: dshd run --config {shown(root / 'dshd.yaml')}")
    return 0


def _say(message: str, status: int) -> int:
    print(f"dshd: {message}", file=sys.stderr)
    return status
