"""The layers of dshd, enforced: who may import what, how long a module may be, and what the root package exports.

The rules are pure functions of a directory, so that half of this file can show on made-up trees that they do catch what
they should. An import counts wherever it stands: at the top, under TYPE_CHECKING, in a function, or as a literal string
given to `import_module`. A module name computed at run time is not seen.
"""

import ast
import symtable
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import dshd

ROOT = Path(__file__).parent.parent
LONGEST = 400

PUBLIC: list[str] = [
    "Aborted",
    "Aborter",
    "Backoff",
    "Bail",
    "CONFIG_UPDATE",
    "CodeReloaded",
    "CommitRefusedError",
    "Config",
    "ConfigUpdated",
    "Context",
    "DshdError",
    "Duration",
    "ENTRY_INIT",
    "EXIT",
    "Effect",
    "Emit",
    "EntryConflictError",
    "EntryGroup",
    "Exiting",
    "Fiber",
    "FiberState",
    "HMR",
    "HMR_CHANGE",
    "HMR_RELOAD",
    "InactiveFiberError",
    "KernelError",
    "LOADER",
    "Next",
    "PARTIAL_DISPOSE",
    "PATCH_CONTEXT",
    "Parallel",
    "Picture",
    "Plugin",
    "Realm",
    "Registry",
    "RegistryChange",
    "RegistryKey",
    "RowClosing",
    "RowContext",
    "RowOpening",
    "Scope",
    "Secret",
    "SecretHandle",
    "SecretUnavailableError",
    "Serial",
    "ServiceConflictError",
    "ServiceKey",
    "ServiceNotDeclaredError",
    "ServiceUnavailableError",
    "SharedKey",
    "Signal",
    "SourceChanged",
    "Stage",
    "Timing",
    "Waterfall",
    "errors",
    "internal",
    "is_fault",
    "leashed",
    "obey",
    "open_kernel",
    "picture",
    "plugin",
    "still_opening",
]


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    ours: frozenset[str] = frozenset()
    """Modules of this project, each with all below it, except that `dshd` means the root package alone."""

    packages: frozenset[str] | None = frozenset()
    """Third-party packages by import name, `None` for any."""


KERNEL_PACKAGES = frozenset({"anyio", "pydantic", "structlog"})

LAYERS = {
    "dshd": Layer(frozenset({"dshd.kernel", "dshd.loader.events"})),
    "dshd.__main__": Layer(frozenset({"dshd.app", "dshd.testing"})),
    "dshd.kernel": Layer(packages=KERNEL_PACKAGES),
    "dshd.loader": Layer(frozenset({"dshd.kernel"}), KERNEL_PACKAGES | {"watchfiles", "yaml"}),
    "dshd.capabilities": Layer(frozenset({"dshd.kernel"}), frozenset({"pydantic"})),
    "dshd.app": Layer(
        frozenset({"dshd.capabilities.http", "dshd.kernel", "dshd.loader"}),
        KERNEL_PACKAGES | {"orjson", "prometheus_client", "pydantic_settings", "uvicorn"},
    ),
    "dshd.testing": Layer(frozenset({"dshd.app", "dshd.capabilities", "dshd.kernel", "dshd.loader"}), KERNEL_PACKAGES),
}
PLUGIN = Layer(frozenset({"dshd", "dshd.capabilities"}), packages=None)

NOT_SHIPPED = frozenset({"benchmarks", "hatch_build", "plugins", "tests"})
"""Importable in a checkout only; plugins are called `dshd_plugins`."""

NOT_IN_KERNEL = frozenset(
    {"anyio.Path", "anyio.open_file", "io.open", "os.environ", "os.environb", "os.getenv", "os.getenvb", "os.open"}
    | {"pathlib"}
)
"""The kernel opens no file and reads no environment; the builtin `open` is looked for by scope."""

LENGTH_LIMITED = ("dshd.kernel", "dshd.loader", "dshd.capabilities", "dshd.app", "dshd_plugins")


