# SPDX-License-Identifier: Apache-2.0
"""`millrace run` gives what ONNX Runtime gives on small random graphs: f32 within 1e-5 relative. Prints the seed; MILLRACE_SEED runs one."""
import os
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime  # noqa: F401: oracle.session_of
    from onnx import TensorProto, helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle

oracle.need(oracle.MILLRACE)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
TYPES = {np.dtype("f4"): FLOAT, np.dtype("i8"): INT64, np.dtype("?"): BOOL}


class Graph:
    """Nodes and values of one model; inputs are fed, constants are initializers."""

    def __init__(self, rng, opset=17):
        self.rng, self.opset = rng, opset
        self.nodes, self.inputs, self.weights, self.outputs = [], {}, [], []

    def input(self, name, value):
        self.inputs[name] = np.asarray(value)
        return name

    def floats(self, name, *shape):
        return self.input(name, self.rng.standard_normal(shape).astype("f4"))

    def weight(self, name, value):
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights_of(self, name, *shape, scale=0.5):
        return self.weight(name, (self.rng.standard_normal(shape) * scale).astype("f4"))

    def node(self, op, inputs, outputs=1, **attributes):
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def give(self, *names):
        self.outputs += names

    def subgraph(self, inputs, nodes, outputs):
        infos = [helper.make_tensor_value_info(name, kind, None if kind == FLOAT else []) for name, kind in inputs]
        return helper.make_graph(nodes, "body", infos, [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs])

    def model(self):
        # Every extent but the last has a name: nothing is known of it when the program is built.
        infos = [
            helper.make_tensor_value_info(name, TYPES[value.dtype], [f"{name}_{i}" if value.ndim > 1 and i == 0 else n for i, n in enumerate(value.shape)])
            for name, value in self.inputs.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "graph", infos, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8 if self.opset < 23 else 11)


def dense(g):
    x = g.floats("x", 4, 7)
    h = g.node("Gemm", [x, g.weights_of("w", 5, 7), g.weights_of("b", 5)], transB=1)
    h = g.node("LayerNormalization", [h, g.weights_of("s", 5), g.weights_of("t", 5)])
    g.give(g.node("Softmax", [g.node("Gelu" if g.opset >= 20 else "Tanh", [h])]), g.node("ArgMax", [h], axis=-1))


def convolution(g):
    x = g.floats("x", 2, 3, 40)
    h = g.node("Pad", [x, g.weight("p", np.array([0, 0, 3, 0, 0, 5]))], mode="reflect")
    h = g.node("Conv", [h, g.weights_of("w1", 8, 3, 5), g.weights_of("b1", 8)], strides=[2], pads=[2, 1], dilations=[2])
    h = g.node("Relu", [h])
    h = g.node("Conv", [h, g.weights_of("w2", 4, 4, 3)], group=2, auto_pad="SAME_UPPER")
    h = g.node("BatchNormalization", [h, g.weights_of("s", 4), g.weights_of("b", 4), g.weights_of("m", 4), g.weight("v", np.abs(g.rng.standard_normal(4)).astype("f4") + 0.5)])
    g.give(g.node("Transpose", [h], perm=[2, 0, 1]), g.node("ReduceMean", [h], axes=[2], keepdims=0))


def pieces(g):
    x = g.floats("x", 6, 8)
    a, b, c = g.node("Split", [x, g.weight("sizes", np.array([1, 4, 3]))], outputs=3, axis=1)
    joined = g.node("Concat", [c, a, b], axis=1)
    cut = g.node("Slice", [joined, g.weight("st", np.array([-1])), g.weight("en", np.array([-7])), g.weight("ax", np.array([0])), g.weight("by", np.array([-2]))])
    rows = g.node("Gather", [x, g.input("index", np.array([[0, -1], [3, 2]]))])
    shape = g.node("Shape", [x])
    zeros = g.node("ConstantOfShape", [shape], value=onnx.numpy_helper.from_array(np.array([2], dtype="f4")))
    g.give(cut, g.node("Where", [g.node("Greater", [x, zeros]), zeros, x]), g.node("CumSum", [x, g.weight("one", np.array(1))]), g.node("Flatten", [rows], axis=2))


