# SPDX-License-Identifier: Apache-2.0
"""Runs for asyncio. Imported by the first `run_async`, so that `import millrace` does not import asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Mapping

from ._core import Compiled, Result


async def run(compiled: Compiled, feeds: Mapping[str, Any] | None, named: dict[str, Any]) -> Result:
    """Starts a run, and gives its result once it has ended. Cancelling the awaiting task cancels the run."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not ended.done():
            ended.set_result(None)

    pending = compiled._start(feeds, named, loop.call_soon_threadsafe, done)
    try:
        await ended
    except BaseException:
        pending.cancel()
        raise
    return pending.result()
