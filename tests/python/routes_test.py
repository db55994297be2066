# SPDX-License-Identifier: Apache-2.0
"""Two models of different widths in one server: over plain TCP and WebSocket, by name, by address and by default, each gives the bits of a server that has it alone; the page, the
port of administration and --print-config name them, `millrace stream --model` feeds them, and a name that nobody has is refused. Prints the seed; MILLRACE_SEED runs one."""
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

try:
    import numpy as np
    import onnx
    import websockets
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "apps", "clients"))

from live_client_test import model
from millrace_client import ProtocolError, connect
from oracle import MILLRACE, need, seeds
from serving import Server

NARROW, WIDE = (13, 8), (40, 24)  # features and hidden units


def make_models(folder, rng):
    paths = {}
    for name, (features, hidden) in {"narrow": NARROW, "wide": WIDE}.items():
        paths[name] = f"{folder}/{name}.onnx"
        onnx.save(model(rng, features, hidden), paths[name])
    return paths


async def talk(url, rows, rng, **how):
    """The rows of output y."""
    got = []
    async with connect(url, **how) as session:
        assert session.started["inputs"][0]["shape"][-1] == rows.shape[-1], session.started

        async def send():
            raw = rows.tobytes()
            cuts = np.sort(rng.integers(0, len(raw) + 1, int(rng.integers(0, 20)))).tolist()
            for begin, end in zip([0, *cuts], [*cuts, len(raw)]):
                await session.send(raw[begin:end])
            await session.end()

        sending = asyncio.create_task(send())
        async for message in session:
            if message["type"] == "result":
                got.append(message["outputs"]["y"])
        await sending
    return np.concatenate(got).tobytes()


