"""Things done at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*coroutines: Coroutine) -> list[Any]:
    """Run the coroutines at the same time and return their results in order.

    The first that fails cancels the others and its own error is raised, not a group of errors: one cause, one message.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
    return [task.result() for task in tasks]
