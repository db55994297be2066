# SPDX-License-Identifier: Apache-2.0
"""Programs that were exported to ONNX, run by ONNX Runtime: the numbers that this library gives, within 1e-5.

Three sources: models that onnx_test.py builds and Silero's, imported and exported again; and programs of the builder and of layers, which
test_runtime writes with their feeds and outputs (tests/runtime/models/export/with_onnx/)."""
import glob
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import onnx_recurrent_test
import onnx_test
from oracle import MILLRACE, MODELS, TEST_RUNTIME, same, session_of


def check(path):
    """ONNX's own checker, which has no word for an output of unknown rank."""
    model = onnx.load(path)
    if all(output.type.tensor_type.HasField("shape") for output in model.graph.output):
        onnx.checker.check_model(model)


def export(model, path, *flags):
    subprocess.run([MILLRACE, "export", model, "--output", path, *flags], check=True, timeout=120)
    check(path)
    return session_of(path)


def imported(folder):
    """export(import(model)) gives what the model gives."""
    for name, build in onnx_test.CASES.items():
        for seed in (1, 2):
            g = onnx_test.Graph(np.random.default_rng(seed), onnx_test.OPSETS.get(name, (17,))[-1])
            build(g)
            path = os.path.join(folder, "model.onnx")
            onnx.save(g.model(), path)
            again = export(path, os.path.join(folder, "again.onnx"))
            for output, found, expected in zip(g.outputs, again.run(g.outputs, g.inputs), session_of(path).run(g.outputs, g.inputs)):
                same(found, expected, (name, seed, output))
        print(f"imported: {name}", flush=True)


def recurrent(folder):
    """The models of onnx_recurrent_test.py, those that PyTorch exports among them."""
    count = 0

    def compare(title, model, inputs):
        nonlocal count
        count += 1
        path = os.path.join(folder, "model.onnx")
        with open(path, "wb") as file:
            file.write(model)
        again, original = export(path, os.path.join(folder, "again.onnx")), session_of(path)
        names = [output.name for output in original.get_outputs()]
        for name, found, expected in zip(names, again.run(names, inputs), original.run(names, inputs)):
            same(found, expected, (title, name))

    onnx_recurrent_test.compare = compare
    onnx_recurrent_test.random_nodes(1)
    for title, model, inputs in onnx_recurrent_test.around(np.random.default_rng(1)):
        compare(title, model, inputs)
    onnx_recurrent_test.torch_exports()
    print(f"recurrent: {count} models")


def values_of(archive):
    """By port; a list is PORT@n, how many elements, and PORT@0 and so on."""
    stored = dict(np.load(archive))
    values = {name: value for name, value in stored.items() if "@" not in name}
    for name, count in stored.items():
        if name.endswith("@n"):
            values[name[:-2]] = [stored[f"{name[:-2]}@{i}"] for i in range(int(count))]
    return values


def built(folder):
    """Programs of test_runtime: NAME.onnx, and by ports NAME.in.npz and NAME.out.npz, which this library wrote."""
    if not os.path.exists(TEST_RUNTIME):
        print(f"left out: no {TEST_RUNTIME}")
        return
    subprocess.run([TEST_RUNTIME, "--source-file=*export/with_onnx/*_test.cpp"], check=True, timeout=200, stdout=subprocess.DEVNULL,
                   env={**os.environ, "MILLRACE_EXPORT_CASES": folder})
    models = sorted(glob.glob(os.path.join(folder, "*.onnx")))
    assert len(models) > 10, models
    missing = []
    for path in models:
        stem = path[: -len(".onnx")]
        check(path)
        try:
            session = session_of(path)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            missing.append(f"{os.path.basename(stem)}: {error}")  # ONNX has the op for this dtype, ONNX Runtime has no kernel
            continue
        feeds = values_of(stem + ".in.npz")
        for port, expected in values_of(stem + ".out.npz").items():
            found = session.run([port], feeds)[0]
            if not isinstance(expected, list):
                found, expected = [found], [expected]
            assert len(found) == len(expected), (os.path.basename(stem), port)
            for one, wanted in zip(found, expected):
                same(one, wanted, (os.path.basename(stem), port))
    print(f"built: {len(models)} programs; without a kernel for their dtype: {missing}", flush=True)


def silero(folder):
    """The whole sequence, and one step after the other with the states handed on."""
    path = os.path.join(MODELS, "silero_vad_v6.onnx")
    if not os.path.exists(path):
        print(f"left out: no {path}")
        return
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((9, 576)) * 0.2).astype("f4")
    zeros = np.zeros((1, 1, 128), dtype="f4")
    feeds = {"input": x, "h": zeros, "c": zeros}
    original = session_of(path)
    outputs = [output.name for output in original.get_outputs()]
    expected = dict(zip(outputs, original.run(outputs, feeds)))
    whole = export(path, os.path.join(folder, "whole.onnx"))
    for output, found in zip(outputs, whole.run(outputs, feeds)):
        same(found, expected[output], ("silero", output))
    start_path = os.path.join(folder, "start.onnx")
    step = export(path, os.path.join(folder, "step.onnx"), "--one-step", "--start", start_path)
    start = session_of(start_path)
    states = dict(zip([o.name for o in start.get_outputs()], start.run(None, {i.name: feeds[i.name] for i in start.get_inputs()})))
    names = [output.name for output in step.get_outputs()]
    rows = []
    for row in x:
        values = dict(zip(names, step.run(names, {"input": row[None], **{i.name: states[i.name] for i in step.get_inputs() if i.name in states}})))
        states.update({name: values["next_" + name] for name in states if "next_" + name in values})
        rows.append(values[outputs[0]])
    same(np.concatenate([np.ravel(row) for row in rows]), np.ravel(expected[outputs[0]]), "silero, step by step")
    print("silero: whole and step by step")


