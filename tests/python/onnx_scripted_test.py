# SPDX-License-Identifier: Apache-2.0
"""Loops as exporters write scripted ones (`for t in range(x.size(1)): ...; ys.append(h)`) give what ONNX Runtime gives, and are fused.

Prints the seed; MILLRACE_SEED runs one."""
import itertools
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime  # noqa: F401: oracle.session_of
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle

oracle.need(oracle.MILLRACE)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LAST = np.iinfo("i8").max


def info(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, value, dtype="i8"):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, dtype), name))


def loop(random, axis, taken, collected, condition, lengths):
    """A tanh cell over axis `axis` of x [2, T, 4] or [T, 2, 4]. `taken`: a step by Gather, by Gather behind a slice of everything, or out of the
    list that `x.unbind(axis)` is. `collected`: what the
    iterations gave, as a list or as outputs that the loop scans. `condition`: how the body says that it goes on. `lengths`: how the graph picks T."""
    weight = lambda *dims: random.normal(0, 0.5, dims).astype("f4")
    body = [constant("b0", [0]), constant("b1", [1]), constant("last", [LAST])]
    source = "x"
    if taken == "sliced":
        body.append(helper.make_node("Slice", ["x", "b0", "last", "b0", "b1"], ["whole"]))
        source = "whole"
    body += [
        helper.make_node("SequenceAt", ["items", "t"], ["row"]) if taken == "unbind" else helper.make_node("Gather", [source, "t"], ["row"], axis=axis),
        helper.make_node("Gemm", ["row", "w", "bias"], ["a"]),
        helper.make_node("MatMul", ["h", "u"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_next"]),
        {"identity": helper.make_node("Identity", ["go"], ["go_on"]), "outer": helper.make_node("Identity", ["true"], ["go_on"]),
         "constant": constant("go_on", True, "?")}[condition],
    ]
    given = [info("t", INT64, []), info("go", BOOL, []), info("h", FLOAT, [2, 3])]
    made = [info("go_on", BOOL, []), info("h_next", FLOAT, [2, 3])]
    inputs, outputs = ["T", "true", "h0"], ["h_last"]
    if collected == "list":
        body.append(helper.make_node("SequenceInsert", ["list", "h_next"], ["longer"]))
        given.append(helper.make_tensor_sequence_value_info("list", FLOAT, None))
        made.append(helper.make_tensor_sequence_value_info("longer", FLOAT, None))
        inputs.append("empty")
        outputs.append("ys")
    else:
        body.append(helper.make_node("Identity", ["h_next"], ["shown"]))
        made.append(info("shown", FLOAT, [2, 3]))
        outputs.append("stacked")
    nodes = [constant("true", True, "?"), constant("i0", [0]), constant("at", axis), constant("begin", [axis]), constant("end", [axis + 1])]
    nodes.append(helper.make_node("Shape", ["x"], ["shape"]))
    if taken == "unbind":
        nodes += [constant("one", 1), helper.make_node("SplitToSequence", ["x", "one"], ["items"], axis=axis, keepdims=0)]
    nodes += {
        "gather": [helper.make_node("Gather", ["shape", "at"], ["T"], axis=0)],
        "slice": [helper.make_node("Slice", ["shape", "begin", "end"], ["list_of_T"]), helper.make_node("Squeeze", ["list_of_T", "i0"], ["T"])],
        "narrow": [helper.make_node("Cast", ["shape"], ["narrow"], to=TensorProto.INT32), helper.make_node("Gather", ["narrow", "at"], ["T32"], axis=0),
                   helper.make_node("Cast", ["T32"], ["T"], to=INT64)],
    }[lengths]
    if collected == "list":
        nodes.append(helper.make_node("SequenceEmpty", [], ["empty"], dtype=FLOAT))
    nodes.append(helper.make_node("Loop", inputs, outputs, body=helper.make_graph(body, "body", given, made)))
    if collected == "list":
        nodes.append(helper.make_node("ConcatFromSequence", ["ys"], ["y"], axis=axis, new_axis=1))
    else:
        nodes.append(helper.make_node("Transpose", ["stacked"], ["y"], perm=[1, 0, 2] if axis == 1 else [0, 1, 2]))
    weights = {"w": weight(4, 3), "u": weight(3, 3), "bias": weight(3)}
    dims = ["T", 2, 4] if axis == 0 else [2, "T", 4]
    graph = helper.make_graph(nodes, "scripted", [info("x", FLOAT, dims), info("h0", FLOAT, [2, 3])], [info("y"), info("h_last")],
                              [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def from_zeros(axis):
    """h = h / 2 + a row, from `zeros_like` of the first row, over axis `axis` of x, whose batch is open too."""
    body = [constant("half", 0.5, "f4"), helper.make_node("Gather", ["x", "t"], ["row"], axis=axis), helper.make_node("Mul", ["h", "half"], ["faded"]),
            helper.make_node("Add", ["faded", "row"], ["h_next"]), helper.make_node("Identity", ["h_next"], ["shown"]), constant("go_on", True, "?")]
    given = [info("t", INT64, []), info("go", BOOL, []), info("h", FLOAT, ["B", 4])]
    made = [info("go_on", BOOL, []), info("h_next", FLOAT, ["B", 4]), info("shown", FLOAT, ["B", 4])]
    nodes = [constant("true", True, "?"), constant("i0", 0), constant("at", axis), helper.make_node("Gather", ["x", "i0"], ["first"], axis=axis),
             helper.make_node("Shape", ["first"], ["extents"]), helper.make_node("ConstantOfShape", ["extents"], ["h0"]),
             helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "at"], ["T"], axis=0),
             helper.make_node("Loop", ["T", "true", "h0"], ["h_last", "stacked"], body=helper.make_graph(body, "body", given, made)),
             helper.make_node("Transpose", ["stacked"], ["y"], perm=[1, 0, 2] if axis == 1 else [0, 1, 2])]
    graph = helper.make_graph(nodes, "zeros", [info("x", FLOAT, ["T", "B", 4] if axis == 0 else ["B", "T", 4])], [info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def heads(random, form, batch):
    """A state that is a matrix for each of two heads, over axis 0 of x [T, batch, 8]. `form` "known": the file knows the extents of the batch, and writes them into
    its reshapes and expansions. "moved": the body puts the heads before the batch. "unread": a loop stands in the body that nobody reads. "vector": rows meet a vector,
    and are looked through for NaN."""
    weight = lambda *dims: random.normal(0, 0.4, dims).astype("f4")
    shape = lambda name, *dims: constant(name, dims)
    weights = {"mix": weight(2, 4, 4), "column": weight(8), "decay": np.array([0.9], "f4")}
    body = [constant("m1", [-1]), constant("m2", [-2]), shape("apart", batch, 2, 4), shape("flat", batch, 8),
            helper.make_node("Gather", ["x", "t"], ["row"], axis=0),
            helper.make_node("Reshape", ["row", "apart"], ["k"])]
    mixed = "k"
    if form == "moved":
        mixed = "mixed"
        body += [helper.make_node("Transpose", ["k"], ["first"], perm=[1, 0, 2]), helper.make_node("MatMul", ["first", "mix"], ["product"]),
                 helper.make_node("Transpose", ["product"], ["mixed"], perm=[1, 0, 2])]
    if form == "known":
        mixed = "k_large"
        body += [shape("whole", batch, 2, 4), helper.make_node("ReduceMax", ["k"], ["large"], axes=[-1]), helper.make_node("Expand", ["large", "whole"], ["larges"]),
                 helper.make_node("ReduceMin", ["k"], ["small"], axes=[-1]), helper.make_node("Expand", ["small", "whole"], ["smalls"]),
                 helper.make_node("Sub", ["larges", "smalls"], ["range"]), helper.make_node("Mul", ["k", "range"], ["k_large"])]
    body += [helper.make_node("Unsqueeze", [mixed, "m1"], ["tall"]), helper.make_node("Unsqueeze", [mixed, "m2"], ["wide"]),
             helper.make_node("MatMul", ["tall", "wide"], ["outer"]), helper.make_node("Mul", ["h", "decay"], ["faded"]),
             helper.make_node("Add", ["faded", "outer"], ["h_next"]), helper.make_node("MatMul", ["wide", "h_next"], ["read"]),
             helper.make_node("Reshape", ["read", "flat"], ["o"])]
    if form == "vector":
        body += [helper.make_node("MatMul", ["row", "column"], ["number"]), helper.make_node("Unsqueeze", ["number", "m1"], ["numbers"]),
                 helper.make_node("Add", ["o", "numbers"], ["sum"]), helper.make_node("IsNaN", ["sum"], ["none"]),
                 helper.make_node("Where", ["none", "row", "sum"], ["shown"])]
    else:
        body.append(helper.make_node("Identity", ["o"], ["shown"]))
    if form == "unread":
        inner = helper.make_graph([helper.make_node("Identity", ["on"], ["on_next"]), helper.make_node("Add", ["n", "i"], ["n_next"])], "inner",
                                  [info("i", INT64, []), info("on", BOOL, []), info("n", INT64, [])], [info("on_next", BOOL, []), info("n_next", INT64, [])])
        body.append(helper.make_node("Loop", ["T", "go", "t"], ["nobody"], body=inner))
    body.append(helper.make_node("Identity", ["go"], ["go_on"]))
    state = [batch, 2, 4, 4]
    given = [info("t", INT64, []), info("go", BOOL, []), info("h", FLOAT, state)]
    made = [info("go_on", BOOL, []), info("h_next", FLOAT, state), info("shown", FLOAT, [batch, 8])]
    nodes = [constant("true", True, "?"), constant("at", 0), helper.make_node("Shape", ["x"], ["shape"]),
             helper.make_node("Gather", ["shape", "at"], ["T"], axis=0),
             helper.make_node("Loop", ["T", "true", "h0"], ["h_last", "y"], body=helper.make_graph(body, "body", given, made))]
    graph = helper.make_graph(nodes, "heads", [info("x", FLOAT, ["T", batch, 8]), info("h0", FLOAT, state)], [info("y"), info("h_last")],
                              [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def said(*words):
    return subprocess.run([oracle.MILLRACE, "inspect", *words], check=True, capture_output=True, text=True).stdout


forms = list(itertools.product((0, 1), ("gather", "sliced", "unbind"), ("list", "scan"), ("identity", "outer", "constant"), ("gather", "slice", "narrow")))
for seed in oracle.seeds([1]):
    print(f"seed {seed}", flush=True)
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scripted.onnx")
        for form in forms:
            model = loop(random, *form)
            onnx.save(model, path)
            session = oracle.session_of(path)
            for steps in (1, 6):
                dims = (steps, 2, 4) if form[0] == 0 else (2, steps, 4)
                feeds = {"x": random.normal(0, 1, dims).astype("f4"), "h0": random.normal(0, 1, (2, 3)).astype("f4")}
                output = oracle.run(path, feeds, folder)
                for name, wanted in zip(("y", "h_last"), session.run(None, feeds)):
                    oracle.same(output(name), wanted, (form, steps, name))
            assert "backend: fused" in said("--passes", path), form
        print(f"{len(forms)} forms of a loop, all fused")
        for axis in (0, 1):
            onnx.save(from_zeros(axis), path)
            session = oracle.session_of(path)
            for steps, batch in ((1, 1), (5, 1), (4, 3)):
                feeds = {"x": random.normal(0, 1, (steps, batch, 4) if axis == 0 else (batch, steps, 4)).astype("f4")}
                oracle.same(oracle.run(path, feeds, folder)("y"), session.run(None, feeds)[0], ("zeros", axis, steps, batch))
            assert "state '" in said("--streaming", path), axis
        print("states that begin as zeros like the first row go live")
        for form, batch in (("known", 1), ("known", 3), ("moved", 1), ("unread", 1), ("vector", 1), ("vector", 3)):
            onnx.save(heads(random, form, batch), path)
            session = oracle.session_of(path)
            for steps in (1, 2, 9):
                feeds = {"x": random.normal(0, 1, (steps, batch, 8)).astype("f4"), "h0": random.normal(0, 1, (batch, 2, 4, 4)).astype("f4")}
                if form == "vector":
                    feeds["x"][0, 0, 3] = np.nan
                output = oracle.run(path, feeds, folder)
                for name, wanted in zip(("y", "h_last"), session.run(None, feeds)):
                    oracle.same(output(name), wanted, (form, batch, steps, name))
            assert "backend: fused" in said("--passes", path), (form, batch)
        print("loops over heads, all fused")
