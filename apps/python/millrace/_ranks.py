# SPDX-License-Identifier: Apache-2.0
"""A training job on several processes of this machine: the side of the caller, and the main program of a rank."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any, Callable, NamedTuple

from ._core import CommunicationError, RankError, _train

_Event = tuple[str, Any]


class _Rank(NamedTuple):
    process: subprocess.Popen[bytes]
    events: IO[bytes]


def _free_port() -> int:
    """A port that nobody listens on. The system gives those from 32768 on to whoever connects, so one below is still free when rank 0 listens."""
    for _ in range(100):
        port = random.SystemRandom().randrange(10000, 30000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _start(rank: int, ranks: int, port: int, arguments: tuple[Any, ...]) -> _Rank:
    reading, writing = os.pipe()
    package = str(pathlib.Path(__file__).absolute().parent.parent)
    code = f"import sys; sys.path.insert(0, {package!r}); from millrace._ranks import main; main({writing})"
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # A session of its own: Ctrl-C in a terminal reaches the caller alone, which then stops all ranks behind one checkpoint.
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[writing], env=env, start_new_session=True)
    os.close(writing)
    assert process.stdin is not None
    try:
        process.stdin.write(pickle.dumps(arguments))
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended, which its events say
    return _Rank(process, os.fdopen(reading, "rb"))


def _listen(rank: int, one: _Rank, events: queue.SimpleQueue[tuple[int, _Event]]) -> None:
    """Hands on what a rank says, until it has ended."""
    with one.events:
        try:
            while True:
                events.put((rank, pickle.load(one.events)))
        except Exception:  # the end, perhaps in the middle of an event
            pass
    events.put((rank, ("gone", one.process.wait())))


def _close(one: _Rank) -> None:
    """Asks a rank to stop; all of them then stop behind the same step."""
    assert one.process.stdin is not None
    try:
        one.process.stdin.close()
    except OSError:
        pass


def train_in_ranks(ranks: int, arguments: tuple[Any, ...], tell: Callable[[_Event], None]) -> Any:
    """The job of `_train(*arguments, tell)` on `ranks` processes; gives what rank 0 gave. An exception of `tell`, and Ctrl-C, stop it behind a
    checkpoint. CommunicationError for a rank that died."""
    port = _free_port()
    events: queue.SimpleQueue[tuple[int, _Event]] = queue.SimpleQueue()
    started: list[_Rank] = []
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []
    made: Any = None
    left = 0

    def take() -> None:
        nonlocal made, left
        rank, (kind, value) = events.get()
        if kind == "made" and rank == 0:
            made = value
        elif kind == "error":
            errors.append(value)
        elif kind == "gone":
            left -= 1
            if value != 0:
                errors.insert(0, RankError(f"train: rank {rank} of {ranks} ended with the exit status {value}"))
        elif kind in ("epoch", "note", "begins"):
            tell((kind, value))

    try:
        for rank in range(ranks):
            one = _start(rank, ranks, port, arguments)
            started.append(one)
            left += 1
            threads.append(threading.Thread(target=_listen, args=(rank, one, events), name=f"millrace rank {rank}", daemon=True))
            threads[-1].start()
        while left > 0:
            take()
    except BaseException:
        for one in started:
            _close(one)
        try:
            while left > 0:  # their events are read to the end, without a call of `tell`
                if events.get()[1][0] == "gone":
                    left -= 1
        except BaseException:  # a second Ctrl-C
            for one in started:
                one.process.kill()
            raise
        raise
    finally:
        for thread in threads:
            thread.join()
        for one in started:
            _close(one)
    # The error of a rank, rather than that of the ranks which miss it.
    errors.sort(key=lambda error: isinstance(error, CommunicationError) and not isinstance(error, RankError))
    if errors:
        raise errors[0]
    return made


def main(writing: int) -> None:
    """A rank: arguments by the standard input, whose end asks it to stop; events by the descriptor `writing`."""
    arguments = pickle.load(sys.stdin.buffer)
    out = os.fdopen(writing, "wb")
    over = threading.Event()

    def say(event: _Event) -> None:
        out.write(pickle.dumps(event))
        out.flush()

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
    try:
        try:
            whole: Any = (*arguments, say)
            say(("made", _train(*whole)))
        except Exception as error:
            try:
                say(("error", error))
            except Exception:  # one that cannot be sent
                say(("error", RuntimeError(f"{type(error).__name__}: {error}")))
    except KeyboardInterrupt:  # of `watch`: the caller has stopped the job
        pass
    over.set()
