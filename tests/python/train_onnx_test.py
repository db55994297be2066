# SPDX-License-Identifier: Apache-2.0
"""A trained model gives the same numbers in ONNX Runtime as `millrace run` gives, within 1e-5, and those of `live.mr` at each last row. With weights of
bf16, which the file holds as such, within 1e-2: a number that lies between two of bf16 may go either way."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
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
weights = "{weights}"
"""


def scores_of(model, rows, lengths, folder):
    np.save(os.path.join(folder, "x.npy"), rows)
    done = subprocess.run([MILLRACE, "run", model, "--input", f"x={folder}/x.npy", "--lod", f"x=[{list(map(int, lengths))}]",
                           "--output-dir", f"{folder}/run"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.load(f"{folder}/run/scores.npy")


random = np.random.default_rng(1)
for kind in ["lstm", "gru", "rnn"]:
    for direction, weights in [("forward", "f32"), ("bidirectional", "f32"), ("forward", "bf16"), ("bidirectional", "bf16")]:
        lengths = random.integers(1, 9, 20)
        rows = random.standard_normal((lengths.sum(), 3)).astype(np.float32) * 3 + 1
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/train.npz", rows=rows, lengths=lengths, labels=random.integers(0, 4, 20))
            with open(f"{folder}/c.toml", "w") as file:
                file.write(CONFIG.format(kind=kind, direction=direction, weights=weights))
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
                if weights == "f32":
                    same(found.reshape(-1), whole[i], (kind, direction, i))
                else:
                    np.testing.assert_allclose(found.reshape(-1), whole[i], rtol=0, atol=1e-2, err_msg=f"{kind} {direction} bf16 {i}")
            held = {each.data_type for each in onnx.load(f"{folder}/out/model.onnx").graph.initializer}
            assert (onnx.TensorProto.BFLOAT16 in held) == (weights == "bf16"), held
        print(f"{kind} {direction} {weights}: 20 sequences", flush=True)
