# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers give what ONNX Runtime gives on random weights: f32 within 1e-5. Prints the seed; MILLRACE_SEED runs one."""
import sys

try:
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from layer_vectors import Vectors
from oracle import TEST_RUNTIME, need, seeds

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FORMS = [
    ("LSTM", "forward", {}),
    ("LSTM", "reverse", {"P": True, "lens": True}),
    ("LSTM", "bidirectional", {"P": True, "lens": True, "initial": True}),
    ("LSTM", "bidirectional", {"clip": 0.4, "initial": True}),
    ("LSTM", "forward", {"input_forget": 1, "lens": True}),
    ("LSTM", "forward", {"activations": ["HardSigmoid", "Softsign", "Relu"], "words": "gate=hard_sigmoid,0.3,0.4 candidate=softsign output=relu", "alpha": [0.3], "beta": [0.4]}),
    ("GRU", "forward", {"lbr": 0}),
    ("GRU", "forward", {"lbr": 1}),
    ("GRU", "reverse", {"lbr": 0, "lens": True, "initial": True}),
    ("GRU", "bidirectional", {"lbr": 1, "lens": True, "initial": True}),
    ("GRU", "bidirectional", {"lbr": 0, "clip": 0.4, "lens": True}),
    ("GRU", "forward", {"lbr": 1, "bias": False}),
    ("RNN", "forward", {}),
    ("RNN", "bidirectional", {"lens": True, "initial": True}),
    ("RNN", "reverse", {"clip": 0.4, "activations": ["Relu"], "words": "activation=relu"}),
]


def run(rng, vectors, op, direction, form):
    steps, n, c, hidden = 5, 3, 4, 3
    d, g = (2 if direction == "bidirectional" else 1), GATES[op]
    floats = lambda *shape: rng.standard_normal(shape).astype("f4")
    tensors = {"x": floats(steps, n, c), "w": floats(d, g * hidden, c), "r": floats(d, g * hidden, hidden)}
    tensors["b"] = floats(d, 2 * g * hidden) if form.get("bias", True) else None
    # Of a sequence of no steps ONNX Runtime says that its last state is zero; ours is the initial one.
    tensors["lens"] = np.array([5, 1 if form.get("initial") else 0, 3]) if form.get("lens") else None
    tensors["h0"] = floats(d, n, hidden) if form.get("initial") else None
    inputs = ["x", "w", "r", "b", "lens", "h0"]
    if op == "LSTM":
        tensors["c0"] = floats(d, n, hidden) if form.get("initial") else None
        tensors["p"] = floats(d, 3 * hidden) if form.get("P") else None
        inputs += ["c0", "p"]
    attributes = {"hidden_size": hidden, "direction": direction}
    words = f"{op.lower()} {direction}"
    if "clip" in form:
        attributes["clip"] = form["clip"]
        words += f" clip={form['clip']}"
    if "input_forget" in form:
        attributes["input_forget"] = 1
        words += " coupled=1"
    if op == "GRU":
        attributes["linear_before_reset"] = form["lbr"]
        words += f" after={form['lbr']}"
    if "activations" in form:
        attributes.update(activations=form["activations"])
        if "alpha" in form:
            attributes.update(activation_alpha=form["alpha"], activation_beta=form["beta"])
        words += " " + form["words"]
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    feeds = {name: value.astype("i4") if name == "lens" else value for name, value in tensors.items() if value is not None}
    node = helper.make_node(op, [name if name in feeds else "" for name in inputs], outputs, **attributes)
    types = {name: TensorProto.INT32 if name == "lens" else TensorProto.FLOAT for name in feeds}
    graph = helper.make_graph([node], "graph", [helper.make_tensor_value_info(name, types[name], value.shape) for name, value in feeds.items()],
                              [helper.make_empty_tensor_value_info(name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(outputs, feeds)
    vectors.add("onnx " + words, **{k: v for k, v in tensors.items()}, **dict(zip(["want_y", "want_h", "want_c"], results)))


def vectors_of(seed):
    rng, vectors = np.random.default_rng(seed), Vectors()
    for op, direction, form in FORMS:
        run(rng, vectors, op, direction, form)
    return vectors


if __name__ == "__main__":
    need(TEST_RUNTIME)
    for seed in seeds(range(1, 4)):
        print(f"seed {seed}", flush=True)
        vectors_of(seed).check("onnx")
