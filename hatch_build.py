"""Makes `plugins/` importable as `dshd_plugins` in an editable install.

A wheel needs only the rename in pyproject.toml. An editable install puts this directory on the import path, where the
plugins would be called `plugins`; so it also gets a finder that answers for the one name `dshd_plugins` with that
package itself. Edits are seen at once, and `__file__` is the file one edits.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FINDER = '''\
"""Finds dshd_plugins in the source tree of the editable install of dshd."""

import sys

PACKAGE = {package!r}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "dshd_plugins":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, PACKAGE)


sys.meta_path.append(Finder)
'''


class EditablePlugins(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            return
        self._generated = TemporaryDirectory()
        package = Path(self.root, "plugins", "__init__.py")
        files = {
            "_dshd_plugins_editable.py": FINDER.format(package=str(package)),
            "_dshd_plugins_editable.pth": "import _dshd_plugins_editable\n",
        }
        for name, text in files.items():
            path = Path(self._generated.name, name)
            path.write_text(text, encoding="utf-8")
            build_data["force_include_editable"][str(path)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version == "editable":
            self._generated.cleanup()
