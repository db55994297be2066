# SPDX-License-Identifier: Apache-2.0
"""A client of `millrace serve` in one file, on the package `websockets` (docs/protocol.md), with or without numpy:

    async with connect("ws://localhost:8080/stream", token="…") as session:
        await session.send(rows)                     # bytes, or a numpy array in the input's dtype; pieces of any size
        await session.end()
        async for message in session:                # results, segments, …; the last is `ended`
            if message["type"] == "result":
                print(message["seq"], message["steps"], message["outputs"]["y"])

A result's outputs are numpy arrays of `steps` rows where numpy is installed, else bytes. An error that ends the session is raised as ProtocolError. A program that sends much
reads while it sends: the server stops reading a session whose results nobody takes.
"""
import json
import struct

import websockets

try:
    import numpy as np
except ImportError:
    np = None

DTYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i8": "i1", "u8": "u1", "bool": "?"}  # numpy has no bf16
MOST_MESSAGE = 1 << 19  # half of what a server takes


class ProtocolError(Exception):
    """An error that the server reported, or a broken connection: `code`, `retry_after_ms`, and `seq` of the first step without a result, or None."""

    def __init__(self, code, message, retry_after_ms=None, seq=None):
        super().__init__(f"{code}: {message}")
        self.code, self.retry_after_ms, self.seq = code, retry_after_ms, seq


class connect:
    """A session as a context: `model` is which one of the server's (none: that of the address, else the default), `start` are keys of the message of that name,
    `ssl` what websockets takes, as ssl.create_default_context(cafile=…)."""

    def __init__(self, url, *, token=None, ssl=None, model=None, **start):
        more = {} if ssl is None else {"ssl": ssl}
        if token is not None:
            more["additional_headers"] = {"Authorization": f"Bearer {token}"}
        if model is not None:
            start["model"] = model
        self._start = {"type": "start", "version": 1, "reply": "binary", **start}
        self._connecting = websockets.connect(url, compression=None, max_size=None, **more)

    async def __aenter__(self):
        self._socket = await self._connecting.__aenter__()
        try:
            session = Session(self._socket)
            await self._socket.send(json.dumps(self._start))
            session.started = await session._receive()
            return session
        except BaseException:
            await self._socket.close()
            raise

    async def __aexit__(self, *failure):
        return await self._connecting.__aexit__(*failure)


class Session:
    """The session that `connect` gives. `started` lists the inputs and outputs of the server."""

    def __init__(self, socket):
        self._socket = socket
        self.started = None

    async def send(self, data, input=None):
        """Bytes of rows or samples, or an array in the input's dtype: rows, one row, or elements in a line. Nothing is converted: an array of another dtype or shape is a
        ValueError. `input` is needed where the server has several."""
        port = self._port(input)
        if np is not None and isinstance(data, np.ndarray):
            self._check(data, port)
        name = b""
        if len(self.started["inputs"]) > 1:
            name = port["name"].encode()
            name = bytes([len(name)]) + name
        raw = memoryview(data if np is None or not isinstance(data, np.ndarray) else np.ascontiguousarray(data).tobytes())
        for at in range(0, len(raw), MOST_MESSAGE):
            await self._send(name + bytes(raw[at : at + MOST_MESSAGE]))

    def _port(self, input):
        ports = self.started["inputs"]
        if input is None and len(ports) == 1:
            return ports[0]
        for port in ports:
            if port["name"] == input:
                return port
        found = "none" if input is None else repr(input)
        raise ValueError(f"send: expected one of the inputs {', '.join(one['name'] for one in ports)} as `input`, found {found}")

    @staticmethod
    def _check(data, port):
        sound = {"s16": "<i2", "f32": "<f4"}.get(port.get("format"))
        expected = sound or DTYPES.get(port["dtype"])
        if data.dtype != np.dtype(expected) if expected else data.dtype.itemsize != 2:  # bf16 has no dtype of numpy's own
            raise ValueError(f"send: expected an array of {np.dtype(expected) if expected else port['dtype']} for the input {port['name']!r}, found {data.dtype}")
        row = ([port["channels"]] if port["channels"] > 1 else []) if sound else port["shape"]
        if data.ndim > 1 and list(data.shape) != list(row) and list(data.shape[1:]) != list(row):
            raise ValueError(f"send: expected rows of shape {list(row)} for the input {port['name']!r}, found an array of shape {list(data.shape)}")

    async def end(self):
        await self._say("end")

    async def flush(self):
        await self._say("flush")

    async def reset(self):
        await self._say("reset")

    async def open(self, level):
        await self._say("open", level=level)

    async def close(self, level):
        await self._say("close", level=level)

    def __aiter__(self):
        return self._messages()

    async def _messages(self):
        while True:
            message = await self._receive()
            yield message
            if message["type"] == "ended":
                return

    async def _say(self, kind, **more):
        await self._send(json.dumps({"type": kind, **more}))

    async def _send(self, data):
        try:
            await self._socket.send(data)
        except websockets.ConnectionClosed:
            pass  # a server that ended the session said why: whoever reads finds it

    async def _receive(self):
        try:
            data = await self._socket.recv()
        except websockets.ConnectionClosed as closed:
            raise ProtocolError("lost", f"the connection closed: {closed}") from None
        message = json.loads(data) if isinstance(data, str) else self._result(data)
        if message["type"] == "error":
            raise ProtocolError(message["code"], message["message"], message.get("retry_after_ms"), message.get("seq"))
        return message

    def _result(self, data):
        seq, steps, outputs = struct.unpack_from("<QIB", data)
        result = {"type": "result", "seq": seq, "steps": steps, "outputs": {}}
        at = 13
        for _ in range(outputs):
            length = data[at]
            name = data[at + 1 : at + 1 + length].decode()
            (size,) = struct.unpack_from("<I", data, at + 1 + length)
            at += 5 + length
            port = next(one for one in self.started["outputs"] if one["name"] == name)
            result["outputs"][name] = self._rows(data[at : at + size], port, steps)
            if "level" in port:
                result["level"] = port["level"]
            at += size
        return result

    @staticmethod
    def _rows(raw, port, steps):
        if np is None or port["dtype"] not in DTYPES:
            return raw
        return np.frombuffer(raw, DTYPES[port["dtype"]]).reshape([steps, *port["shape"]])
