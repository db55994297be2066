# SPDX-License-Identifier: Apache-2.0
"""The client that docs/protocol.md prints, word for word, against a served LSTM: rows of 40 features in random pieces, several sessions at once, give the bits of
`millrace run` on the whole. Prints the seed; MILLRACE_SEED runs one."""
import os
import re
import subprocess
import sys
import tempfile
import threading

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need, seeds
from serving import Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FEATURES, HIDDEN, SESSIONS = 40, 64, 6


def model(rng, features=FEATURES, hidden=HIDDEN):
    weights = [("W", (1, 4 * hidden, features)), ("R", (1, 4 * hidden, hidden)), ("B", (1, 8 * hidden))]
    tensors = [onnx.numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype("f4"), name) for name, shape in weights]
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["all"], hidden_size=hidden),
        helper.make_node("Squeeze", ["all", "axis"], ["y"]),
    ]
    tensors.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", 1, features])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["time", 1, hidden])
    graph = helper.make_graph(nodes, "lstm", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def documented_client():
    with open(os.path.join(ROOT, "docs", "protocol.md"), encoding="utf-8") as page:
        code = re.search(r"```python\n(.*?)```", page.read(), re.S).group(1)
    names = {}
    exec(code, names)
    return names["client"]


def whole(folder, path, rows, number):
    np.save(f"{folder}/x{number}.npy", rows[:, None, :])
    subprocess.run([MILLRACE, "run", path, "--input", f"x={folder}/x{number}.npy", "--output-dir", f"{folder}/y{number}"], check=True)
    return np.load(f"{folder}/y{number}/y.npy").reshape(len(rows), HIDDEN)


def check(seed):
    rng = np.random.default_rng(seed)
    client = documented_client()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/lstm.onnx"
        onnx.save(model(rng), path)
        rows = [rng.standard_normal((int(rng.integers(1, 120)), FEATURES)).astype("f4") for _ in range(SESSIONS)]
        wanted = [whole(folder, path, r, i) for i, r in enumerate(rows)]
        with Server(path) as server:
            cuts = [np.sort(rng.integers(0, r.nbytes + 1, int(rng.integers(0, 40)))).tolist() for r in rows]
            replies = [None] * SESSIONS

            def talk(i):
                replies[i] = list(client(server.port, rows[i], cuts[i]))

            threads = [threading.Thread(target=talk, args=(i,)) for i in range(SESSIONS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for i, said in enumerate(replies):
                assert said[0]["type"] == "started" and said[-1] == {"type": "ended", "steps": len(rows[i])}, said[-1]
                results = said[1:-1]
                assert [r["seq"] for r in results] == list(range(len(rows[i])))
                got = np.array([r["outputs"]["y"] for r in results], "f4").reshape(len(rows[i]), HIDDEN)
                assert got.tobytes() == wanted[i].tobytes(), f"session {i} has other bits than the whole"


if __name__ == "__main__":
    need(MILLRACE)
    for seed in seeds([1, 2]):
        print("seed", seed, flush=True)
        check(seed)
