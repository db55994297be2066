# SPDX-License-Identifier: Apache-2.0
"""Sequences that are still arriving: live models and sessions in a process, a server for them, and its client. For asyncio."""

from __future__ import annotations

import asyncio
import base64
import collections
import json
import os
import struct
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Coroutine, Literal, Mapping, NamedTuple, Sequence, TypeVar

from ._async import ended, ended_or_cancelled, side, waits
from ._core import (
    ArgumentError,
    CancelledError,
    ClosedError,
    DType,
    LiveError,
    LoDTensor,
    Program,
    ProtocolError,
    Result,
    SavedStateError,
    Tensor,
    _connect,
    _Connection,
    _LiveModel,
    _LiveProgram,
    _LiveSession,
    _Operation,
    _rows_of,
    _Server,
    _tensor_of,
)

__all__ = ["LiveBatch", "LiveModel", "LiveProgram", "LiveSession", "RemoteSession", "Served", "Server", "connect", "serve"]

Rows = Any
"""Rows of an input: a Tensor, a LoDTensor, an array of NumPy or PyTorch, nested lists."""

_Self = TypeVar("_Self", bound="_Session")


def _expect_state(state: bytes | None) -> None:
    if state is None:
        return
    if not isinstance(state, bytes):
        raise ArgumentError(f"saved state: expected the bytes that `save` gave, or None, found a {type(state).__name__}")
    if len(state) == 0:
        raise SavedStateError("saved state: expected the bytes that `save` gave, or None, found no bytes")


class _Pending:
    """An operation that gives something once: who waits for it may be cancelled, and the next who asks gets what it gave."""

    def __init__(self) -> None:
        self._operation: _Operation | None = None

    async def result(self, start: Callable[[], _Operation]) -> Any:
        left = self._operation
        if left is not None:
            try:
                made = await self._wait(left)
            except CancelledError:
                made = None  # its event loop was closed
            if made is not None:
                return made
        # One that was left behind knows nothing of what began since.
        self._operation = start()
        return await self._wait(self._operation)

    async def _wait(self, operation: _Operation) -> Any:
        try:
            return await ended(operation)
        finally:
            if operation.ended:
                self._operation = None


class _Session:
    """The interface of a live sequence, wherever the sequence runs."""

    def __init__(self) -> None:
        self._saying = asyncio.Lock()

    async def _open(self) -> None:
        raise NotImplementedError

    async def push(self, rows: Rows = None, /, **named: Rows) -> None:
        """Rows of the input, any number: `push(rows)`, or by name, `push(x=rows, y=more)`. Done when all of them are queued.

        Of a program with inner sequences: lists of sequences, or a LoDTensor, open and close them around their rows.
        """
        raise NotImplementedError

    async def next(self) -> dict[str, Tensor] | None:
        """The results that are there and were not taken, at least one row: a Tensor [n, …] for each output by name. None at the end of the sequence.

        Results are never lost: those of a `next` that was cancelled are given by the one behind it.
        """
        raise NotImplementedError

    async def open_level(self, level: int = 1) -> None:
        """An inner sequence of this level begins."""
        raise NotImplementedError

    async def close_level(self, level: int = 1) -> None:
        """The inner sequence of this level ends."""
        raise NotImplementedError

    async def flush(self) -> int:
        """Waits until nothing more can be answered of what was pushed; gives the number of steps since the start or the last `reset`."""
        raise NotImplementedError

    async def reset(self) -> None:
        """Ends the sequence, answers each of its steps, and begins it anew."""
        raise NotImplementedError

    async def save(self) -> bytes:
        """The state of the sequence behind all that was pushed and can be answered, sealed: `model.session(state=…)` and `mr.connect(url, state=…)` go on
        from it, to the same bits, where the program and the `state_key` are the same. The session itself goes on, too."""
        raise NotImplementedError

    async def finish(self) -> None:
        """No row follows. The results that are left come by `next`, then None."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The session is over at once: whoever waits for it gets CancelledError (of this library)."""
        raise NotImplementedError

    def _fail(self, reason: str) -> None:
        """The same; `reason` is the message of the CancelledError."""
        raise NotImplementedError

    async def feed(self, source: Any) -> None:
        """Pushes what `source` gives, an iterator or an asynchronous one, and finishes. Beside `async for`, as a task of its own, where more is pushed
        than the session's queues hold.

        An error of `source`, or of rows that do not fit, cancels the session, so that its reader waits no longer: the reader gets a CancelledError (of this
        library) that names the error, and `feed` raises the error itself."""
        try:
            if hasattr(source, "__aiter__"):
                async for rows in source:
                    await self.push(rows)
            else:
                for rows in source:
                    await self.push(rows)
        except (CancelledError, ClosedError, LiveError, ProtocolError):  # ends of the session, of which its reader knows
            raise
        except Exception as error:
            self._fail(f"live session: the session was cancelled: its feed ended with {type(error).__name__}: {error}")
            raise
        await self.finish()

    async def __aenter__(self: _Self) -> _Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[dict[str, Tensor]]:
        return self

    async def __anext__(self) -> dict[str, Tensor]:
        rows = await self.next()
        if rows is None:
            raise StopAsyncIteration
        return rows