# -- the rules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Source:
    path: Path
    module: str
    text: str

    @property
    def package(self) -> str:
        """What a relative import in this file is relative to."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """The name of the layer, or of the plugin, that this file belongs to."""
        return ".".join(self.module.split(".")[:2])


def within(name: str, module: str) -> bool:
    return name == module or (module != "dshd" and name.startswith(f"{module}."))


def sources(root: Path) -> list[Source]:
    found = []
    for directory, package in (("dshd", "dshd"), ("plugins", "dshd_plugins")):
        for path in sorted((root / directory).rglob("*.py")):
            parts = path.relative_to(root / directory).with_suffix("").parts
            module = ".".join((package, *(part for part in parts if part != "__init__")))
            found.append(Source(path=path.relative_to(root), module=module, text=path.read_text(encoding="utf-8")))
    return found


def aliases(source: Source, tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for, wherever in the file it is bound."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{origin(source, node)}.{alias.name}"
    return names


def origin(source: Source, node: ast.ImportFrom) -> str:
    """The absolute name of the module that a `from` import takes its names from."""
    if not node.level:
        return node.module or ""
    parts = source.package.split(".")
    if node.level > len(parts):
        return "." * node.level + (node.module or "")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name that an expression like `os.environ` refers to, or the empty string."""
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(value=value, attr=attribute) if base := dotted(value, names):
            return f"{base}.{attribute}"
        case _:
            return ""