def archives(folder):
    """A run reads what NumPy wrote, stored and deflated."""
    rng = np.random.default_rng(4)
    g = onnx_test.Graph(rng)
    g.give(g.node("Identity", [g.floats("x", 5, 3)]))
    model = os.path.join(folder, "model.onnx")
    onnx.save(g.model(), model)
    for save in (np.savez, np.savez_compressed):
        x, archive = rng.standard_normal((5, 3)).astype("f4"), os.path.join(folder, "x.npz")
        save(archive, **{"other": np.arange(4), "in/x": x})
        subprocess.run([MILLRACE, "run", model, "--input", f"x={archive}:in/x", "--output-dir", folder], check=True, timeout=60)
        assert np.array_equal(np.load(os.path.join(folder, g.outputs[0] + ".npy")), x)
    done = subprocess.run([MILLRACE, "run", model, "--input", f"x={archive}:y", "--output-dir", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "expected a tensor 'y', found in/x, other" in done.stderr, done.stderr


def ragged_batches(folder):
    """An imported model as the graph of one sequence: a ragged batch gives what each sequence gives alone."""
    rng = np.random.default_rng(1)
    c, h = 4, 3
    for layout, direction in ((0, "forward"), (0, "bidirectional"), (1, "bidirectional")):
        directions = 2 if direction == "bidirectional" else 1
        weights = [rng.standard_normal((directions, 4 * h, n)).astype(np.float32) for n in (c, h)]
        shape, batch_first = ([1, "time", c], True) if layout else (["time", 1, c], False)
        nodes = [onnx.helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2] if batch_first else [0, 1, 2]),
                 onnx.helper.make_node("LSTM", ["steps", "w", "r"], ["each", "last"], hidden_size=h, direction=direction),
                 onnx.helper.make_node("Transpose", ["each"], ["moved"], perm=[2, 0, 1, 3] if batch_first else [0, 1, 2, 3]),
                 onnx.helper.make_node("Mul", ["moved", "gain"], ["y"])]
        rows = [1, "time", directions, h] if batch_first else ["time", directions, 1, h]
        graph = onnx.helper.make_graph(
            nodes, "layer",
            [onnx.helper.make_tensor_value_info("x", 1, shape), onnx.helper.make_tensor_value_info("gain", 1, [h])],
            [onnx.helper.make_tensor_value_info("y", 1, rows), onnx.helper.make_tensor_value_info("last", 1, [directions, 1, h])],
            [onnx.numpy_helper.from_array(value, name) for value, name in zip(weights, "wr")])
        path = os.path.join(folder, "model.onnx")
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
        batch = export(path, os.path.join(folder, "batch.onnx"), "--batch")
        one, axis = session_of(path), 1 if batch_first else 0
        gain = rng.standard_normal(h).astype(np.float32)
        lengths = np.array([3, 1, 5], np.int64)
        x = rng.standard_normal((1, 9, c) if batch_first else (9, 1, c)).astype(np.float32)
        found = dict(zip([o.name for o in batch.get_outputs()], batch.run(None, {"x": x, "x.lengths": lengths, "gain": gain})))
        parts = [one.run(None, {"x": part, "gain": gain}) for part in np.split(x, np.cumsum(lengths)[:-1], axis)]
        same(found["y"], np.concatenate([part[0] for part in parts], axis), (layout, direction))
        same(found["last"], np.stack([part[1] for part in parts]), (layout, direction))
        assert found["y.lengths"].tolist() == lengths.tolist()
        none = batch.run(["y", "last"], {"x": np.take(x, [], axis), "x.lengths": lengths[:0], "gain": gain})
        assert none[0].shape[axis] == 0 and none[1].shape == (0, directions, 1, h), [value.shape for value in none]
    open_batch = onnx.load(path)
    open_batch.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(open_batch, path)
    done = subprocess.run([MILLRACE, "export", path, "--batch", "--output", os.path.join(folder, "x.onnx")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "'x': expected one open extent at most" in done.stderr, done.stderr


def refusals(folder):
    def refusal(*arguments):
        done = subprocess.run([MILLRACE, "export", *arguments], capture_output=True, text=True, timeout=60)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr

    code, text = refusal("nothing.onnx", "--output", os.path.join(folder, "x.onnx"))
    assert code == 1 and "nothing.onnx" in text, (code, text)
    code, text = refusal("nothing.onnx", "--output", os.path.join(folder, "x.txt"))
    assert code == 2 and ".onnx" in text, (code, text)
    assert not os.path.exists(os.path.join(folder, "x.onnx"))


def main():
    for part in (refusals, ragged_batches, archives, imported, recurrent, silero, built):
        with tempfile.TemporaryDirectory() as folder:
            part(folder)
    print("every output is within 1e-5")


if __name__ == "__main__":
    main()