def streamed(server, name, rows, folder, *flags):
    """The same by `millrace stream`, over plain TCP."""
    np.save(f"{folder}/{name}.npy", rows)
    command = [MILLRACE, "stream", f"tcp://127.0.0.1:{server.port}", f"{folder}/{name}.npy", "--output-dir", f"{folder}/out", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return np.load(f"{folder}/out/{name}/y.npy").tobytes() if done.returncode == 0 else done.stderr


async def check_bits(seed, folder, paths):
    rng = np.random.default_rng(seed)
    rows = {name: rng.standard_normal((57, 1, features)).astype("f4") for name, (features, _) in {"narrow": NARROW, "wide": WIDE}.items()}
    alone = {}
    for name, path in paths.items():
        with Server(path) as server:
            alone[name] = await talk(server.url(), rows[name], rng)
    with Server(paths["narrow"], "--route", f"wide={paths['wide']}") as server:
        base = f"ws://127.0.0.1:{server.port}"
        ways = [
            ("narrow", f"{base}/stream", {}), ("narrow", f"{base}/stream", {"model": "default"}), ("narrow", f"{base}/default", {}),
            ("wide", f"{base}/stream", {"model": "wide"}), ("wide", f"{base}/wide", {}), ("wide", f"{base}/wide", {"model": "wide"}),
        ]  # fmt: skip
        got = await asyncio.gather(*[talk(url, rows[name], rng, **how) for name, url, how in ways for _ in range(3)])
        for i, made in enumerate(got):
            name = ways[i // 3][0]
            assert made == alone[name], f"{ways[i // 3]} has other bits than a server with that model alone"
        for name, flags in (("narrow", []), ("wide", ["--model", "wide"])):
            assert streamed(server, name, rows[name], folder, *flags) == alone[name], name
    print("sessions", len(got) + 2)


async def check_refusals(folder, paths, server):
    try:
        async with connect(server.url(), model="other"):
            raise AssertionError("a model that nobody has was served")
    except ProtocolError as error:
        assert error.code == "unknown_model" and "expected default, wide, found 'other'" in str(error), error
    try:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/other"):
            raise AssertionError("a route that nobody has was served")
    except websockets.InvalidStatus as error:
        assert error.response.status_code == 404 and b"/stream, /default, /wide" in error.response.body, error.response
    said = streamed(server, "narrow", np.zeros((1, 1, 13), "f4"), folder, "--model", "other")
    assert "unknown_model" in said and "default, wide" in said, said


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


async def check_operations(server):
    page = get(server.port, "/")
    assert get(server.port, "/wide") == page and "/page.js" in page
    async with connect(f"ws://127.0.0.1:{server.port}/wide", session="kitchen") as session:
        (one,) = json.loads(get(server.admin, "/sessions"))["sessions"]
        assert one["model"] == "wide" and one["session"] == "kitchen", one
        capacity = json.loads(get(server.admin, "/capacity"))
        assert [(m["model"], m["sessions"], m["steps_per_second"]) for m in capacity["models"]] == [("default", 0, 400), ("wide", 1, 400)], capacity
        assert capacity["used"] == 0.25, capacity
        assert json.loads(get(server.port, "/now/wide"))["sessions"] == 1 and json.loads(get(server.port, "/now/default"))["sessions"] == 0
        await session.end()
        async for _ in session:
            pass
    try:
        metrics = get(server.admin, "/metrics")
    except urllib.error.HTTPError as error:
        assert error.code == 501  # this build has no prometheus-cpp
        return
    assert 'millrace_sessions_ended_total{outcome="ended",model="wide"} 1' in metrics, metrics


def check_settings(folder, paths):
    """--print-config of flags is a file that gives the same; a table has the flags of a model, and the command line counts before it."""
    command = [MILLRACE, "serve", paths["narrow"], "--port", "0", "--route", f"wide={paths['wide']}", "--print-config"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f'[route.wide]\nmodel="{paths["wide"]}"' in printed, printed
    with open(f"{folder}/printed.toml", "w", encoding="utf-8") as file:
        file.write(printed)
    again = subprocess.run([MILLRACE, "serve", "--settings", f"{folder}/printed.toml", "--print-config"], capture_output=True, text=True, check=True)
    tables = lambda text: text[text.index("[route.") :]
    assert tables(again.stdout) == tables(printed), again.stdout
    with open(f"{folder}/tables.toml", "w", encoding="utf-8") as file:
        file.write(f'port = 0\nmodel = "{paths["narrow"]}"\n[route.a]\nmodel = "absent.onnx"\nweights = "f32"\n[route.b]\nmodel = "{paths["narrow"]}"\n')
    with_tables = [MILLRACE, "serve", "--settings", f"{folder}/tables.toml"]
    said = subprocess.run([*with_tables, "--route", f"a={paths['wide']}", "--print-config"], capture_output=True, text=True, check=True).stdout
    assert f'[route.a]\nmodel="{paths["wide"]}"\nweights="f32"\n' in said and f'[route.b]\nmodel="{paths["narrow"]}"' in said, said
    for table, why in (("[route.a]\nstats = 1\n", "expected model, state, const, row, config or weights, found stats"), ("[route.a]\n weights = 'f32'\n", "expected model = FILE"),
                       ("[other.a]\nmodel = 'x'\n", "expected a flag of serve")):  # fmt: skip
        with open(f"{folder}/wrong.toml", "w", encoding="utf-8") as file:
            file.write(f'port = 0\nmodel = "{paths["narrow"]}"\n{table}')
        done = subprocess.run([MILLRACE, "serve", "--settings", f"{folder}/wrong.toml", "--print-config"], capture_output=True, text=True)
        assert done.returncode != 0 and why in done.stderr, done
    for wrong in ("now", "default", "a.b"):
        bad = [MILLRACE, "serve", paths["narrow"], "--port", "0", "--route", f"{wrong}={paths['wide']}", "--print-config"]
        done = subprocess.run(bad, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and f"found '{wrong}'" in done.stderr, done
    twice = ["--route", f"a={paths['wide']}", "--route", f"a={paths['narrow']}"]
    done = subprocess.run([MILLRACE, "serve", paths["narrow"], "--port", "0", *twice], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "--route: expected a name once, found 'a' twice" in done.stderr, done


async def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = make_models(folder, np.random.default_rng(1))
        for seed in seeds([1, 2]):
            print("seed", seed, flush=True)
            await check_bits(seed, folder, paths)
        flags = ("--route", f"wide={paths['wide']}", "--admin", "0", "--capacity", "400", "--session-rate", "100")
        with Server(paths["narrow"], *flags) as server:
            await check_refusals(folder, paths, server)
            await check_operations(server)
        check_settings(folder, paths)


if __name__ == "__main__":
    need(MILLRACE)
    asyncio.run(main())