def lstm(direction, layout, peepholes=False, bias=True, states=True, **attributes):
    def build(g):
        directions = 2 if direction == "bidirectional" else 1
        steps, batch, features, hidden = 9, 3, 5, 6
        shape = (batch, steps, features) if layout else (steps, batch, features)
        state = (batch, directions, hidden) if layout else (directions, batch, hidden)
        inputs = [g.floats("x", *shape), g.weights_of("W", directions, 4 * hidden, features), g.weights_of("R", directions, 4 * hidden, hidden)]
        inputs += [g.weights_of("B", directions, 8 * hidden) if bias else "", ""]
        inputs += [g.floats("h0", *state), g.floats("c0", *state)] if states else ["", ""]
        inputs += [g.weights_of("P", directions, 3 * hidden)] if peepholes else []
        while inputs[-1] == "":
            inputs.pop()
        g.give(*g.node("LSTM", inputs, outputs=3, hidden_size=hidden, direction=direction, layout=layout, **attributes))

    return build


def branches(g):
    x = g.floats("x", 3, 4)
    yes = helper.make_node("Tanh", [x], ["a"])
    no = helper.make_node("ReduceSum", [x], ["b"], keepdims=0)
    condition = g.node("Greater", [g.node("ReduceMax", [x], keepdims=0), g.weight("limit", np.array(g.rng.choice([-9, 9]), dtype="f4"))])
    g.give(g.node("If", [condition], then_branch=g.subgraph([], [yes], [("a", FLOAT)]), else_branch=g.subgraph([], [no], [("b", FLOAT)])))


def loop(g):
    x = g.floats("x", 3, 4)
    nodes = [
        helper.make_node("Constant", [], ["half"], value=onnx.numpy_helper.from_array(np.array(0.5, dtype="f4"))),
        helper.make_node("Mul", ["s", "half"], ["scaled"]),
        helper.make_node("Add", ["scaled", x], ["t"]),
        helper.make_node("ReduceSum", ["t"], ["sum"], keepdims=0),
        helper.make_node("Constant", [], ["limit"], value=onnx.numpy_helper.from_array(np.array(1e9, dtype="f4"))),
        helper.make_node("Less", ["sum", "limit"], ["more"]),
    ]
    body = g.subgraph([("i", INT64), ("go", BOOL), ("s", FLOAT)], nodes, [("more", BOOL), ("t", FLOAT), ("sum", FLOAT)])
    g.give(*g.node("Loop", [g.input("n", np.array(6)), g.weight("go_in", np.array(True)), x], outputs=2, body=body))


def scan(g):
    x, y = g.floats("x", 5, 3), g.floats("y", 4, 5)
    nodes = [
        helper.make_node("ReduceSum", ["v"], ["extra"], keepdims=0),
        helper.make_node("Add", ["s", "u"], ["partial"]),
        helper.make_node("Add", ["partial", "extra"], ["t"]),
        helper.make_node("Tanh", ["t"], ["o"]),
    ]
    body = g.subgraph([("s", FLOAT), ("u", FLOAT), ("v", FLOAT)], nodes, [("t", FLOAT), ("o", FLOAT)])
    g.give(*g.node("Scan", [g.floats("s0", 3), x, y], outputs=2, body=body, num_scan_inputs=2, scan_input_axes=[0, 1], scan_input_directions=[0, 1], scan_output_directions=[1]))


