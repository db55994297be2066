# SPDX-License-Identifier: Apache-2.0
"""Operations of the library as something that a task of asyncio awaits. Imported when it is first wanted, so that `import millrace` does not import
asyncio."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from typing import Any, Callable, Mapping

from ._core import Compiled, Result, _EventLoop, _Operation


class Side:
    """The library's part of an event loop: operations that other threads finish come by one descriptor, many at a time. The loop alone keeps it, by
    the callback of that descriptor: with the loop it goes, and with it the operations that nobody waits for any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.core = _EventLoop()
        self.waits: set[Any] = set()
        loop.add_reader(self.core.fileno(), self.drive)
        weakref.finalize(self, self.core.close).atexit = False  # `_close_all` is for that

    def drive(self) -> None:
        self.core.drive()


_sides: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Side]] = weakref.WeakKeyDictionary()


_last: tuple[Callable[[], asyncio.AbstractEventLoop | None], Callable[[], Side | None]] = (lambda: None, lambda: None)
"""The loop that asked last, and its side: nearly always the one that asks next. Weak references."""


def _side() -> Side:
    global _last
    loop = asyncio.get_running_loop()
    last, its = _last
    if last() is loop and (found := its()) is not None:
        return found
    known = _sides.get(loop)
    found = known() if known is not None else None
    if found is None:
        found = Side(loop)
        _sides[loop] = weakref.ref(found)
    _last = (weakref.ref(loop), weakref.ref(found))
    return found


def side() -> _EventLoop:
    """The side of C++ of the running loop."""
    return _side().core


def waits() -> set[Any]:
    """The set that keeps what tasks of the running loop wait for, and so those tasks, alive."""
    return _side().waits


async def ended(operation: _Operation) -> Any:
    """The result of an operation, once it has ended. Cancelling the awaiting task cancels nothing of the operation."""
    if not operation.ended:
        waits = _side().waits
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known = weakref.ref(wait)  # the operation is no part of what Python's garbage collector sees

        def wake() -> None:
            waiting = known()
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

        waits.add(wait)
        operation.wake_by(wake)
        try:
            await wait
        finally:
            waits.discard(wait)
    return operation.result()


async def ended_or_cancelled(operation: _Operation) -> Any:
    """The same; cancelling the awaiting task cancels the operation, which ends by itself."""
    if operation.ended:
        return operation.result()
    try:
        return await ended(operation)
    except BaseException:
        operation.cancel()
        raise


async def run(compiled: Compiled, feeds: Mapping[str, Any] | None, named: dict[str, Any]) -> Result:
    """Starts a run, and gives its result once it has ended. Cancelling the awaiting task cancels the run."""
    made: Result = await ended_or_cancelled(compiled._start(side(), feeds, named))
    return made


def _close_all() -> None:
    for loop, known in list(_sides.items()):
        found = known()
        if found is not None and not loop.is_running():  # one that runs is a daemon thread's, where it blocks from now on
            found.core.close()


atexit.register(_close_all)
