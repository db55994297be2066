# SPDX-License-Identifier: Apache-2.0
"""Two servers behind HAProxy are replaced one by one, and one is killed, under live sequences: each has the bits of the whole run, every result once. The
client is that of docs/scaling.md, word for word. Prints the seed; MILLRACE_SEED runs one."""
import os
import random
import shutil
import signal
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
from serving import Server, run_listing, save_listing

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
need(MILLRACE, HAPROXY)

# [client]
import json, socket, struct, time

class Sequence:
    """A live sequence that outlives its servers. `send` and `end` as often as wanted; `results` by seq."""

    def __init__(self, host, port, **start):
        self.address, self.start = (host, port), {"type": "start", "version": 1, **start}
        self.state, self.log, self.results, self.ended, self.moves, self.losses = None, [], {}, False, 0, 0
        self.connect()

    def connect(self):
        for attempt in range(100):  # a server that is gone, or has no room, is one of several
            try:
                self.socket = socket.create_connection(self.address, timeout=10)
                self.buffer, self.dropped = b"", 0
                where = {"state": self.state} if self.state else {}
                start = {key: value for key, value in self.start.items() if not (self.state and key == "given")}
                self.frame(b"J", json.dumps({**start, **where}).encode())
                hello = self.read()
                if hello["type"] == "started":
                    break
            except OSError:
                pass
            time.sleep(0.05)
        else:
            raise ConnectionError("no server takes the sequence")
        for kind, payload in self.log:
            self.frame(kind, payload)

    def frame(self, kind, payload):
        self.socket.sendall(struct.pack("<I", len(payload)) + kind + payload)

    def read(self):
        while len(self.buffer) < 5 or len(self.buffer) < 5 + struct.unpack_from("<I", self.buffer)[0]:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the server went away without a word")
            self.buffer += piece
        end = 5 + struct.unpack_from("<I", self.buffer)[0]
        message, self.buffer = json.loads(self.buffer[5:end]), self.buffer[end:]
        return message

    def take(self, wait):
        """Reads what has come; `wait`: at least one message."""
        self.socket.settimeout(10 if wait else 0)
        try:
            while True:
                self.on(self.read())
                if wait:
                    return
        except (BlockingIOError, InterruptedError):
            self.socket.settimeout(10)

    def on(self, said):
        if said["type"] == "result":
            known = self.results.setdefault(said["seq"], said["outputs"])
            assert known == said["outputs"], "a result that came again has other bits"
        elif "state" in said:  # saved, or draining: what is in the state need not be sent again
            self.state, self.log, self.dropped = said["state"], self.log[said["messages"] - self.dropped:], said["messages"]
        self.ended = said["type"] == "ended"
        if said["type"] == "error":
            if said["code"] != "draining":
                raise RuntimeError(f'{said["code"]}: {said["message"]}')
            self.moves += 1
            raise ConnectionResetError(said["message"])

    def alive(self, act):
        """Does something over a connection, and over another one if that is lost: what no state holds is sent again."""
        while True:
            try:
                return act()
            except OSError:
                self.losses += 1
                self.socket.close()
                self.connect()

    def say(self, kind, payload):
        self.log.append((kind, payload))  # a connection that is made anew sends the log
        try:
            self.frame(kind, payload)
        except OSError:  # it has perhaps been told why
            self.alive(lambda: self.take(wait=True))
        self.alive(lambda: self.take(wait=False))

    def send(self, rows):
        self.say(b"B", rows)

    def save(self):  # now and then, for a server that is lost without a word
        self.say(b"J", b'{"type":"save"}')

    def end(self):
        self.say(b"J", b'{"type":"end"}')
        while not self.ended:
            self.alive(lambda: self.take(wait=True))
        self.socket.close()
# [client]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Servers:
    """Two servers at ports that stay the same, and HAProxy before them."""

    def __init__(self, folder, model):
        self.folder, self.model, self.ports = folder, model, [free_port(), free_port()]
        with open(f"{folder}/key", "wb") as file:
            file.write(os.urandom(32).hex().encode())
        self.servers = [None, None]
        self.up(0), self.up(1)
        self.port = free_port()
        with open(f"{folder}/haproxy.cfg", "w") as file:
            file.write(open(os.path.join(ROOT, "docs", "scaling.md"), encoding="utf-8").read().split("```haproxy\n")[1].split("```")[0]
                       .replace("*:8100", f"127.0.0.1:{self.port}").replace("10.0.0.1:8100", f"127.0.0.1:{self.ports[0]}")
                       .replace("10.0.0.2:8100", f"127.0.0.1:{self.ports[1]}"))
        with open(f"{folder}/log", "a") as log:
            self.proxy = subprocess.Popen([HAPROXY, "-f", f"{folder}/haproxy.cfg", "-db"], stderr=log)

    def up(self, i):
        flags = ["--state-key-file", f"{self.folder}/key"]
        self.servers[i] = Server(self.model, *flags, port=self.ports[i], said=f"{self.folder}/log")

    def replace(self, i, how):
        begun = time.monotonic()
        code = self.servers[i].end(how)
        took = time.monotonic() - begun
        if how == signal.SIGTERM:
            assert code == 0 and took <= 5, f"drained with {code} in {took:.1f} s"
        self.up(i)
        return took

    def down(self):
        for process in [self.proxy, *(server.process for server in self.servers)]:
            process.kill()
            process.wait()


def main():
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 31)))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(150, 400, 12)]
    rows = rng.standard_normal((sum(lengths), 40)).astype("f4")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    with tempfile.TemporaryDirectory() as folder:
        model = save_listing(folder, rng)
        whole = run_listing(model, rows, lengths)
        servers = Servers(folder, model)
        sequences, errors = [None] * len(lengths), []
        over = threading.Event()  # of the replacements: a sequence is live until then

        def live(i):
            try:
                mine, at, dice = rows[offsets[i]:offsets[i + 1]].tobytes(), 0, random.Random(seed + i)
                one = sequences[i] = Sequence("127.0.0.1", servers.port)
                while at < len(mine):
                    if len(mine) - at > 640 or over.is_set():
                        cut = min(len(mine), at + dice.randrange(1, 700))
                        one.send(mine[at:cut])
                        at = cut
                    else:
                        one.send(b"")
                    if dice.random() < 0.1:
                        one.save()
                    time.sleep(0.02)
                one.end()
            except Exception as error:
                errors.append(f"sequence {i}: {type(error).__name__} {error}")

        threads = [threading.Thread(target=live, args=(i,)) for i in range(len(lengths))]
        try:
            for thread in threads:
                thread.start()
            for server, how in [(0, signal.SIGTERM), (1, signal.SIGTERM), (0, signal.SIGKILL)]:
                time.sleep(0.7)
                took = servers.replace(server, how)
                print(f"server {server} replaced by {how.name} in {took:.2f} s", flush=True)
            time.sleep(0.5)
            over.set()
            for thread in threads:
                thread.join(60)
        finally:
            over.set()
            servers.down()
        assert not errors, errors
        for i, one in enumerate(sequences):
            assert sorted(one.results) == list(range(lengths[i])), f"sequence {i} lacks results"
            got = np.array([one.results[seq]["y"] for seq in range(lengths[i])], "f4").reshape(lengths[i], 3)
            assert got.tobytes() == whole[offsets[i]:offsets[i + 1]].tobytes(), f"sequence {i} has other bits than the whole"
        moves, losses = sum(one.moves for one in sequences), sum(one.losses for one in sequences)
        print(f"{len(sequences)} sequences, {moves} moved with a draining server, {losses - moves} went on from their last saved state")
        assert moves >= len(sequences) and losses > moves


main()
