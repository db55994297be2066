# SPDX-License-Identifier: Apache-2.0
"""apps/clients/millrace_client.py against a server: rows in random pieces, with and without a token, over TLS where openssl is there, give the bits of `millrace run` on the
whole; refusals are raised by their code. And the page is served with what it loads. Prints the seed; MILLRACE_SEED runs one."""
import asyncio
import os
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.request

try:
    import numpy as np
    import websockets
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "apps", "clients"))

from live_client_test import FEATURES, model, whole
from millrace_client import ProtocolError, Session, connect
from oracle import MILLRACE, need, seeds
from serving import Server, make_certificate

TOKEN = "the-token-of-this-test"


async def results(url, rows, cuts, **how):
    """The rows of output y, in order."""
    got = []
    async with connect(url, **how) as session:
        assert session.started["inputs"][0]["shape"][-1] == FEATURES

        async def send():
            raw = rows.tobytes()
            for begin, end in zip([0, *cuts], [*cuts, len(raw)]):
                await session.send(raw[begin:end])
            await session.end()

        sending = asyncio.create_task(send())
        async for message in session:
            if message["type"] == "result":
                assert message["seq"] == sum(len(part) for part in got)
                got.append(message["outputs"]["y"])
        assert message == {"type": "ended", "steps": len(rows)}
        await sending
    return np.concatenate(got) if got else np.zeros((0, 1, 64), "f4")


async def refused(url, **how):
    try:
        async with connect(url, **how) as session:
            await session.end()
            async for _ in session:
                pass
    except ProtocolError as error:
        return error.code
    except websockets.InvalidStatus as error:
        return error.response.status_code
    return None


def check_sequences(seed, folder, path):
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((int(n), FEATURES)).astype("f4") for n in (0, 1, *rng.integers(2, 200, 3))]
    cuts = [np.sort(rng.integers(0, r.nbytes + 1, int(rng.integers(0, 20)))).tolist() for r in rows]

    async def all_at_once(url):
        return await asyncio.gather(*(results(url, r, c) for r, c in zip(rows, cuts)))

    with Server(path) as server:
        for i, got in enumerate(asyncio.run(all_at_once(server.url()))):
            if len(rows[i]):
                assert got.tobytes() == whole(folder, path, rows[i], i).tobytes(), f"session {i} has other bits than the whole"
        assert asyncio.run(refused(server.url(), outputs=["absent"])) == "bad_input"
        assert asyncio.run(refused(server.url()[:-1])) == 404


def check_arrays(folder, path):
    """Arrays of the input's dtype and shape are rows, and others are refused before anything is sent."""
    rows = np.random.default_rng(1).standard_normal((7, 1, FEATURES)).astype("f4")

    async def talk(url):
        async with connect(url) as session:
            refusals = []
            for wrong in (rows.astype("f8"), rows.astype(">f4"), rows.reshape(1, FEATURES, 7), rows.view("i4")):
                try:
                    await session.send(wrong)
                except ValueError as error:
                    refusals.append(str(error))
            try:
                await session.send(rows, "absent")
            except ValueError as error:
                refusals.append(str(error))
            for good in (rows[:3], rows[3, 0] if len(session.started["inputs"][0]["shape"]) == 1 else rows[3], rows[4:].reshape(-1)):
                await session.send(good)
            await session.end()
            got = [message["outputs"]["y"] async for message in session if message["type"] == "result"]
        return refusals, np.concatenate(got)

    with Server(path) as server:
        refusals, got = asyncio.run(talk(server.url()))
    assert "expected an array of float32 for the input 'x', found float64" in refusals[0], refusals
    assert "expected rows of shape" in refusals[2] and f"found an array of shape [1, {FEATURES}, 7]" in refusals[2], refusals
    assert "found int32" in refusals[3] and "expected one of the inputs x as `input`, found 'absent'" in refusals[4] and len(refusals) == 5, refusals
    assert got.tobytes() == whole(folder, path, rows[:, 0], 99).tobytes()

    session = Session(None)
    session.started = {"inputs": [{"name": "a", "dtype": "f32", "shape": []}, {"name": "b", "dtype": "f32", "shape": []}]}
    try:
        asyncio.run(session.send(np.zeros(1, "f4")))
    except ValueError as error:
        assert str(error) == "send: expected one of the inputs a, b as `input`, found none", error
    else:
        raise AssertionError("an input was not missed")


def check_tokens(folder, path):
    with open(f"{folder}/tokens", "w", encoding="ascii") as file:
        file.write(TOKEN + "\n")
    rows = np.ones((5, FEATURES), "f4")
    with Server(path, "--token-file", f"{folder}/tokens") as server:
        assert len(asyncio.run(results(server.url(), rows, [], token=TOKEN))) == 5
        for how in ({}, {"token": TOKEN + "x"}):
            assert asyncio.run(refused(server.url(), **how)) == 401
        assert status(server, "/now") == 401 and status(server, "/now", {"Authorization": f"Bearer {TOKEN}"}) == 200
    certificate = make_certificate(folder)
    if certificate is None:
        print("TLS is not tried: it takes openssl, the program and the part of the build")
        return
    with Server(path, "--token-file", f"{folder}/tokens", *certificate) as server:
        trusted = ssl.create_default_context(cafile=f"{folder}/cert.pem")
        assert len(asyncio.run(results(server.url("wss"), rows, [7], token=TOKEN, ssl=trusted))) == 5
        try:
            asyncio.run(results(server.url("wss"), rows, [], token=TOKEN, ssl=ssl.create_default_context()))
        except ssl.SSLCertVerificationError:
            print("TLS was tried")
        else:
            raise AssertionError("a certificate of nobody was trusted")


def get(server, path, headers={}):
    return urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers), timeout=10)


def status(server, path, headers={}):
    try:
        with get(server, path, headers) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def check_page(path):
    with Server(path) as server:
        with get(server, "/") as answer:
            page = answer.read().decode()
            policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Type"].startswith("text/html") and answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy, policy
        loaded = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)
        assert sorted(loaded) == ["/page.css", "/page.js", "data:,"], loaded
        for file, kind in (("/page.css", "text/css"), ("/page.js", "text/javascript"), ("/millrace.js", "text/javascript")):
            with get(server, file) as answer:
                text = answer.read().decode()
                assert answer.headers["Content-Type"].startswith(kind) and "http://" not in text and "https://" not in text, file
        assert not re.search(r"<script>|<style|\son[a-z]+=|style=", page)
        assert status(server, "/absent") == 404
    with Server(path, "--no-page") as server:
        assert status(server, "/") == 404


if __name__ == "__main__":
    need(MILLRACE)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/lstm.onnx"
        with open(path, "wb") as file:
            file.write(model(np.random.default_rng(1)).SerializeToString())
        for seed in seeds([1, 2]):
            print("seed", seed, flush=True)
            check_sequences(seed, folder, path)
        check_arrays(folder, path)
        check_tokens(folder, path)
        check_page(path)
