"""Background work of agents."""

from __future__ import annotations

from typing import NewType
from uuid import uuid4

from .values.ids import checked_id

TaskId = NewType("TaskId", str)
"""One background task."""


def task_id(text: str | None = None) -> TaskId:
    """A task's id, minted if none is given. Raises `ValueError` for an empty one."""
    return TaskId(f"task-{uuid4().hex}" if text is None else checked_id("task", text))
