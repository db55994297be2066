# SPDX-License-Identifier: Apache-2.0
"""Sequences that are still arriving: live models and sessions in a process, a server for them, and its client. For asyncio."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import struct
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping, NamedTuple, Sequence, TypeVar

from ._async import ended, ended_or_cancelled, side
from ._core import (
    ArgumentError,
    CancelledError,
    DType,
    LoDTensor,
    Program,
    ProtocolError,
    Result,
    Tensor,
    _bytes_of,
    _connect,
    _Connection,
    _LiveModel,
    _LiveProgram,
    _LiveSession,
    _Operation,
    _Server,
    _tensor_of,
)

__all__ = ["LiveBatch", "LiveModel", "LiveProgram", "LiveSession", "RemoteSession", "Server", "connect", "serve"]

Rows = Any
"""Rows of an input: a Tensor, a LoDTensor, an array of NumPy or PyTorch, nested lists."""

_Self = TypeVar("_Self", bound="_Session")


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
        self._reading = asyncio.Lock()
        self._left = False

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

    async def finish(self) -> None:
        """No row follows. The results that are left come by `next`, then None."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The session is over at once: whoever waits for it gets CancelledError (of this library)."""
        raise NotImplementedError

    async def feed(self, source: Any) -> None:
        """Pushes what `source` gives, an iterator or an asynchronous one, and finishes. Beside `async for`, as a task of its own, where more is pushed
        than the session's queues hold."""
        if hasattr(source, "__aiter__"):
            async for rows in source:
                await self.push(rows)
        else:
            for rows in source:
                await self.push(rows)
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

    def __init__(self, model: LiveModel, name: str, given: Mapping[str, Any]) -> None:
        super().__init__()
        self._model, self._name, self._given = model, name, given
        self._core: _LiveSession | None = None
        self._said: _Operation | None = None
        self._pending = _Pending()

    async def _open(self) -> None:
        if self._core is not None:
            raise ArgumentError("live session: expected one that was not opened yet; model.session() makes another")
        self._core = await ended_or_cancelled(self._model._core.open(side(), self._name, dict(self._given)))

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
        async with self._saying:
            if self._said is not None and not self._said.ended:
                try:  # one that was cancelled still comes to its end
                    await ended(self._said)
                except Exception:
                    pass
            self._said = start()
            return await ended_or_cancelled(self._said)

    async def push(self, rows: Rows = None, /, **named: Rows) -> None:
        core = self._opened()
        await self._say(lambda: core.push(side(), rows, named))

    async def next(self) -> dict[str, Tensor] | None:
        core = self._opened()
        async with self._reading:
            rows: dict[str, Tensor] | None = await self._pending.result(lambda: core.next(side()))
            return rows

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

    async def finish(self) -> None:
        core = self._opened()
        await self._say(lambda: core.finish(side()))

    def cancel(self) -> None:
        if self._core is not None:
            self._core.cancel()


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


class LiveModel:
    """A program over sequences that are still arriving: any number of live sessions, whose steps are batched as they become ready.

    A sequence has the bits of one run of the whole, however its rows were cut and whoever shared its steps. UnsupportedError names the operation that
    keeps a program from being fed live (a reversed RNN, a pooling to the end, …).

    program:  over whole sequences (inputs with lod=1), or of one step with `states`
    threads:  how many one operation may split over; results do not depend on it
    states:   of a program that is one step already: {input: output} of each state
    constants, rows: inputs that never change; extents of one row of a live input that the program leaves open
    max_rows: of one step of all sessions; sessions: that live at once
    queued_in, queued_out: bytes of each input of a session that wait for their step, and of its results that wait to be taken
    """

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
    ) -> None:
        extents = {name: list(row) for name, row in (rows or {}).items()}
        self._core = _LiveModel(program, threads, backend, max_rows, sessions, queued_in, queued_out, dict(states or {}), dict(constants or {}), extents)
        self._reading = asyncio.Lock()
        self._pending = _Pending()

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

    def session(self, name: str = "", given: Mapping[str, Any] | None = None) -> LiveSession:
        """A new sequence: `async with model.session() as session`. `name`: what errors call it; `given`: values that the program takes at the start, such
        as a first state; those left out are zeros."""
        return LiveSession(self, name, given or {})

    async def push(self, sessions: Sequence[LiveSession | int], rows: Rows = None, /, **named: Rows) -> None:
        """Rows of several sessions in one call: a list with an element for each, or a LoDTensor of as many sequences. Done when all are queued."""
        ids = [one if isinstance(one, int) else one.id for one in sessions]
        await ended_or_cancelled(self._core.push(side(), ids, rows, named))

    async def next(self) -> LiveBatch | None:
        """The next results of any session: at least one row, end or failure. None when no session is left. Results are given once: here, or by the
        session's own `next`."""
        async with self._reading:
            made = await self._pending.result(lambda: self._core.next(side()))
            return None if made is None else LiveBatch(*made)

    def __str__(self) -> str:
        """A text that lists the states of the model, and the inputs and outputs of each step."""
        return str(self._core)