class LiveSession(_Session):
    """One live sequence of a LiveModel: rows go in as they arrive, results come out as they are made.

        async with model.session() as session:
            await session.push(rows)
            async for made in session:
                made["y"]

    What is pushed and results that nobody takes wait in queues that are bounded: who pushes more than they hold takes results meanwhile, in another task
    or by turns. Several tasks may use one session: what they say takes effect one after the other. Leaving the `async with` cancels the session.
    """

    def __init__(self, model: LiveModel, name: str, given: Mapping[str, Any], state: bytes | None) -> None:
        super().__init__()
        _expect_state(state)
        self._model, self._name, self._given, self._state = model, name, given, state
        self._core: _LiveSession | None = None
        self._forked = False
        self._said: _Operation | None = None
        self._speakers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits: set[Any] = set()

    async def _open(self) -> None:
        if self._forked:
            self._forked = False
            return
        if self._core is not None:
            raise ArgumentError("live session: expected one that was not opened yet; model.session() makes another")
        self._loop, self._waits = asyncio.get_running_loop(), waits()
        self._core = await ended_or_cancelled(self._model._core.open(side(), self._name, dict(self._given), self._state))

    def _opened(self) -> _LiveSession:
        if self._core is None:
            raise ArgumentError("live session: expected an open one: async with model.session() as session")
        return self._core

    @property
    def id(self) -> int:
        """The number of the session among those of its model; never used twice."""
        return self._opened().id

    @property
    def steps(self) -> int:
        """Steps that have a result."""
        return self._opened().steps

    async def _say(self, start: Callable[[], _Operation]) -> Any:
        self._speakers += 1
        try:
            async with self._saying:
                if self._said is not None and not self._said.ended:
                    try:  # one that was cancelled still comes to its end
                        await ended(self._said)
                    except Exception:
                        pass
                self._said = start()
                return await ended_or_cancelled(self._said)
        finally:
            self._speakers -= 1

    async def push(self, rows: Rows = None, /, **named: Rows) -> None:
        core = self._core or self._opened()
        if self._speakers or not (queued := core.try_push(rows, named)):
            await self._push_slowly(core, rows, named)
        elif queued is not True:  # what the other tasks that are due now push goes into the same step
            asyncio.get_running_loop().call_soon(queued.end)

    async def _push_slowly(self, core: _LiveSession, rows: Rows, named: dict[str, Rows]) -> None:
        await self._say(lambda: core.push(side(), rows, named))

    def next(self) -> Coroutine[Any, Any, dict[str, Tensor] | None]:
        return (self._core or self._opened()).next(self._loop, self._waits, False)

    def __anext__(self) -> Coroutine[Any, Any, dict[str, Tensor]]:
        return (self._core or self._opened()).next(self._loop, self._waits, True)

    async def open_level(self, level: int = 1) -> None:
        core = self._opened()
        await self._say(lambda: core.open_level(side(), level))

    async def close_level(self, level: int = 1) -> None:
        core = self._opened()
        await self._say(lambda: core.close_level(side(), level))

    async def flush(self) -> int:
        core = self._opened()
        steps: int = await self._say(lambda: core.flush(side()))
        return steps

    async def reset(self) -> None:
        core = self._opened()
        await self._say(lambda: core.reset(side()))

    async def save(self) -> bytes:
        core = self._opened()
        state: bytes = await self._say(lambda: core.save(side()))
        return state

    async def fork(self) -> LiveSession:
        """A second session that goes on from where this one stands; its results begin there. It is open: `async with await session.fork() as other`."""
        core = self._opened()
        made = LiveSession(self._model, self._name, {}, None)
        made._loop, made._waits = self._loop, self._waits
        made._core, made._forked = await self._say(lambda: core.fork(side())), True
        return made

    async def finish(self) -> None:
        core = self._opened()
        await self._say(lambda: core.finish(side()))

    def cancel(self) -> None:
        if self._core is not None:
            self._core.cancel()

    def _fail(self, reason: str) -> None:
        self._opened().fail(reason)

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self._core is not None:
            self._core.close()


