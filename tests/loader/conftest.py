from pathlib import Path

import pytest

from dshd.testing import parts
from dshd.testing.loader import Site


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    parts.journal.clear()
    parts.gates.clear()
    return Site(tmp_path)
