# SPDX-License-Identifier: Apache-2.0
"""The client of docs/protocol.md, as it stands there, gets from a served loop the bits of the whole. Prints the seed; MILLRACE_SEED runs one."""
import os
import random
import sys
import tempfile

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need
from serving import Server, run_listing, save_listing

need(MILLRACE)

# [client]
import json, socket, struct
import numpy as np

def client(port, rows, cut):  # rows: f32 [T, 40]; cut: any positions in their bytes, ascending
    with socket.create_connection(("127.0.0.1", port)) as s, s.makefile("rb") as replies:
        send = lambda kind, b: s.sendall(struct.pack("<IB", len(b), ord(kind)) + b)
        raw = np.ascontiguousarray(rows, "<f4").tobytes()
        send("J", json.dumps({"type": "start", "version": 1}).encode())
        for a, b in zip([0, *cut], [*cut, len(raw)]):
            send("B", raw[a:b])
        send("J", b'{"type":"end"}')
        while head := replies.read(5):
            yield json.loads(replies.read(struct.unpack("<IB", head)[0]))
# [client]


def main():
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 31)))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 60, 6)] + [0]
    rows = rng.standard_normal((sum(lengths), 40)).astype("f4")
    with tempfile.TemporaryDirectory() as folder:
        model = save_listing(folder, rng)
        whole = run_listing(model, rows, lengths)
        with Server(model) as server:
            begin = 0
            for length in lengths:
                mine = rows[begin:begin + length]
                cut = sorted(int(c) for c in rng.integers(0, mine.nbytes + 1, 20))
                replies = list(client(server.port, mine, cut))
                assert replies[0]["type"] == "started" and replies[-1] == {"type": "ended", "steps": length}, replies
                results = replies[1:-1]
                assert [reply["seq"] for reply in results] == list(range(length)), replies
                live = np.array([reply["outputs"]["y"] for reply in results], "f4").reshape(length, 3)
                assert live.tobytes() == whole[begin:begin + length].tobytes(), f"a sequence of {length} rows has other bits live"
                begin += length


main()