class LiveBatch(NamedTuple):
    """Results that became ready for some sessions of a model."""

    ids: list[int]
    """Whose rows they are."""
    outputs: dict[str, LoDTensor]
    """The rows of ids[0], then those of ids[1], …: a sequence for each."""
    ended: list[int]
    """Sessions all of whose results have been given now."""
    failed: list[tuple[int, Exception]]
    """Likewise, and why there will be no more."""


class _Live:
    """The base of LiveModel and Server: a program that is kept live."""

    _core: _LiveModel | _Server

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that take rows: names, with the type of one row, such as 'f32[40]'."""
        return self._core.inputs

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs that results hold: names, with the type of one row."""
        return self._core.outputs

    @property
    def levels(self) -> int:
        """Levels of sequences; in a session the levels 1 … levels - 1 open and close."""
        return self._core.levels

    @property
    def live_sessions(self) -> int:
        """Sessions that are not over."""
        return self._core.live_sessions

    @property
    def stats(self) -> dict[str, int]:
        """Ticks (batches of steps of sessions) so far, rows in them, and the largest."""
        return self._core.stats

    def __str__(self) -> str:
        """A text that lists the states of the model, and the inputs and outputs of each step."""
        return str(self._core)


def _arguments(
    threads: int,
    backend: str,
    states: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    rows: Mapping[str, Sequence[int]] | None,
    max_rows: int,
    sessions: int,
    state_key: bytes | None,
) -> dict[str, Any]:
    """The arguments that a LiveModel and a Server share, for the side of C++."""
    extents = {name: list(row) for name, row in (rows or {}).items()}
    return {
        "threads": threads,
        "backend": backend,
        "states": dict(states or {}),
        "constants": dict(constants or {}),
        "rows": extents,
        "max_rows": max_rows,
        "sessions": sessions,
        "state_key": state_key,
    }


