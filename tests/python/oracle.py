# SPDX-License-Identifier: Apache-2.0
"""What the tests against oracles share: the command, the seeds, a run of a model, and what "within 1e-5" means."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

BIN = os.environ.get("MILLRACE_BIN", "build/release/bin")
MILLRACE = os.path.join(BIN, "millrace")
TEST_RUNTIME = os.path.join(BIN, "test_runtime")
MODELS = os.environ.get("MILLRACE_MODELS", os.path.join(BIN, "..", "..", "models"))


def need(*paths):
    """Skips the test, visibly, unless all are there."""
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        print(f"skipped: no {', '.join(missing)}")
        sys.exit(77)


def seeds(usual):
    return [int(os.environ["MILLRACE_SEED"])] if "MILLRACE_SEED" in os.environ else usual


@contextlib.contextmanager
def vectors_folder(name):
    """An empty folder for values that a suite of C++ reads: kept as MILLRACE_ORACLE_FOLDER/NAME where that is set, for the entry of ctest that reads it once more."""
    kept = os.environ.get("MILLRACE_ORACLE_FOLDER")
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    folder = os.path.join(kept, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    yield folder


def run(path, feeds, folder):
    """`millrace run` of the model at `path` on arrays by name: gives what reads one of its output files, by name."""
    out = os.path.join(folder, "out")
    command = [MILLRACE, "run", path, "--output-dir", out]
    for i, (name, value) in enumerate(feeds.items()):
        np.save(os.path.join(folder, f"{i}.npy"), value)
        command += ["--input", f"{name}={folder}/{i}.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return lambda name: np.load(os.path.join(out, f"{name}.npy"))


def same(found, expected, where):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape, (where, found.dtype, found.shape, expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(where))


def session_of(model):
    """ONNX Runtime's session of a path or bytes."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