def attention(g):
    """Shared heads, a cache, a causal mask beside one that is added, and positions that iteration."""
    steps, past, size = 5, 3, 8
    cos, sin = g.weights_of("cos", 16, size // 2), g.weights_of("sin", 16, size // 2)
    places = g.weight("places", np.arange(past, past + steps)[None].repeat(2, 0))
    turned = [g.node("RotaryEmbedding", [g.floats(name, 2, steps, heads * size), cos, sin, places], num_heads=heads, interleaved=pairs)
              for name, heads, pairs in (("q", 4, 0), ("k", 2, 1))]
    mask = g.weights_of("mask", steps, past + steps)
    y, keys, values = g.node("Attention", [*turned, g.floats("v", 2, steps, 2 * size), mask, g.floats("past_k", 2, 2, past, size), g.floats("past_v", 2, 2, past, size)],
                             outputs=3, q_num_heads=4, kv_num_heads=2, is_causal=1, softcap=5.0)
    looks = g.weight("looks", g.rng.random((2, 1, steps, steps)) < 0.7)
    g.give(y, keys, values, g.node("RMSNormalization", [y, g.weights_of("s", 4 * size)]),
           g.node("Attention", [g.floats("q4", 2, 3, steps, size), g.floats("k4", 2, 3, steps, size), g.floats("v4", 2, 3, steps, 6), looks]))


def front_end(g):
    """Frames of samples as a spectrum and back, and convolutions the other way."""
    x = g.floats("x", 2, 64)
    window = g.node("HannWindow", [g.weight("size", np.array(16))])
    g.give(g.node("STFT", [g.node("Unsqueeze", [x, g.weight("last", np.array([-1]))]), g.weight("hop", np.array(8)), window]))
    spectrum = g.node("DFT", [g.floats("y", 2, 10, 1)], axis=1)
    g.give(spectrum, g.node("DFT", [spectrum], axis=1, inverse=1), g.node("DFT", [spectrum, g.weight("n", np.array(7))], axis=1))
    z = g.floats("z", 2, 4, 9)
    g.give(g.node("ConvTranspose", [z, g.weights_of("w1", 4, 3, 5), g.weights_of("b1", 6)], group=2, strides=[3], pads=[2, 1], output_padding=[1], dilations=[2]))
    g.give(g.node("ConvTranspose", [z, g.weights_of("w2", 4, 3, 2)], strides=[3], auto_pad="SAME_UPPER"))
    g.give(*g.node("MaxPool", [z], outputs=2, kernel_shape=[3], strides=[2], pads=[1, 1]))


def curves(g):
    x = g.floats("x", 4, 9)
    inside = g.node("Tanh", [x])
    for op in ("Sinh", "Cosh", "Tan", "Atan", "Asinh"):
        g.give(g.node(op, [x]))
    for op in ("Asin", "Acos", "Atanh"):
        g.give(g.node(op, [inside]))
    g.give(g.node("Acosh", [g.node("Cosh", [x])]))


def quantized(g):
    """As dynamic quantizers write a product, and what they write around weights.

    Weights have seven bits: on processors without VNNI, ONNX Runtime adds two products of u8 and i8 in 16 bits that saturate.
    """
    values, scale, zero = g.node("DynamicQuantizeLinear", [g.floats("x", 6, 40)], outputs=3)
    w = g.weight("w", g.rng.integers(-64, 64, (40, 5)).astype("i1"))
    sums = g.node("Cast", [g.node("MatMulInteger", [values, w, zero, g.weight("wz", np.array(3, dtype="i1"))])], to=FLOAT)
    g.give(g.node("Mul", [sums, g.node("Mul", [scale, g.weight("ws", np.array(0.01, dtype="f4"))])]))
    per = [g.weight("s", np.abs(g.rng.standard_normal(5)).astype("f4") + 0.1), g.weight("z", g.rng.integers(-9, 9, 5).astype("i1"))]
    g.give(g.node("DequantizeLinear", [w, *per], axis=1))
    g.give(g.node("Cast", [g.node("QuantizeLinear", [g.floats("y", 3, 5), *per], axis=1)], to=FLOAT))


CASES = {
    "attention": attention,
    "front end": front_end,
    "curves": curves,
    "quantized": quantized,
    "dense": dense,
    "convolution": convolution,
    "pieces": pieces,
    "lstm": lstm("forward", 0),
    "lstm reverse": lstm("reverse", 0),
    "lstm bidirectional": lstm("bidirectional", 0),
    "lstm without bias and states": lstm("bidirectional", 0, bias=False, states=False),
    "lstm peepholes": lstm("bidirectional", 0, peepholes=True),
    "lstm clip": lstm("forward", 0, clip=0.3),
    "lstm input_forget": lstm("forward", 0, input_forget=1),
    "lstm activations": lstm("forward", 0, activations=["HardSigmoid", "Softsign", "Relu"], activation_alpha=[0.3], activation_beta=[0.4]),
    "branches": branches,
    "loop": loop,
    "scan": scan,
}


OPSETS = {"pieces": (13, 17, 20), "attention": (23,)}


def compare(name, g, folder):
    path = os.path.join(folder, "model.onnx")
    onnx.save(g.model(), path)
    load = oracle.run(path, g.inputs, folder)
    for output, expected in zip(g.outputs, oracle.session_of(path).run(g.outputs, g.inputs)):
        oracle.same(load(output), expected, f"{name}: {output}")


def main():
    for seed in oracle.seeds(range(1, 4)):
        for name, build in CASES.items():
            for opset in OPSETS.get(name, (17,)):
                print(f"seed {seed}: {name}, opset {opset}", flush=True)
                g = Graph(np.random.default_rng(seed), opset)
                build(g)
                with tempfile.TemporaryDirectory() as folder:
                    compare(name, g, folder)
    print("every output is within 1e-5 of ONNX Runtime's")


if __name__ == "__main__":
    main()