class LiveModel(_Live):
    """A program over sequences that are still arriving: any number of live sessions, whose steps are batched as they become ready.

    A sequence has the bits of one run of the whole, however its rows were cut and whoever shared its steps. UnsupportedError names the operation that
    keeps a program from being fed live (a reversed RNN, a pooling to the end, …).

    program:  over whole sequences (inputs with lod=1), or of one step with `states`
    threads:  how many one operation may split over; results do not depend on it
    states:   of a program that is one step already: {input: output} of each state
    constants, rows: inputs that never change; extents of one row of a live input that the program leaves open
    max_rows: of one step of all sessions; sessions: that live at once
    queued_in, queued_out: bytes of each input of a session that wait for their step, and of its results that wait to be taken
    state_key: the secret (32 bytes or more) by which models and servers know the states that `save` gave; default: one of this model's own
    """

    _core: _LiveModel

    def __init__(
        self,
        program: Program,
        *,
        threads: int = 1,
        backend: str = "auto",
        states: Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
        rows: Mapping[str, Sequence[int]] | None = None,
        max_rows: int = 4096,
        sessions: int = 65536,
        queued_in: int = 256 << 10,
        queued_out: int = 256 << 10,
        state_key: bytes | None = None,
    ) -> None:
        self._core = _LiveModel(program, _arguments(threads, backend, states, constants, rows, max_rows, sessions, state_key), queued_in, queued_out)
        self._reading = asyncio.Lock()
        self._pending = _Pending()

    def session(self, name: str = "", given: Mapping[str, Any] | None = None, state: bytes | None = None) -> LiveSession:
        """A new sequence: `async with model.session() as session`. `name`: what errors call it; `given`: values that the program takes at the start, such
        as a first state; those left out are zeros. `state`: what `save` gave, from which the sequence goes on instead."""
        return LiveSession(self, name, given or {}, state)

    async def push(self, sessions: Sequence[LiveSession | int], rows: Rows = None, /, **named: Rows) -> None:
        """Rows of several sessions in one call: a list with an element for each, or a LoDTensor of as many sequences. Done when all are queued."""
        for one in sessions:
            if not isinstance(one, int) and one._model is not self:
                raise ArgumentError(f"push: expected sessions of this model, found '{one._name}' of another")
        ids = [one if isinstance(one, int) else one.id for one in sessions]
        try:
            await ended_or_cancelled(self._core.push(side(), ids, rows, named))
        except (ArgumentError, CancelledError):
            for one in sessions:
                if not isinstance(one, int):
                    one._opened().expect_open()
            raise

    async def next(self) -> LiveBatch | None:
        """The next results of any session: at least one row, end or failure. None when no session is left. Results are given once: here, or by the
        session's own `next`."""
        async with self._reading:
            made = await self._pending.result(lambda: self._core.next(side()))
            return None if made is None else LiveBatch(*made)


class LiveProgram:
    """One run of any program, also of one that is no recurrence, over slots that are still arriving.

    The inputs that are arrays (`mr.TensorArray.input`) and that are not fed from the start are open: `push` appends a slot to one that the program
    reads, and `next` gives the slots of one that it writes, as they are written. `window`, `output_window`: how many slots wait unread before `push`, or
    the program, waits (0: any number, and all stay readable). `async with` cancels the run at its end.
    """

    def __init__(self, program: Program, feeds: Mapping[str, Any] | None = None, /, *, window: int = 0, output_window: int = 0, **named: Any) -> None:
        self._core = _LiveProgram(program, window, output_window, {**(feeds or {}), **named})
        self._next: dict[str, _Pending] = {}
        self._over: Exception | None = None

    async def push(self, input: str, slot: Rows) -> None:
        """The next slot of a live input; done when it has room."""
        if self._over is not None:
            self._core.expect_input(input)
            raise self._over
        await ended_or_cancelled(self._core.push(side(), input, slot))

    async def next(self, output: str) -> Tensor | LoDTensor | None:
        """The next slot of an array that the program writes; None when there will be none. One reader an array."""
        pending = self._next.setdefault(output, _Pending())
        slot: Tensor | LoDTensor | None = await pending.result(lambda: self._core.next(side(), output))
        return slot

    async def slots(self, output: str) -> AsyncIterator[Tensor | LoDTensor]:
        """The slots of an array that the program writes: `async for slot in live.slots('y')`."""
        while (slot := await self.next(output)) is not None:
            yield slot

    def finish(self) -> None:
        """No further slot of any live input."""
        self._core.finish()
        self._over = self._over or ClosedError("live program: the program is finished: no slot follows `finish`")

    async def result(self) -> Result:
        """The outputs of the program, once it has ended; its error."""
        made: Result = await ended_or_cancelled(self._core.result(side()))
        return made

    def cancel(self) -> None:
        """The run ends at its next step."""
        self._core.cancel()
        self._over = self._over or CancelledError("live program: the program was cancelled")

    async def __aenter__(self) -> LiveProgram:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._over = ClosedError("live program: the program is closed: its `async with` was left")
        self.cancel()