class LiveProgram:
    """One run of any program, also of one that is no recurrence, over slots that are still arriving.

    The inputs that are arrays (`mr.TensorArray.input`) and that are not fed from the start are open: `push` appends a slot to one that the program
    reads, and `next` gives the slots of one that it writes, as they are written. `window`, `output_window`: how many slots wait unread before `push`, or
    the program, waits (0: any number, and all stay readable). `async with` cancels the run at its end.
    """

    def __init__(self, program: Program, feeds: Mapping[str, Any] | None = None, /, *, window: int = 0, output_window: int = 0, **named: Any) -> None:
        self._core = _LiveProgram(program, window, output_window, {**(feeds or {}), **named})
        self._next: dict[str, _Pending] = {}

    async def push(self, input: str, slot: Rows) -> None:
        """The next slot of a live input; done when it has room."""
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

    async def result(self) -> Result:
        """The outputs of the program, once it has ended; its error."""
        made: Result = await ended_or_cancelled(self._core.result(side()))
        return made

    def cancel(self) -> None:
        """The run ends at its next step."""
        self._core.cancel()

    async def __aenter__(self) -> LiveProgram:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.cancel()


# ---- Over a network ----


class Server:
    """Serves a program to live sessions over TCP and WebSocket (docs/protocol.md), on threads of the library. It listens when it is made.

        async with mr.Server(program, port=0) as server:
            print(server.port)
            await server.stopped()

    port: 0 takes a free one; address: a loopback address; origins: of browsers that may connect
    config: a TOML file beside the model (audio, states, labels)
    idle:   seconds of silence that end a session
    The others are as LiveModel has them. Leaving the `async with` drains the server and waits for its end.
    """

    def __init__(
        self,
        program: Program,
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
        origins: Sequence[str] = (),
    ) -> None:
        path = "" if config is None else os.fspath(config)
        extents = {name: list(row) for name, row in (rows or {}).items()}
        self._core = _Server(
            program, address, port, path, threads, backend, max_rows, sessions, idle, list(origins), dict(states or {}), dict(constants or {}), extents
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._core.address

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._core.port

    @property
    def url(self) -> str:
        """For `mr.connect`."""
        return f"tcp://[{self.address}]:{self.port}" if ":" in self.address else f"tcp://{self.address}:{self.port}"

    @property
    def live_sessions(self) -> int:
        """Sessions that have started and are not over."""
        return self._core.live_sessions

    @property
    def stats(self) -> dict[str, int]:
        """Ticks (batches of steps of sessions) so far, rows in them, and the largest."""
        return self._core.stats

    def drain(self) -> None:
        """Stops listening, answers what has arrived, tells every session that the server goes away, and closes. A second call closes at once."""
        self._core.drain()

    async def stopped(self) -> None:
        """Waits until everything is closed."""
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


async def serve(program: Program, *, port: int = 0, started: Callable[[Server], object] | None = None, **options: Any) -> None:
    """Serves a program until the task is cancelled, then drains: `task = asyncio.create_task(mr.serve(program, port=8080))`.

    `started` is called with the Server once it listens; `options` are those of Server.
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

    _MOST_BYTES = 256 << 10  # of results that wait to be taken, before no more is read
    _PIECE = 64 << 10

    def __init__(self, url: str, outputs: Sequence[str] | None, given: Mapping[str, Any] | None, name: str) -> None:
        super().__init__()
        self._url = url
        start: dict[str, Any] = {"type": "start", "version": 1, "reply": "binary"}
        if name:
            start["session"] = name
        if outputs is not None:
            start["outputs"] = list(outputs)
        if given:
            start["given"] = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in given.items()}
        self._start = start
        self._connection: _Connection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._inputs: list[_Port] = []
        self._outputs: list[_Port] = []
        self._results: list[tuple[str, bytes]] = []
        self._steps = 0
        self._waiting = 0
        self._news = asyncio.Condition()
        self._answers: collections.deque[asyncio.Future[int]] = collections.deque()
        self._over = False
        self._error: Exception | None = None
        self.segments: list[dict[str, Any]] = []
        """Labelled spans of time that the server told, where its model has labels."""

    async def _open(self) -> None:
        if self._connection is not None:
            raise ArgumentError("connect: expected a session that was not opened yet")
        connection: _Connection = await ended_or_cancelled(_connect(side(), self._url))
        self._connection = connection
        try:
            await self._write(json.dumps(self._start).encode(), text=True)
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

    async def _write(self, *messages: bytes, text: bool) -> None:
        if self._connection is None:
            raise ArgumentError("connect: expected an open session: async with mr.connect(url) as session")
        # Not cut off in the middle of a message when the task is cancelled.
        await asyncio.shield(ended(self._connection.write(side(), [(text, one) for one in messages])))

    async def _say(self, message: dict[str, Any]) -> None:
        async with self._saying:
            self._goes_on()
            await self._write(json.dumps(message).encode(), text=True)

    def _goes_on(self) -> None:
        if self._error is not None:
            raise self._error
        if self._left:
            raise ArgumentError("live session: expected nothing after finish")

    async def push(self, rows: Rows = None, /, **named: Rows) -> None:
        names = [port.name for port in self._inputs]
        if rows is not None:
            if len(names) != 1:
                raise ArgumentError(f"live session: expected rows by name for {len(names)} inputs, found rows alone")
            named = {names[0]: rows, **named}
        if not named:
            raise ArgumentError("live session: expected rows, found none")
        messages: list[bytes] = []
        for name, fed in named.items():
            if name not in names:
                raise ArgumentError(f"live session: expected rows of {', '.join(names)}, found '{name}'")
            port = self._inputs[names.index(name)]
            data = _bytes_of(fed, name, port.dtype, port.row)
            head = b"" if len(names) == 1 else bytes([len(name.encode())]) + name.encode()
            messages += [head + data[at : at + self._PIECE] for at in range(0, len(data), self._PIECE)]
        async with self._saying:
            self._goes_on()
            for message in messages:
                await self._write(message, text=False)

    async def open_level(self, level: int = 1) -> None:
        await self._say({"type": "open", "level": level})

    async def close_level(self, level: int = 1) -> None:
        await self._say({"type": "close", "level": level})

    async def _ask(self, what: str) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with self._saying:
            self._goes_on()
            self._answers.append(answer)
            await self._write(json.dumps({"type": what}).encode(), text=True)
        return await answer

    async def flush(self) -> int:
        return await self._ask("flush")

    async def reset(self) -> None:
        await self._ask("reset")

    async def finish(self) -> None:
        await self._say({"type": "end"})
        self._left = True

    def cancel(self) -> None:
        if self._connection is not None:
            self._connection.abort()
        if self._reader is not None:
            self._reader.cancel()
        if not self._over and self._error is None:
            self._error = CancelledError("live session: it was cancelled")
        for answer in self._answers:
            if not answer.done():
                answer.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def next(self) -> dict[str, Tensor] | None:
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
            data = b"".join(rows for name, rows in results if name == port.name)
            row = port.dtype.itemsize
            for extent in port.row:
                row *= extent
            count = len(data) // row if row else sum(1 for name, _ in results if name == port.name)
            if count or port.level is None:
                made[port.name] = _tensor_of(port.dtype, [count, *port.row], data)
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
        if kind in ("flushed", "reset") and self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(int(told["steps"]))
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
    return error


def _outputs_of(payload: bytes) -> list[tuple[str, bytes]]:
    """The outputs of a binary result, as docs/protocol.md has it."""
    made, at = [], 13
    for _ in range(payload[12]):
        size = payload[at]
        name = payload[at + 1 : at + 1 + size].decode()
        at += 1 + size
        (count,) = struct.unpack_from("<I", payload, at)
        made.append((name, payload[at + 4 : at + 4 + count]))
        at += 4 + count
    return made


def connect(url: str, *, outputs: Sequence[str] | None = None, given: Mapping[str, Any] | None = None, name: str = "") -> RemoteSession:
    """A live sequence on a server, tcp://HOST:PORT or ws://HOST:PORT/stream: `async with mr.connect(url) as session`.

    outputs: those that results hold; default: all. given: values that the program takes at the start. name: a label for the server's log.
    ProtocolError says why the server ended the session: `code`, and `retry_after_ms` for a server that is full.
    """
    return RemoteSession(url, outputs, given, name)
