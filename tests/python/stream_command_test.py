# SPDX-License-Identifier: Apache-2.0
"""`millrace stream` under servers that drain and that are killed: one sequence goes on, with the bits of the whole run; and a sequence in two parts, by --save and --state."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need
from serving import FEATURES, Server, run_listing, save_listing

ROWS = 150_000


def stream(server, path, folder, *flags):
    return [MILLRACE, "stream", f"tcp://127.0.0.1:{server.port}", path, "--speed", "0", "--output-dir", folder, *flags]


def steps_of(server):
    """Steps that the server has answered, or None where its build cannot say."""
    import urllib.error
    import urllib.request
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.admin}/metrics", timeout=10) as answer:
            return sum(float(n) for n in re.findall(r"^millrace_steps_total\S* (\S+)$", answer.read().decode(), re.M))
    except urllib.error.HTTPError:
        return None


def check_moves(model, folder, how, whole, flags):
    """The server is replaced once, on its port, while the sequence is under way."""
    server = Server(model, "--admin", "0", *flags, said=f"{folder}/log")
    out = f"{folder}/moved-{how.name}"
    client = subprocess.Popen(stream(server, f"{folder}/x.npy", out, "--reconnect", "60"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while (steps := steps_of(server)) is not None and steps < 2000:
        assert client.poll() is None, client.communicate()
        time.sleep(0.01)
    if steps is None:
        time.sleep(0.3)
    code = server.end(how)
    assert code == (0 if how == signal.SIGTERM else -signal.SIGKILL), code
    with Server(model, *flags, port=server.port):
        said, why = client.communicate(timeout=120)
        assert client.returncode == 0, (said, why)
    print(how.name, said.strip().replace("\n", " "), flush=True)
    assert "resumed=0 restarted=1" in said, said
    assert np.load(f"{out}/x/y.npy").tobytes() == whole.tobytes(), "other bits than the whole"


def check_parts(model, folder, rows, whole):
    cut = 1234
    with Server(model) as server:
        for name, part, flags in (("a", rows[:cut], ["--save", f"{folder}/state"]), ("b", rows[cut:3000], ["--state", f"{folder}/state"])):
            np.save(f"{folder}/{name}.npy", part)
            subprocess.run(stream(server, f"{folder}/{name}.npy", f"{folder}/parts", *flags), check=True, stdout=subprocess.DEVNULL)
        got = np.concatenate([np.load(f"{folder}/parts/{name}/y.npy") for name in "ab"])
        assert got.tobytes() == whole[:3000].tobytes(), "a sequence in two parts has other bits than the whole"
        two = subprocess.run(stream(server, f"{folder}/a.npy", f"{folder}/parts", f"{folder}/b.npy", "--save", f"{folder}/state"), capture_output=True, text=True)
        assert two.returncode == 2 and "expected one session, found 2" in two.stderr, two.stderr


def check_labels(folder):
    """A label of a server's is printed without what a terminal obeys."""
    def frame(message):
        text = json.dumps(message).encode()
        return struct.pack("<IB", len(text), ord("J")) + text

    port = {"name": "x", "dtype": "f32", "shape": [1]}
    started = frame({"type": "started", "version": 1, "session": "", "inputs": [port], "outputs": [port], "reply": "none"})
    segment = frame({"type": "segment", "label": "a\x1b[31m\nb", "start": 0.0, "end": 1.0})
    np.save(f"{folder}/none.npy", np.zeros((0, 1), "f4"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve():
            for more in (b"", segment):
                client = listening.accept()[0]
                with client:
                    client.sendall(started + more + frame({"type": "ended", "steps": 0}))
                    while client.recv(4096):
                        pass

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        said = subprocess.run([MILLRACE, "stream", f"tcp://127.0.0.1:{listening.getsockname()[1]}", f"{folder}/none.npy"], capture_output=True, text=True, timeout=60)
        server.join(10)
    assert said.returncode == 0, said
    assert f"{folder}/none.npy: a?[31m b 0.000 1.000\n" in said.stdout and "\x1b" not in said.stdout, said


def main():
    need(MILLRACE)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((ROWS, FEATURES)).astype("f4")
    with tempfile.TemporaryDirectory() as folder:
        model = save_listing(folder, rng)
        whole = run_listing(model, rows, [ROWS])
        with open(f"{folder}/key", "w") as file:
            file.write(os.urandom(32).hex())
        flags = ["--state-key-file", f"{folder}/key"]
        check_labels(folder)
        check_moves(model, folder, signal.SIGTERM, whole, flags)
        check_moves(model, folder, signal.SIGKILL, whole, flags)
        check_parts(model, folder, rows, whole)


if __name__ == "__main__":
    main()