def imports(source: Source, tree: ast.AST, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, with the line: `from a import b` is `a.b` if that is a module, else `a`."""
    names = aliases(source, tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = origin(source, node)
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    yield node.lineno, name if name in modules else base
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str(name)), *_]):
                yield node.lineno, name
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if dotted(function, names) == "importlib.import_module":
                    yield node.lineno, name


def may_import(source: Source, layer: Layer, name: str) -> bool:
    top = name.partition(".")[0]
    if top in ("dshd", "dshd_plugins"):
        return within(name, source.layer) or any(within(name, module) for module in layer.ours)
    if top in NOT_SHIPPED:
        return False
    return top in sys.stdlib_module_names or layer.packages is None or top in layer.packages


def outside_world(source: Source, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a file refers to something of `NOT_IN_KERNEL` or to the builtin `open`."""
    names = aliases(source, tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                referred = [alias.name for alias in node.names]
            case ast.ImportFrom():
                referred = [f"{origin(source, node)}.{alias.name}" for alias in node.names]
            case ast.Attribute():
                referred = [dotted(node, names)]
            case _:
                continue
        for name in referred:
            if any(within(name, forbidden) for forbidden in NOT_IN_KERNEL):
                yield node.lineno, name
    scopes = [symtable.symtable(source.text, str(source.path), "exec")]
    at_the_top = {symbol.get_name() for symbol in scopes[0].get_symbols() if symbol.is_assigned()}
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            # Only a scope can tell: a parameter may be called `open`, and the kernel has one.
            builtin = symbol.get_name() == "open" and symbol.is_global() and "open" not in at_the_top
            if builtin and symbol.is_referenced():
                yield scope.get_lineno(), "the builtin open"


def violations(root: Path) -> list[str]:
    """Each import, and in the kernel each use of files and environment, that the table does not allow."""
    found = sources(root)
    modules = frozenset(
        ".".join(parts[:length])
        for parts in (source.module.split(".") for source in found)
        for length in range(1, len(parts) + 1)
    )
    wrong = []
    for source in found:
        if source.module == "dshd_plugins":
            layer = Layer()
        elif source.module.startswith("dshd_plugins."):
            layer = PLUGIN
        elif source.layer in LAYERS:
            layer = LAYERS[source.layer]
        else:
            wrong.append(f"{source.path}: {source.layer} is not a layer")
            continue
        tree = ast.parse(source.text, str(source.path))
        faults = {
            (line, f"{source.layer} may not import {name}")
            for line, name in imports(source, tree, modules)
            if not may_import(source, layer, name)
        }
        if source.layer == "dshd.kernel":
            faults |= {(line, f"{source.layer} may not use {name}") for line, name in outside_world(source, tree)}
        wrong += [f"{source.path}:{line}: {fault}" for line, fault in sorted(faults)]
    return wrong


def too_long(root: Path) -> list[str]:
    """Each module above the limit, with its length."""
    return [
        f"{source.path}: {lines} lines"
        for source in sources(root)
        if any(within(source.module, limited) for limited in LENGTH_LIMITED)
        and (lines := len(source.text.splitlines())) > LONGEST
    ]


# -- this project ------------------------------------------------------------------------------------------------------


def test_every_layer_imports_only_what_the_table_allows() -> None:
    assert violations(ROOT) == []


def test_no_module_is_longer_than_the_limit() -> None:
    assert too_long(ROOT) == []


def test_the_walk_finds_the_files_of_this_project() -> None:
    modules = {source.module for source in sources(ROOT)}
    assert {"dshd", "dshd.__main__", "dshd.kernel", "dshd_plugins", "dshd_plugins.hello"} <= modules


def test_the_root_package_exports_exactly_the_public_names() -> None:
    assert list(dshd.__all__) == PUBLIC


def test_the_public_names_stand_in_alphabetical_order_once_each() -> None:
    assert list(dshd.__all__) == sorted(set(dshd.__all__))


def test_every_public_name_resolves_and_no_other_does() -> None:
    assert [name for name in dshd.__all__ if not hasattr(dshd, name)] == []
    assert not hasattr(dshd, "no_such_name")


# -- the rules catch what they should ----------------------------------------------------------------------------------

SKELETON = {
    "dshd/__init__.py": "",
    "dshd/kernel/context.py": "",
    "dshd/loader/events.py": "",
    "dshd/loader/plan.py": "",
    "dshd/capabilities/http.py": "",
    "dshd/capabilities/llm.py": "",
    "dshd/app/daemon.py": "",
    "dshd/testing/clock.py": "",
    "plugins/__init__.py": "",
    "plugins/shell.py": "",
}


def tree_with(root: Path, path: str, text: str) -> Path:
    for name, content in {**SKELETON, path: text}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return root


ALLOWED = [
    ("dshd/__init__.py", "from .kernel.context import Context as Context\nfrom dshd.loader.events import LOADER"),
    ("dshd/__main__.py", "from dshd.app.daemon import main"),
    ("dshd/kernel/fiber.py", "import sys, anyio.abc, structlog\nfrom pydantic import BaseModel"),
    ("dshd/kernel/fiber.py", "from . import context\nfrom .context import Context\nimport dshd.kernel.context"),
    ("dshd/kernel/fiber.py", "def shared(open):\n    return open()"),
    ("dshd/kernel/fiber.py", "def outer(open):\n    return lambda: open()"),
    ("dshd/kernel/fiber.py", "class Keeper:\n    def open(self): ...\n    def again(self):\n        self.open()"),
    ("dshd/kernel/fiber.py", "import os\nprint(os.path.sep, os.getpid())"),
    ("dshd/loader/watch.py", "import yaml, watchfiles\nfrom pathlib import Path\nfrom ..kernel.context import Context"),
    ("dshd/capabilities/tools.py", "import pydantic\nfrom dshd.kernel import context\nfrom .llm import LLM"),
    ("dshd/app/cli.py", "import orjson, prometheus_client, pydantic_settings\nfrom ..capabilities import http"),
    ("dshd/app/cli.py", "from ..loader import plan\nfrom ..capabilities.http import Route"),
    ("dshd/testing/model.py", "import dshd.kernel, dshd.loader, dshd.capabilities, dshd.app, anyio"),
    ("plugins/hello.py", "import httpx, numpy\nfrom dshd import Context\nfrom dshd.capabilities.llm import LLM"),
    ("plugins/browser/page.py", "from . import tabs\nfrom .tabs import Tab\nimport dshd_plugins.browser.tabs"),
    ("plugins/yaml.py", "import yaml"),
]


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_what_the_table_allows_is_no_violation(tmp_path: Path, path: str, text: str) -> None:
    assert violations(tree_with(tmp_path, path, text)) == []


FORBIDDEN = [
    ("dshd/__init__.py", "from .capabilities.llm import LLM", "1: dshd may not import dshd.capabilities.llm"),
    ("dshd/__init__.py", "from .loader.plan import Plan", "1: dshd may not import dshd.loader.plan"),
    ("dshd/__main__.py", "import dshd_plugins.shell", "1: dshd.__main__ may not import dshd_plugins.shell"),
    ("dshd/kernel/fiber.py", "import yaml", "1: dshd.kernel may not import yaml"),
    ("dshd/kernel/fiber.py", "from dshd import Context", "1: dshd.kernel may not import dshd"),
    ("dshd/kernel/fiber.py", "from .. import loader", "1: dshd.kernel may not import dshd.loader"),
    ("dshd/kernel/fiber.py", "from ..loader import plan", "1: dshd.kernel may not import dshd.loader.plan"),
    ("dshd/kernel/fiber.py", "from ...elsewhere import x", "1: dshd.kernel may not import ...elsewhere"),
    ("dshd/kernel/fiber.py", "def f():\n    import httpx", "2: dshd.kernel may not import httpx"),
    (
        "dshd/kernel/fiber.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dshd.capabilities.llm import LLM",
        "3: dshd.kernel may not import dshd.capabilities.llm",
    ),
    (
        "dshd/kernel/fiber.py",
        "from importlib import import_module\nimport_module('dshd_plugins.shell')",
        "2: dshd.kernel may not import dshd_plugins.shell",
    ),
    ("dshd/kernel/fiber.py", "__import__('dshd.app')", "1: dshd.kernel may not import dshd.app"),
    ("dshd/kernel/fiber.py", "from pathlib import Path", "1: dshd.kernel may not use pathlib.Path"),
    ("dshd/kernel/fiber.py", "import os as o\no.environ['X']", "2: dshd.kernel may not use os.environ"),
    ("dshd/kernel/fiber.py", "from os import getenv", "1: dshd.kernel may not use os.getenv"),
    ("dshd/kernel/fiber.py", "import anyio\nanyio.Path('x')", "2: dshd.kernel may not use anyio.Path"),
    ("dshd/kernel/fiber.py", "def f(path):\n    return open(path)", "1: dshd.kernel may not use the builtin open"),
    (
        "dshd/loader/watch.py",
        "from dshd.capabilities import llm",
        "1: dshd.loader may not import dshd.capabilities.llm",
    ),
    ("dshd/loader/watch.py", "import httpx", "1: dshd.loader may not import httpx"),
    ("dshd/capabilities/tools.py", "import anyio", "1: dshd.capabilities may not import anyio"),
    ("dshd/capabilities/tools.py", "import dshd.loader.plan", "1: dshd.capabilities may not import dshd.loader.plan"),
    ("dshd/app/cli.py", "from ..capabilities.llm import LLM", "1: dshd.app may not import dshd.capabilities.llm"),
    ("dshd/app/cli.py", "from ..testing import clock", "1: dshd.app may not import dshd.testing.clock"),
    ("dshd/testing/model.py", "import dshd_plugins.shell", "1: dshd.testing may not import dshd_plugins.shell"),
    ("dshd/extras/more.py", "", " dshd.extras is not a layer"),
    ("plugins/__init__.py", "import dshd", "1: dshd_plugins may not import dshd"),
    ("plugins/hello.py", "from . import shell", "1: dshd_plugins.hello may not import dshd_plugins.shell"),
    ("plugins/hello.py", "import plugins.shell", "1: dshd_plugins.hello may not import plugins.shell"),
    ("plugins/hello.py", "from dshd import kernel", "1: dshd_plugins.hello may not import dshd.kernel"),
    ("plugins/hello.py", "import dshd.loader.events", "1: dshd_plugins.hello may not import dshd.loader.events"),
    ("plugins/hello.py", "from dshd.app import daemon", "1: dshd_plugins.hello may not import dshd.app.daemon"),
    ("plugins/browser/page.py", "from ..shell import run", "1: dshd_plugins.browser may not import dshd_plugins.shell"),
]


@pytest.mark.parametrize(("path", "text", "fault"), FORBIDDEN)
def test_what_the_table_forbids_is_named_with_its_place(tmp_path: Path, path: str, text: str, fault: str) -> None:
    assert violations(tree_with(tmp_path, path, text)) == [f"{path}:{fault}"]


@pytest.mark.parametrize(
    ("path", "lines", "faults"),
    [
        ("dshd/kernel/fiber.py", LONGEST, []),
        ("dshd/kernel/fiber.py", LONGEST + 1, ["dshd/kernel/fiber.py: 401 lines"]),
        ("plugins/browser/page.py", 1000, ["plugins/browser/page.py: 1000 lines"]),
        ("dshd/testing/model.py", 1000, []),
    ],
)
def test_a_module_above_the_limit_is_named_with_its_length(
    tmp_path: Path, path: str, lines: int, faults: list[str]
) -> None:
    assert too_long(tree_with(tmp_path, path, "x = 1\n" * lines)) == faults
