# SPDX-License-Identifier: Apache-2.0
"""`millrace run` reads and writes what tensors lack a dtype or npy a code for: integers of 16 and 32 bits, bf16 in safetensors files, lists of tensors."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle

oracle.need(oracle.MILLRACE)


def model(nodes, inputs, outputs, folder):
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    path = os.path.join(folder, "model.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def tensor(name, kind, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def command(*words):
    return subprocess.run([oracle.MILLRACE, "run", *words], capture_output=True, text=True, timeout=60)


def write_safetensors(path, name, code, shape, data):
    header = json.dumps({name: {"dtype": code, "shape": list(shape), "data_offsets": [0, len(data)]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)


def read_safetensors(path):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def unsigned_integers(folder):
    path = model([helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Div", ["z", "y"], ["q"])],
                 [tensor("x", TensorProto.UINT16, ["n"]), tensor("y", TensorProto.UINT16, ["n"])],
                 [tensor("z", TensorProto.UINT16, ["n"]), tensor("q", TensorProto.UINT16, ["n"])], folder)
    x, y = np.array([1, 65535, 40000], "u2"), np.array([2, 3, 40000], "u2")
    made = oracle.run(path, {"x": x, "y": y}, folder)
    np.testing.assert_array_equal(made("z"), (x + y).astype("i4"))
    np.testing.assert_array_equal(made("q"), ((x + y) // y).astype("i4"))


def bf16_files(folder):
    path = model([helper.make_node("Neg", ["x"], ["y"])], [tensor("x", TensorProto.BFLOAT16, ["n"])], [tensor("y", TensorProto.BFLOAT16, ["n"])], folder)
    patterns = np.array([0x3F80, 0xC000, 0x0000], "<u2")  # 1, -2, 0
    file = os.path.join(folder, "x.safetensors")
    write_safetensors(file, "first", "BF16", [3], patterns.tobytes())
    out = os.path.join(folder, "out")
    done = command(path, "--input", f"x={file}:first", "--output-dir", out)
    assert done.returncode == 0, done.stderr
    header, data = read_safetensors(os.path.join(out, "y.safetensors"))
    assert header["y"]["dtype"] == "BF16" and header["y"]["shape"] == [3], header
    np.testing.assert_array_equal(np.frombuffer(data, "<u2"), patterns ^ 0x8000)
    refused = command(path, "--input", f"x={file}:second", "--output-dir", out)
    assert refused.returncode == 1 and "expected a tensor 'second', found first" in refused.stderr, refused.stderr


def lists(folder):
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    path = model([helper.make_node("SequenceLength", ["s"], ["n"]), helper.make_node("Identity", ["s"], ["t"])], [sequence],
                 [tensor("n", TensorProto.INT64, []), helper.make_tensor_sequence_value_info("t", TensorProto.FLOAT, None)], folder)
    parts = {"s.0": np.array([1.0, 2.0], "f4"), "s.1": np.zeros((2, 3), "f4")}
    made = oracle.run(path, parts, folder)
    assert made("n") == 2 and made("t.length") == 2
    for i in range(2):
        np.testing.assert_array_equal(made(f"t.{i}"), parts[f"s.{i}"])
    assert oracle.run(path, {"s.length": np.array(0)}, folder)("n") == 0
    refused = command(path, "--output-dir", os.path.join(folder, "out"))
    assert refused.returncode == 1 and "expected its elements as s.0, s.1" in refused.stderr, refused.stderr


def branches(folder):
    """A graph that chooses in the run is refused as a live session, with a word on how to make the choice a constant."""
    branch = lambda op: helper.make_graph([helper.make_node(op, ["x"], ["r"])], op, [], [tensor("r", TensorProto.FLOAT)])
    path = model([helper.make_node("If", ["c"], ["y"], then_branch=branch("Tanh"), else_branch=branch("Neg"))],
                 [tensor("c", TensorProto.BOOL, []), tensor("x", TensorProto.FLOAT, ["t", "n", 3])], [tensor("y", TensorProto.FLOAT)], folder)
    inspect = lambda *words: subprocess.run([oracle.MILLRACE, "inspect", "--streaming", path, *words], capture_output=True, text=True, timeout=60)
    refused = inspect()
    assert refused.returncode == 1 and "--const INPUT=NUMBER" in refused.stderr, refused.stderr
    assert inspect("--const", "c=1").returncode == 0, inspect("--const", "c=1").stderr


def live_states(folder):
    """LinearAttention and CausalConvWithState are fed live without --state, each as one fused loop."""
    heads, keys = 2, 3
    rows = lambda name, width: tensor(name, TensorProto.FLOAT, ["n", "t", width])
    attention = helper.make_node("LinearAttention", ["q", "k", "v", "", "g", "b"], ["y"], q_num_heads=heads, kv_num_heads=heads, update_rule="gated_delta")
    inputs = [rows(name, heads * keys) for name in "qkvg"] + [rows("b", heads)]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 1, 3], np.arange(12, dtype="f4"))
    conv = helper.make_graph([helper.make_node("CausalConvWithState", ["x", "w"], ["y"])], "graph", [tensor("x", TensorProto.FLOAT, ["n", 4, "t"])],
                             [tensor("y", TensorProto.FLOAT)], [weight])
    for graph in (helper.make_graph([attention], "graph", inputs, [tensor("y", TensorProto.FLOAT)]), conv):
        path = os.path.join(folder, "live.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=11), path)
        shown = subprocess.run([oracle.MILLRACE, "inspect", "--streaming", "--passes", path], capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.count("\nstate '") == 1 and "backend: interpreted" not in shown.stdout and "backend: fused" in shown.stdout, shown.stdout


def attended(q, k, v, state, decay, rate, rule, heads):
    """Linear attention [B, T, …] in f64, from the formulas of ONNX; a head of the query or of the key is shared by the heads of states that it is behind."""
    batch, length = q.shape[:2]
    keys = q.shape[2] // heads["q_num_heads"]
    apart = lambda x, count: x.reshape(batch, length, count, -1).astype("f8")
    q, k, v = apart(q, heads["q_num_heads"]), apart(k, k.shape[2] // keys), apart(v, heads["kv_num_heads"])
    wide = max(q.shape[2], v.shape[2])
    k = np.repeat(k, v.shape[2] // k.shape[2], 2)
    s, out = state.astype("f8"), []
    for t in range(length):
        if "gated" in rule:
            s = s * np.exp(apart(decay, v.shape[2])[:, t])[..., None]
        new = v[:, t]
        if "delta" in rule:
            new = apart(rate, v.shape[2])[:, t] * (new - np.einsum("bhde,bhd->bhe", s, k[:, t]))
        s = s + k[:, t][..., None] * new[..., None, :]
        read = np.einsum("bhde,bhd->bhe", np.repeat(s, wide // s.shape[1], 1), np.repeat(q[:, t], wide // q.shape[2], 1))
        out.append(read.reshape(batch, -1) / np.sqrt(keys))
    return np.stack(out, 1), s


def states_of_onnx_runtime(folder):
    """com.microsoft.LinearAttention, whose states may share heads of queries and keys, and com.microsoft.CausalConvWithState with its dilation and layouts."""
    rng, imports = np.random.default_rng(5), [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    floats = lambda *shape: (rng.standard_normal(shape) * 0.5).astype("f4")
    path = os.path.join(folder, "state.onnx")

    def run(node, feeds, weights=()):
        known = [helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.flatten()) for name, value in weights]
        graph = helper.make_graph([node], "graph", [tensor(name, TensorProto.FLOAT, ["B" if axis == 0 else extent for axis, extent in enumerate(value.shape)]) for name, value in feeds.items()],
                                  [tensor(name, TensorProto.FLOAT) for name in node.output], known)
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        return oracle.run(path, feeds, folder)

    for rule, queries, keys, states in (("gated_delta", 2, 2, 4), ("gated_delta", 1, 2, 4), ("gated", 4, 1, 2), ("delta", 2, 1, 2), ("linear", 4, 2, 4), ("gated_delta", 3, 3, 3)):
        feeds = {"q": floats(2, 5, queries * 4), "k": floats(2, 5, keys * 4), "v": floats(2, 5, states * 3), "s": floats(2, states, 4, 3)}
        if "gated" in rule:
            feeds["g"] = -np.abs(floats(2, 5, states * 4 if queries == 4 else states))
        if "delta" in rule:
            feeds["b"] = floats(2, 5, states)
        heads = dict(q_num_heads=queries, kv_num_heads=states)
        node = helper.make_node("LinearAttention", ["q", "k", "v", "s", "g" if "g" in feeds else "", "b" if "b" in feeds else ""], ["y", "p"], domain="com.microsoft", update_rule=rule, **heads)
        made, (y, p) = run(node, feeds), attended(feeds["q"], feeds["k"], feeds["v"], feeds["s"], feeds.get("g"), feeds.get("b"), rule, heads)
        np.testing.assert_allclose(made("y"), y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(made("p"), p, rtol=1e-4, atol=1e-5)

    for dilation, taps, last, behind, states_last in ((1, 4, 0, (6,), -1), (3, 2, 0, (6,), -1), (2, 3, 1, (6,), -1), (2, 3, 1, (2, 3), -1), (1, 3, 1, (6,), 0), (1, 3, 0, (6,), 1), (1, 1, 1, (6,), -1), (2, 1, 0, (6,), -1)):
        before = (taps - 1) * dilation
        x, w, b, s = floats(2, 5, 6), floats(6, 1, taps), floats(6), floats(2, before, 6)  # [B, L, C] and [B, before, C]
        rows = np.concatenate([s, x], 1).astype("f8")
        y = sum(rows[:, j * dilation:j * dilation + 5] * w[:, 0, j] for j in range(taps)) + b
        y = y / (1 + np.exp(-y))
        laid = lambda value, channels_last: value.reshape(*value.shape[:2], *(behind if last else (6,))) if channels_last else value.transpose(0, 2, 1)
        in_states = last if states_last < 0 else states_last
        more = {} if states_last < 0 else {"state_channels_last": states_last}
        node = helper.make_node("CausalConvWithState", ["x", "w", "b", "s" if before else ""], ["y", "p"], domain="com.microsoft", activation="silu", dilation=dilation, channels_last=last, **more)
        feeds = {"x": np.ascontiguousarray(laid(x, last))}
        if before:
            feeds["s"] = np.ascontiguousarray(laid(s, in_states))
        made = run(node, feeds, [("w", w), ("b", b)])
        np.testing.assert_allclose(made("y"), laid(y, last), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(made("p"), laid(rows[:, 5:].astype("f4"), in_states))

    def inspected(node, inputs, weights=()):
        known = [helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.flatten()) for name, value in weights]
        graph = helper.make_graph([node], "graph", [tensor(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()], [tensor(name, TensorProto.FLOAT) for name in node.output], known)
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        return subprocess.run([oracle.MILLRACE, "inspect", path], capture_output=True, text=True, timeout=60)

    # States that are laid out otherwise, and inputs that an update has no use for.
    conv = lambda **attributes: helper.make_node("CausalConvWithState", ["x", "w", "", "s"], ["y", "p"], domain="com.microsoft", **attributes)
    taps = [("w", floats(6, 1, 3))]
    for attributes, x, good, bad in (({}, ["B", 6, "L"], ["B", 6, 2], ["B", 2, 6]), ({"channels_last": 1}, ["B", "L", 6], ["B", 2, 6], ["B", 6, 2]), ({"channels_last": 1}, ["B", "L", 2, "e"], ["B", 2, 2, 3], ["B", 2, 6]),
                                     ({"dilation": 2}, ["B", 6, "L"], ["B", 6, 4], ["B", 12, 2])):
        assert inspected(conv(**attributes), {"x": x, "s": good}, taps).returncode == 0, (attributes, inspected(conv(**attributes), {"x": x, "s": good}, taps).stderr)
        refused = inspected(conv(**attributes), {"x": x, "s": bad}, taps)
        assert refused.returncode == 1 and "expected a past_state" in refused.stderr, refused.stderr
    attention = helper.make_node("LinearAttention", ["q", "k", "v", "s", "g", "b"], ["y"], domain="com.microsoft", q_num_heads=2, kv_num_heads=2, update_rule="linear")
    rows = {"q": ["B", "T", 8], "k": ["B", "T", 8], "v": ["B", "T", 6], "g": ["B", "T", 2], "b": ["B", "T", 2]}
    assert inspected(attention, {**rows, "s": ["B", 2, 4, 3]}).returncode == 0
    refused = inspected(attention, {**rows, "s": ["B", 2, 3, 4]})
    assert refused.returncode == 1 and "expected a past_state [?, 2, 4, 3]" in refused.stderr, refused.stderr

    refusals = {"state_window": (2, "state_window"), "ndim": (2, "ndim"), "dilation": (0, "expected 1 to 65536, found 0"), "state_length": (9, "expected the 2 rows that the taps reach back, found 9"), "input_channels": (3, "expected all 6, found 3")}
    for name, (value, text) in refusals.items():
        graph = helper.make_graph([helper.make_node("CausalConvWithState", ["x", "w"], ["y"], domain="com.microsoft", **{name: value})], "graph", [tensor("x", TensorProto.FLOAT, ["B", 6, "L"])],
                                  [tensor("y", TensorProto.FLOAT)], [helper.make_tensor("w", TensorProto.FLOAT, [6, 1, 3], np.zeros(18, "f4"))])
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        refused = subprocess.run([oracle.MILLRACE, "inspect", path], capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and text in refused.stderr, refused.stderr


def default_states(folder):
    """An initializer that is an input too is a constant, unless --state names it: then sequences begin with it."""
    values = np.array([[1, 2]], "f4")
    graph = helper.make_graph([helper.make_node("Add", ["x", "h"], ["hn"]), helper.make_node("Neg", ["h"], ["y"])], "graph",
                              [tensor("x", TensorProto.FLOAT, [1, 2]), tensor("h", TensorProto.FLOAT, [1, 2])],
                              [tensor("y", TensorProto.FLOAT, [1, 2]), tensor("hn", TensorProto.FLOAT, [1, 2])],
                              [helper.make_tensor("h", TensorProto.FLOAT, [1, 2], values)])
    path = os.path.join(folder, "step.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    x, given, out = np.array([[1, 1], [5, 7], [0, 0]], "f4"), np.array([[10, 20]], "f4"), os.path.join(folder, "out")
    np.save(os.path.join(folder, "x.npy"), x)
    np.save(os.path.join(folder, "one.npy"), x[:1])
    np.save(os.path.join(folder, "h.npy"), given)
    feed = lambda name, file: ["--input", f"{name}={os.path.join(folder, file)}"]
    for begin, more in ((values, []), (given, feed("h", "h.npy"))):
        done = command(path, "--state", "h:hn", *feed("x", "x.npy"), *more, "--output-dir", out)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.load(os.path.join(out, "y.npy")), -(begin + np.cumsum(x, 0) - x))
        np.testing.assert_array_equal(np.load(os.path.join(out, "hn.npy")), begin + x.sum(0))
    refused = command(path, *feed("x", "one.npy"), *feed("h", "h.npy"), "--output-dir", out)
    assert refused.returncode == 1 and "'h', which has a default value in the model, taken as a constant" in refused.stderr, refused.stderr


def bytes_in_order(folder):
    """TopK and Unique of bytes, which ONNX Runtime takes too."""
    for code, dtype in ((TensorProto.INT8, "i1"), (TensorProto.UINT8, "u1")):
        path = model([helper.make_node("TopK", ["x", "k"], ["v", "i"]), helper.make_node("Unique", ["x"], ["u"])], [tensor("x", code, ["n"]), tensor("k", TensorProto.INT64, [1])],
                     [tensor("v", code, ["m"]), tensor("i", TensorProto.INT64, ["m"]), tensor("u", code, ["l"])], folder)
        x = np.array([3, 120, 3, 7, 0], dtype)
        made = oracle.run(path, {"x": x, "k": np.array([3], "i8")}, folder)
        np.testing.assert_array_equal(made("v"), np.array([120, 7, 3], dtype))
        np.testing.assert_array_equal(made("i"), [1, 3, 0])
        np.testing.assert_array_equal(made("u"), np.array([0, 3, 7, 120], dtype))
        assert made("v").dtype == x.dtype


def numbers_of_iterations(folder):
    """A body that declares the number of its iteration as a list of one gets one."""
    body = helper.make_graph([helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["i"], ["k"])], "body",
                             [tensor("i", TensorProto.INT64, [1]), tensor("c", TensorProto.BOOL, [1])], [tensor("d", TensorProto.BOOL, [1]), tensor("k", TensorProto.INT64, [1])])
    path = model([helper.make_node("Loop", ["m", ""], ["y"], body=body)], [tensor("m", TensorProto.INT64, [])], [tensor("y", TensorProto.INT64)], folder)
    made = oracle.run(path, {"m": np.array(3, "i8")}, folder)
    np.testing.assert_array_equal(made("y"), [[0], [1], [2]])


for test in (unsigned_integers, bf16_files, lists, branches, live_states, states_of_onnx_runtime, default_states, bytes_in_order, numbers_of_iterations):
    with tempfile.TemporaryDirectory() as folder:
        test(folder)
print("edges of run: integers without a dtype, bf16, lists, a choice that is a constant, states without --state, states of ONNX Runtime, states with defaults, bytes in order, numbers of iterations in a list")
