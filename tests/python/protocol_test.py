# SPDX-License-Identifier: Apache-2.0
"""The client of docs/protocol.md, as it stands there, gets from a served loop the bits of the whole. Prints the seed; MILLRACE_SEED runs one."""
import os
import random
import re
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need

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

# The canonical listing, in the text form of programs.
LISTING = """millrace 1 "listing"
input "x" = x: f32[?, 40] lod=1
input "boot" = boot: f32[?, 3]
weight U: f32[3, 3]
weight W: f32[40, 3]
block { idx: 0 parent_idx: -1
  steps: array<f32[?, 40]> ordered, order: order = unpack(X=x) {level=0, sort_by_length=true}
  n: i64[] = tensor_array_size(Array=steps)
  states: array<f32[?, 3]> ordered = tensor_array(Size=n, Order=order) {name="states"}
  zero: i64[] = constant() {value=i64[](0)}
  last: i64[] = while(Carried=[zero]) {sub_block=@1, max_trips=-1, parallel_iterations=8}
  y: f32[?, 3] lod=1 = pack(Array=states, Order=order) {level=0}
}
block { idx: 1 parent_idx: 0
  params step: i64[]
  done: bool[] = equal(A=step, B=n)
  break_if(Condition=done, Carried=[step])
  step_input: f32[?, 40] ordered = tensor_array_read(Array=steps, Index=step)
  one: i64[] = constant() {value=i64[](1)}
  before: i64[] = sub(A=step, B=one)
  last_state: f32[?, 3] ordered = tensor_array_read(Array=states, Index=before, Boot=boot)
  pre_state: f32[?, 3] ordered = shrink(State=last_state, Step=step_input)
  from_state: f32[?, 3] = matmul(A=pre_state, B=U)
  from_input: f32[?, 3] = matmul(A=step_input, B=W)
  sum: f32[?, 3] = add(A=from_state, B=from_input)
  state: f32[?, 3] = sigmoid(X=sum)
  tensor_array_write(Array=states, Index=step, X=state) {share=true}
  next: i64[] = add(A=step, B=one)
  results next
}
output "y" = y
"""


def save_safetensors(path, tensors):
    head, body = {}, b""
    for name, value in tensors.items():
        raw = value.astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def main():
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 31)))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(1, 60, 6)] + [0]
    rows = rng.standard_normal((sum(lengths), 40)).astype("f4")
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        with open(at("listing.mr"), "w") as file:
            file.write(LISTING)
        save_safetensors(at("listing.safetensors"), {"U": rng.standard_normal((3, 3)), "W": rng.standard_normal((40, 3)) / 6})
        np.save(at("x.npy"), rows)
        np.save(at("boot.npy"), np.zeros((len(lengths), 3), "f4"))
        subprocess.run([MILLRACE, "run", at("listing.mr"), "--input", "x=" + at("x.npy"), "--input", "boot=" + at("boot.npy"),
                        "--lod", "x=[" + str(lengths) + "]", "--output-dir", folder], check=True)
        whole = np.load(at("y.npy"))
        server = subprocess.Popen([MILLRACE, "serve", at("listing.mr"), "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r":(\d+)$", server.stdout.readline())[1])
            begin = 0
            for length in lengths:
                mine = rows[begin:begin + length]
                cut = sorted(int(c) for c in rng.integers(0, mine.nbytes + 1, 20))
                replies = list(client(port, mine, cut))
                assert replies[0]["type"] == "started" and replies[-1] == {"type": "ended", "steps": length}, replies
                results = replies[1:-1]
                assert [reply["seq"] for reply in results] == list(range(length)), replies
                live = np.array([reply["outputs"]["y"] for reply in results], "f4").reshape(length, 3)
                assert live.tobytes() == whole[begin:begin + length].tobytes(), f"a sequence of {length} rows has other bits live"
                begin += length
        finally:
            server.terminate()
            assert server.wait(10) == 0, "the server did not drain"


main()
