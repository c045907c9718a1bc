"""The command line: arguments, and which verb does what. Heavy modules are imported by the verbs that need them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from .verbs import verb_confirm, verb_plan, verb_reload, verb_rollback, verb_status, verb_tree

USAGE, FAILED = 2, 1
Verb = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its status."""
    args = parser().parse_args(arguments)
    verb: Verb = args.verb
    try:
        status = verb(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing may complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    top = argparse.ArgumentParser(
        prog="dshd",
        description="A daemon that runs LLM agents from a tree of plugins in YAML and applies every edit live.",
        epilog="exit status: 0 done or valid, 1 failed, 2 usage or no such name, 3 invalid configuration, 4 held or "
        "conflict, 5 failed to start (nothing changed), 6 rolled back, 7 no daemon, 8 timed out, 75 state directory in "
        "use, 78 invalid configuration at start",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = top.add_subparsers(metavar="VERB", required=True)

    def add(name: str, verb: Verb, help: str, *options: Callable[[argparse.ArgumentParser], None]) -> _Parser:
        made = verbs.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(verb=verb)
        for option in options:
            option(made)
        return made

    run = add("run", _run, "run the daemon in the foreground", _config)
    run.add_argument("--strict", action="store_true", help="do not fall back to the last good configuration")
    check = add("check", _check, "validate the configuration without a daemon", _config, _client, _json)
    check.add_argument("--no-credentials", action="store_true", help="do not ask whether credentials exist")
    add("plan", verb_plan, "show what a reload would change", _config, _client, _json)
    reload = add("reload", verb_reload, "apply the configuration now", _client, _json)
    reload.add_argument("--confirm", metavar="TIME", type=_seconds, help="roll back unless confirmed within, say, 60s")
    reload.add_argument("--if-generation", metavar="N", type=int, help="only if this generation runs")
    reload.add_argument("--allow-removals", action="store_true", help="even if it removes most rows")
    add("confirm", verb_confirm, "keep what `reload --confirm` has applied", _client, _json)
    rollback = add("rollback", verb_rollback, "go back to an earlier generation", _client, _json)
    rollback.add_argument("generation", metavar="N", type=int, nargs="?", help="which; by default the one before")
    add("status", verb_status, "show what runs and what does not", _client, _json)
    tree = add("tree", verb_tree, "show the rows and what they contribute", _client, _json)
    tree.add_argument("path", metavar="PATH", nargs="?", help="one row, in detail")
    tree.add_argument("--effects", action="store_true", help="with every contribution")
    explain = add("explain", _explain, "show a row as it counts, and which file set each field", _config, _json)
    explain.add_argument("path", metavar="PATH", help="a row, such as nightly/shell, a field of it, or daemon")
    add("schema", _schema, "print the JSON Schema of the configuration for the installed plugins", _config, _json)
    init = add("init", _init, "write a small configuration that runs", _json)
    init.add_argument("directory", metavar="DIR")
    add("doctor", _doctor, "look for what would keep a daemon from running well", _config, _client, _json)
    return top


_Parser = argparse.ArgumentParser


def _config(to: _Parser) -> None:
    to.add_argument(
        "--config", metavar="FILE", action="append", default=[], help="a configuration file; repeat it for layers"
    )
    _state_dir(to)


def _client(to: _Parser) -> None:
    to.add_argument("--socket", metavar="PATH", help="the control socket of the daemon")
    to.add_argument("--instance", metavar="NAME", help="the daemon whose socket is in /run/dshd-NAME")
    to.add_argument("--timeout", metavar="TIME", type=_seconds, default=300.0, help="how long to wait for an answer")
    _state_dir(to)


def _state_dir(to: _Parser) -> None:
    if not any("--state-dir" in action.option_strings for action in to._actions):
        to.add_argument("--state-dir", metavar="DIR", help="the daemon's state directory")


def _json(to: _Parser) -> None:
    to.add_argument("--json", action="store_true", help="print JSON")


def _seconds(text: str) -> float:
    from dshd.kernel.duration import seconds

    try:
        found = seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    assert isinstance(found, float)
    return found


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that is slower than all the rest."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"dshd {version('dshd')}")
        parser.exit()


# -- verbs that work without a daemon, or are one


def _run(args: argparse.Namespace) -> int:
    import gc
    import signal

    # Before the imports, which take most of the start: a hang-up asks for what is about to happen anyway.
    signal.signal(signal.SIGHUP, lambda *_: None)
    gc.disable()  # until the first commit: importing and starting make much and throw little away
    from .run import run

    return run(args.config, args.state_dir, strict=args.strict)


def _check(args: argparse.Namespace) -> int:
    from .offline import check

    return check(args)


def _explain(args: argparse.Namespace) -> int:
    from .explain import explain

    return explain(args)


def _schema(args: argparse.Namespace) -> int:
    from .offline import schema

    return schema(args)


def _init(args: argparse.Namespace) -> int:
    from .init import init

    return init(args.directory, json=args.json)


def _doctor(args: argparse.Namespace) -> int:
    from .doctor import doctor

    return doctor(args)
