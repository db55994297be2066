# SPDX-License-Identifier: Apache-2.0
"""A trained model gives the same numbers in ONNX Runtime as `millrace run` gives, within 1e-5, and those of `live.mr` at each last row."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnxruntime  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need, same, session_of

need(MILLRACE)

CONFIG = """epochs = 4
[data]
train = "train.npz"
standardize = true
[[layer]]
kind = "{kind}"
units = 6
direction = "{direction}"
[training]
learning_rate = 0.01
"""


def scores_of(model, rows, lengths, folder):
    np.save(os.path.join(folder, "x.npy"), rows)
    done = subprocess.run([MILLRACE, "run", model, "--input", f"x={folder}/x.npy", "--lod", f"x=[{list(map(int, lengths))}]",
                           "--output-dir", f"{folder}/run"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.load(f"{folder}/run/scores.npy")


random = np.random.default_rng(1)
for kind in ["lstm", "gru", "rnn"]:
    for direction in ["forward", "bidirectional"]:
        lengths = random.integers(1, 9, 20)
        rows = random.standard_normal((lengths.sum(), 3)).astype(np.float32) * 3 + 1
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/train.npz", rows=rows, lengths=lengths, labels=random.integers(0, 4, 20))
            with open(f"{folder}/c.toml", "w") as file:
                file.write(CONFIG.format(kind=kind, direction=direction))
            done = subprocess.run([MILLRACE, "train", f"{folder}/c.toml", "--output", f"{folder}/out", "--quiet"],
                                  capture_output=True, text=True, timeout=120)
            if "this build reads no TOML" in done.stderr or not os.path.exists(f"{folder}/out/model.onnx") and done.returncode == 0:
                print("skipped: no TOML or no ONNX in this build")
                sys.exit(77)
            assert done.returncode == 0, done.stderr
            whole = scores_of(f"{folder}/out/model.mr", rows, lengths, folder)
            ends = np.cumsum(lengths)
            if direction == "forward":
                live = scores_of(f"{folder}/out/live.mr", rows, lengths, folder)
                assert (live[ends - 1] == whole).all()
            session = session_of(f"{folder}/out/model.onnx")
            for i, end in enumerate(ends):
                found = session.run(["scores"], {"x": rows[end - lengths[i]:end]})[0]
                same(found.reshape(-1), whole[i], (kind, direction, i))
        print(f"{kind} {direction}: 20 sequences", flush=True)