# ---- Over a network ----


class Served(NamedTuple):
    """A model among several of a Server, with what is its own; the arguments are as Server has them."""

    program: Program
    states: Mapping[str, str] | None = None
    constants: Mapping[str, Any] | None = None
    rows: Mapping[str, Sequence[int]] | None = None
    config: str | os.PathLike[str] | None = None


class Server(_Live):
    """Serves a program to live sessions over TCP and WebSocket (docs/protocol.md). It listens when it is made.

        async with mr.Server(program, port=0) as server:
            print(server.port)
            await server.stopped()

    The network has one thread of the library for all servers and connections of the process, which ends with the last of them. Leaving the
    `async with` drains the server and waits for its end; its threads have ended then. Any number of servers, each with models of its own.

    program: or several, by name: `mr.Server({"vad": vad, "words": mr.Served(words, config="words.toml")})`. A client names one (`mr.connect(url,
             model="words")`, ws://HOST:PORT/words); one that names none gets the first, whose inputs and outputs are those of this object
    port:    0 takes a free one; address: another than a loopback address takes TLS and tokens, or `insecure`
    config:  a TOML file beside the model (audio, states, labels)
    idle:    seconds of silence that end a session; resume: seconds that a session which lost its connection waits for its ticket
    origins: of browsers that may connect
    tls_cert, tls_key: PEM files of the certificate and of its private key: clients come by tcps:// and wss://
    tokens:  a client shows one of them: 16 to 128 characters of A-Z a-z 0-9 - . _ ~; token_file: a file with one a line
    capacity: steps a second that are admitted: a number, or 'measure' (a second of ticks); default: no bound
    session_rate: steps a second that a session is taken to need; default: those of the model's audio
    limits:  further bounds by name, such as {'sessions_per_address': 8, 'waiting_rows': 4096, 'handshake': 2.5} (bytes, counts, seconds)
    The others are as LiveModel has them.
    """

    _core: _Server

    def __init__(
        self,
        program: Program | Mapping[str, Program | Served],
        *,
        port: int = 0,
        address: str = "127.0.0.1",
        config: str | os.PathLike[str] | None = None,
        threads: int = 1,
        backend: str = "auto",
        states: Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
        rows: Mapping[str, Sequence[int]] | None = None,
        max_rows: int = 4096,
        sessions: int = 1024,
        idle: float = 60.0,
        resume: float = 0.0,
        origins: Sequence[str] = (),
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tokens: Sequence[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        capacity: float | Literal["measure"] | None = None,
        session_rate: float = 0.0,
        state_key: bytes | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(tokens, (str, bytes)):
            raise ArgumentError("serve: expected a list of tokens, found one text: token_file takes the name of a file")
        if isinstance(program, Mapping):
            if states or constants or rows or config:
                raise ArgumentError("serve: expected states, constants, rows and config of each model in its Served, found some beside several models")
            models = {name: one if isinstance(one, Served) else Served(one) for name, one in program.items()}
        else:
            models = {"default": Served(program, states, constants, rows, config)}
        self._models = list(models)
        self._core = _Server(
            [
                (name, one.program, _arguments(threads, backend, one.states, one.constants, one.rows, max_rows, sessions, state_key), _path(one.config) or "")
                for name, one in models.items()
            ],
            address,
            port,
            idle,
            list(origins),
            _path(tls_cert),
            _path(tls_key),
            None if tokens is None else list(tokens),
            _path(token_file),
            insecure,
            capacity,
            session_rate,
            resume,
            dict(limits or {}),
        )
        self._encrypted = tls_cert is not None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._core.address

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._core.port

    @property
    def models(self) -> list[str]:
        """The names of its models, the default first."""
        return list(self._models)

    @property
    def url(self) -> str:
        """For `mr.connect`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'tcps' if self._encrypted else 'tcp'}://{host}:{self.port}"

    @property
    def load(self) -> dict[str, float]:
        """Steps a second: the `capacity` that is held (0: not known), and those that the sessions are taken to ask for (`asked`)."""
        return self._core.load

    def reload(self) -> None:
        """Reads the certificate, its key and the file of tokens again, for connections from now on. After an error those in force stay."""
        self._core.reload()

    def drain(self) -> None:
        """Stops listening, answers what has arrived, tells every session that the server goes away, and closes. A second call closes at once."""
        self._core.drain()

    async def stopped(self) -> None:
        """Waits until everything is closed; raises the error by which the server stopped by itself."""
        await ended_or_cancelled(self._core.stopped(side()))

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.drain()
        try:
            await self.stopped()
        except asyncio.CancelledError:
            self.drain()
            raise


def _path(name: str | os.PathLike[str] | None) -> str | None:
    return None if name is None else os.fspath(name)


async def serve(program: Program | Mapping[str, Program | Served], *, port: int = 0, started: Callable[[Server], object] | None = None, **options: Any) -> None:
    """Serves a program, or several by name, until the task is cancelled, then drains: `task = asyncio.create_task(mr.serve(program, port=8080))`.

    `started` is called with the Server once it listens; `options` are those of Server. The errors of Server, and the one by which a server stops by
    itself, are those of the task.
    """
    async with Server(program, port=port, **options) as server:
        if started is not None:
            started(server)
        await server.stopped()


class _Port(NamedTuple):
    name: str
    dtype: DType
    row: list[int]
    level: int | None


def _ports(told: list[dict[str, Any]]) -> list[_Port]:
    return [_Port(one["name"], DType[one["dtype"]], list(one["shape"]), one.get("level")) for one in told]


class RemoteSession(_Session):
    """A live sequence on a server: `async with mr.connect(url) as session`. It is used as a LiveSession is.

    An audio input takes samples, in the format that `inputs` tells.
    """

    _MOST_BYTES = 256 << 10  # of results that wait to be taken, before no more is read, and of rows that are written at once

    def __init__(
        self,
        url: str,
        outputs: Sequence[str] | None,
        given: Mapping[str, Any] | None,
        name: str,
        state: bytes | None,
        model: str,
        access: tuple[str, str, bool],
    ) -> None:
        super().__init__()
        _expect_state(state)
        self._url, self._access = url, access
        start: dict[str, Any] = {"type": "start", "version": 1, "reply": "binary"}
        if name:
            start["session"] = name
        if outputs is not None:
            start["outputs"] = list(outputs)
        if given:
            start["given"] = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in given.items()}
        if model:
            start["model"] = model
        if state is not None:
            start["state"] = base64.b64encode(state).decode()
        self._start = start
        self._connection: _Connection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._inputs: list[_Port] = []
        self._outputs: list[_Port] = []
        self._results: list[tuple[str, memoryview]] = []
        self._waiting = 0
        self._news = asyncio.Condition()
        self._answers: collections.deque[asyncio.Future[dict[str, Any]]] = collections.deque()
        self._over = False
        self._finished = self._closed = False
        self._error: Exception | None = None
        self.segments: list[dict[str, Any]] = []
        """Labelled spans of time that the server told, where its model has labels."""

    async def _open(self) -> None:
        if self._connection is not None or self._error is not None:
            raise ArgumentError("connect: expected a session that was not opened yet")
        connection: _Connection = await ended_or_cancelled(_connect(side(), self._url, *self._access))
        self._connection = connection
        try:
            await self._write_text(self._start)
            text, payload = await ended_or_cancelled(connection.read(side()))
            told = json.loads(payload) if text else {}
            if told.get("type") == "error":
                raise _refusal(told)
            if told.get("type") != "started":
                raise ProtocolError(f"{self._url}: expected the server's 'started', found {payload[:80]!r}")
        except BaseException:
            connection.abort()
            raise
        self._inputs, self._outputs = _ports(told["inputs"]), _ports(told["outputs"])
        self._reader = asyncio.ensure_future(self._read())

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs of the server: names, with the type of one row."""
        return {port.name: f"{port.dtype.name}{port.row}" for port in self._inputs}

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of the server: names, with the type of one row."""
        return {port.name: f"{port.dtype.name}{port.row}" for port in self._outputs}

    def _opened(self) -> _Connection:
        if self._connection is None:
            raise ArgumentError("connect: expected an open session: async with mr.connect(url) as session")
        return self._connection

    async def _write_text(self, message: dict[str, Any]) -> None:
        # Not cut off in the middle of a message when the task is cancelled.
        await asyncio.shield(ended(self._opened().write_text(side(), json.dumps(message))))

    async def _say(self, message: dict[str, Any]) -> None:
        async with self._saying:
            self._goes_on()
            await self._write_text(message)

    def _goes_on(self) -> None:
        self._expect_open()
        if self._error is not None:
            raise self._error
        if self._finished:
            raise ClosedError("live session: the session is finished: only `next` follows `finish`")

    def _expect_open(self) -> None:
        if not self._closed:
            self._opened()
        elif self._error is None or isinstance(self._error, CancelledError):
            raise ClosedError("live session: the session is closed: its `async with` was left")

    async def push(self, rows: Rows = None, /, **named: Rows) -> None:
        self._goes_on()
        names = [port.name for port in self._inputs]
        if rows is not None:
            if len(names) != 1:
                raise ArgumentError(f"live session: expected rows by name for {len(names)} inputs, found rows alone")
            named = {names[0]: rows, **named}
        if not named:
            raise ArgumentError("live session: expected rows, found none")
        arriving: list[tuple[bytes, Tensor]] = []
        for name, fed in named.items():
            if name not in names:
                raise ArgumentError(f"live session: expected rows of {', '.join(names)}, found '{name}'")
            port = self._inputs[names.index(name)]
            head = b"" if len(names) == 1 else bytes([len(name.encode())]) + name.encode()
            arriving.append((head, _rows_of(fed, name, port.dtype, port.row)))
        async with self._saying:
            self._goes_on()
            connection = self._opened()
            for head, data in arriving:
                for at in range(0, data.nbytes, self._MOST_BYTES):
                    await asyncio.shield(ended(connection.write_rows(side(), head, data, at, self._MOST_BYTES)))

    async def open_level(self, level: int = 1) -> None:
        await self._say({"type": "open", "level": level})

    async def close_level(self, level: int = 1) -> None:
        await self._say({"type": "close", "level": level})

    async def _ask(self, what: str) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        async with self._saying:
            self._goes_on()
            self._answers.append(answer)
            await self._write_text({"type": what})
        return await answer

    async def flush(self) -> int:
        return int((await self._ask("flush"))["steps"])

    async def save(self) -> bytes:
        return base64.b64decode((await self._ask("save"))["state"])

    async def reset(self) -> None:
        await self._ask("reset")

    async def finish(self) -> None:
        await self._say({"type": "end"})
        self._finished = True

    def cancel(self) -> None:
        if self._connection is not None:
            self._connection.abort()
        if self._reader is not None:
            self._reader.cancel()
        if not self._over and self._error is None:
            self._error = CancelledError("live session: the session was cancelled")
        for answer in self._answers:
            if not answer.done():
                answer.cancel()

    def _fail(self, reason: str) -> None:
        if not self._over and self._error is None:
            self._error = CancelledError(reason)
        self.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.cancel()
        self._closed = True
        try:
            if self._reader is not None:
                await asyncio.wait([self._reader])
        finally:
            self._connection = None

    async def next(self) -> dict[str, Tensor] | None:
        if not self._results and not self._over:
            self._expect_open()
        async with self._news:
            await self._news.wait_for(lambda: self._results or self._over or self._error is not None)
            if not self._results:
                if self._error is not None:
                    raise self._error
                return None
            results, self._results, self._waiting = self._results, [], 0
            self._news.notify_all()
        made: dict[str, Tensor] = {}
        for port in self._outputs:
            pieces = [rows for name, rows in results if name == port.name]
            row = port.dtype.itemsize
            for extent in port.row:
                row *= extent
            count = sum(map(len, pieces)) // row if row else len(pieces)
            if count or port.level is None:
                made[port.name] = _tensor_of(port.dtype, [count, *port.row], pieces)
        return made

    async def _read(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            while not self._over:
                text, payload = await ended(connection.read(side()))
                async with self._news:
                    if text:
                        self._hear(json.loads(payload))
                    else:
                        self._results += _outputs_of(payload)
                        self._waiting += len(payload)
                    self._news.notify_all()
                    await self._news.wait_for(lambda: self._waiting < self._MOST_BYTES or bool(self._answers))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._error = self._error or error
        finally:
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(self._error) if self._error is not None else answer.cancel()
            self._answers.clear()
            async with self._news:
                self._news.notify_all()

    def _hear(self, told: dict[str, Any]) -> None:
        kind = told.get("type")
        if kind in ("flushed", "reset", "saved") and self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(told)
        elif kind == "segment":
            self.segments.append(told)
        elif kind == "ended":
            self._over = True
        elif kind == "error":
            raise _refusal(told)
        else:
            raise ProtocolError(f"{self._url}: found a message of the unknown type {kind!r}")


def _refusal(told: Mapping[str, Any]) -> ProtocolError:
    error = ProtocolError(str(told.get("message", "the server refused")))
    error.code = str(told.get("code", "failed"))
    error.retry_after_ms = told.get("retry_after_ms")
    error.state = base64.b64decode(told["state"]) if "state" in told else None
    return error


def _outputs_of(payload: bytes) -> list[tuple[str, memoryview]]:
    """The outputs of a binary result, as docs/protocol.md has it, without a copy of their rows."""
    whole, made, at = memoryview(payload), [], 13
    for _ in range(payload[12]):
        size = payload[at]
        name = payload[at + 1 : at + 1 + size].decode()
        at += 1 + size
        (count,) = struct.unpack_from("<I", payload, at)
        made.append((name, whole[at + 4 : at + 4 + count]))
        at += 4 + count
    return made


def connect(
    url: str,
    *,
    outputs: Sequence[str] | None = None,
    given: Mapping[str, Any] | None = None,
    name: str = "",
    state: bytes | None = None,
    model: str = "",
    token: str = "",
    tls_ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
) -> RemoteSession:
    """A live sequence on a server, tcp://HOST:PORT or ws://HOST:PORT/stream, with TLS tcps:// and wss://: `async with mr.connect(url) as session`.

    outputs: those that results hold; default: all. given: values that the program takes at the start. name: a label for the server's log.
    state:   what `save`, or a ProtocolError of a server that goes away, gave: the sequence goes on from it
    model:   which one of the server's; default: that of the address ws://HOST:PORT/NAME, else the server's first
    token:   that the server is shown
    tls_ca:  PEM file of the authorities that may have given the server's certificate; default: the system's
    insecure: trusts any certificate, and lets the token go to another machine without TLS
    ProtocolError says why the server ended the session: `code`, `retry_after_ms` for a server that is full, and `state` where it goes away.
    """
    return RemoteSession(url, outputs, given, name, state, model, (token, _path(tls_ca) or "", insecure))
