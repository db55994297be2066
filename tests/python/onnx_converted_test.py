# SPDX-License-Identifier: Apache-2.0
"""`millrace run` gives what ONNX Runtime gives on models as converters leave them: 8-bit ops of its static quantizer (one step of the output apart at most),
nodes of its optimiser, and nodes that stand before the nodes whose outputs they read. Prints the seed; MILLRACE_SEED runs one."""
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

MICROSOFT = "com.microsoft"
TYPES = {np.dtype("f4"): TensorProto.FLOAT, np.dtype("u1"): TensorProto.UINT8, np.dtype("i1"): TensorProto.INT8, np.dtype("i4"): TensorProto.INT32, np.dtype("?"): TensorProto.BOOL}


class Model:
    def __init__(self, rng):
        self.tolerance = None
        self.rng, self.nodes, self.feeds, self.weights, self.outputs = rng, [], {}, [], {}

    def feed(self, value):
        name = f"in{len(self.feeds)}"
        self.feeds[name] = value
        return name

    def floats(self, *shape):
        return self.rng.standard_normal(shape).astype("f4")

    def bytes(self, kind, *shape):
        # Seven bits: on processors without VNNI, ONNX Runtime adds two products of 8 bits in 16 bits that saturate.
        return self.rng.integers(0 if kind == "u1" else -64, 127 if kind == "u1" else 64, shape).astype(kind)

    def weight(self, value):
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def quantized(self, name, scale, kind, zero):
        """An input or a weight with its scale and its zero point."""
        return [name, self.weight(np.array(scale, "f4")), self.weight(np.array(zero, kind))]

    def node(self, op, inputs, kind="f4", give=True, domain=MICROSOFT, **attributes):
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, domain=domain, **attributes))
        if give:
            self.outputs[name] = TYPES[np.dtype(kind)]
        return name

    def sums(self, op, inputs):
        """The sum that a norm of a sum gives beside it."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name, "", "", f"{name}_sum"], name=name, domain=MICROSOFT))
        self.outputs |= {name: TensorProto.FLOAT, f"{name}_sum": TensorProto.FLOAT}

    def save(self, path):
        inputs = [helper.make_tensor_value_info(name, TYPES[value.dtype], value.shape) for name, value in self.feeds.items()]
        outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in self.outputs.items()]
        graph = helper.make_graph(self.nodes, "graph", inputs, outputs, self.weights)
        sets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), path)


def elementwise_bytes(m):
    for kind, zero in (("u1", 100), ("i1", -5)):
        a = m.quantized(m.feed(m.bytes(kind, 3, 5)), 0.02, kind, zero)
        b = m.quantized(m.feed(m.bytes(kind, 5)), 0.03, kind, zero + 3)
        c = [m.weight(np.array(0.05, "f4")), m.weight(np.array(zero + 10, kind))]
        m.node("QLinearAdd", a + b + c, kind)
        m.node("QLinearMul", a + b + c, kind)
        m.node("QLinearSigmoid", a + [m.weight(np.array(1 / 256, "f4")), m.weight(np.array(0 if kind == "u1" else -128, kind))], kind)
        m.node("QLinearLeakyRelu", a + c, kind, alpha=0.2)


def layers_of_bytes(m):
    for kind, zero in (("u1", 60), ("i1", -5)):
        y = [m.weight(np.array(1 / 256, "f4")), m.weight(np.array(0 if kind == "u1" else -128, kind))]
        same = [m.weight(np.array(0.03, "f4")), m.weight(np.array(zero + 5, kind))]
        x = m.quantized(m.feed(m.bytes(kind, 3, 4, 5)), 0.05, kind, zero)
        for opset, axis in ((13, -1), (13, 1), (12, 1), (12, 2)):
            m.node("QLinearSoftmax", x + y, kind, opset=opset, axis=axis)
        other = m.quantized(m.feed(m.bytes(kind, 3, 2, 5)), 0.02, kind, zero - 3)
        m.node("QLinearConcat", same + x + other, kind, axis=1)
        choice = m.feed(m.rng.integers(0, 2, (3, 4, 5)).astype("?"))
        m.node("QLinearWhere", [choice, *x, *m.quantized(m.feed(m.bytes(kind, 5)), 0.02, kind, zero - 3), *same], kind)
    for last in (0, 1):
        kind, zero = "u1", 60
        x = m.quantized(m.feed(m.bytes(kind, *((2, 6, 7, 3) if last else (2, 3, 6, 7)))), 0.05, kind, zero)
        y = [m.weight(np.array(0.03, "f4")), m.weight(np.array(zero + 5, kind))]
        m.node("QLinearGlobalAveragePool", x + y, kind, channels_last=last)
        m.node("QLinearAveragePool", x + y, kind, channels_last=last, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], count_include_pad=last)
    w = m.quantized(m.weight(m.bytes("i1", 4, 3, 3, 2)), 0.02, "i1", 0)
    m.node("QLinearConv", x + w + y + [m.weight(np.array([100, -200, 300, 0], "i4"))], kind, channels_last=1, pads=[1, 0, 1, 1], strides=[2, 1])
    m.node("NhwcMaxPool", x[:1], kind, kernel_shape=[2, 3], strides=[1, 2])


def wide_integers(m):
    """Of 16 bits, as models before opset 21 have them."""
    x = m.feed(m.floats(4, 6))
    scale, zero = m.weight(np.array(0.001, "f4")), m.weight(np.array(30000, "u2"))
    bytes = m.node("QuantizeLinear", [x, scale, zero], give=False)
    m.node("DequantizeLinear", [bytes, scale, zero])
    per = [m.weight(np.array([0.01, 0.02, 0.03, 0.04], "f4")), m.weight(np.array([3, 5, 7, 9], "i1"))]
    m.node("DequantizeLinear", [m.node("QuantizeLinear", [x, *per], give=False, axis=0), *per], axis=0)


def quantized_lstm(m, directions, batch, kind, per_gate, **attributes):
    """As the dynamic quantizer writes an LSTM: X, W, R, B, lengths, h, c, P, and scale and zero point of W and of R."""
    t, c, h = 7, 6, 5
    weights = [m.weight(m.bytes(kind, directions, n, 4 * h)) for n in (c, h)]
    tail = []
    for _ in range(2):
        shape = (directions, 4 * h) if per_gate else (directions,)
        tail.append(m.weight(m.rng.uniform(0.002, 0.02, shape).astype("f4")))
        tail.append(m.weight(np.full(shape, 0 if kind == "i1" else 60, kind)))
    state = [m.feed(m.floats(directions, batch, h)) for _ in range(2)] if attributes.pop("states", False) else ["", ""]
    lengths = m.feed(m.rng.integers(1, t + 1, batch).astype("i4")) if attributes.pop("lengths", False) else ""
    peepholes = m.weight(m.floats(directions, 3 * h)) if attributes.pop("peepholes", False) else ""
    inputs = [m.feed(m.floats(t, batch, c)), *weights, m.weight(m.floats(directions, 8 * h)), lengths, *state, peepholes, *tail]
    name = f"lstm_{len(m.nodes)}"
    outputs = [f"{name}_{part}" for part in "yhc"]
    m.nodes.append(helper.make_node("DynamicQuantizeLSTM", inputs, outputs, name=name, domain=MICROSOFT, hidden_size=h, **attributes))
    m.outputs |= {output: TensorProto.FLOAT for output in outputs}


def dynamic_bytes(m):
    """Numbers stand close to where they are rounded once in a while: then they are a step of a byte apart."""
    m.tolerance = 2e-2
    for batch in (1, 3):
        quantized_lstm(m, 1, batch, "i1", False)
        quantized_lstm(m, 2, batch, "i1", False, direction="bidirectional", states=True, lengths=True)
        quantized_lstm(m, 1, batch, "u1", False, direction="reverse", peepholes=True)
        quantized_lstm(m, 1, batch, "i1", True, input_forget=1, clip=1.5)
    x, w = m.feed(m.floats(2, 3, 6)), m.weight(m.bytes("i1", 6, 4))
    one, each = m.weight(np.array(0.01, "f4")), m.weight(np.array([0.01, 0.02, 0.03, 0.04], "f4"))
    bias = m.weight(m.floats(4))
    m.node("DynamicQuantizeMatMul", [x, w, one, m.weight(np.array(0, "i1")), bias])
    m.node("DynamicQuantizeMatMul", [x, w, each])
    m.node("DynamicQuantizeMatMul", [x, m.weight(m.bytes("u1", 6, 4)), each, m.weight(np.array([3, 60, 0, 7], "u1"))])


def products_of_bytes(m):
    a = m.quantized(m.feed(m.bytes("u1", 4, 6)), 0.02, "u1", 60)
    b = [m.weight(m.bytes("i1", 6, 3)), m.weight(np.array([0.01, 0.02, 0.03], "f4")), m.weight(np.array([0, 0, 0], "i1"))]
    c = m.weight(np.array([100, -200, 300], "i4"))
    y = [m.weight(np.array(0.04, "f4")), m.weight(np.array(90, "u1"))]
    m.node("QGemm", a + b + [c] + y, "u1")
    m.node("QGemm", a + b + [c])
    m.node("QGemm", a + b + [""] + y, "u1", alpha=0.5)
    turned = m.quantized(m.weight(m.bytes("i1", 3, 6)), 0.02, "i1", 2)
    m.node("QGemm", a + turned + [c], transB=1)


def optimised(m):
    x, w, bias = m.feed(m.floats(2, 3, 8)), m.weight(m.floats(4, 3, 3)), m.weight(m.floats(4))
    for activation, numbers in (("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]), ("Clip", [-0.5, 0.5])):
        more = {"activation_params": numbers} if numbers else {}
        m.node("FusedConv", [x, w, bias], activation=activation, pads=[1, 1], **more)
    y, b = m.feed(m.floats(3, 5)), m.weight(m.floats(5))
    m.node("BiasGelu", [y, b])
    m.node("Gelu", [y])
    m.node("FastGelu", [y, b])
    m.node("FastGelu", [y])
    m.node("QuickGelu", [y])
    m.node("QuickGelu", [y], alpha=1.0)
    m.node("SkipLayerNormalization", [x, x, m.weight(m.floats(8)), m.weight(m.floats(8))])


def fused_products(m):
    a, b = m.feed(m.floats(2, 3, 4)), m.feed(m.floats(2, 4, 5))
    m.node("FusedMatMul", [a, b], alpha=0.3)
    m.node("FusedMatMul", [m.feed(m.floats(2, 4, 3)), b], transA=1)
    m.node("FusedMatMul", [a, m.weight(m.floats(5, 4))], transB=1, alpha=2.0)
    m.node("FusedMatMul", [m.feed(m.floats(3, 2, 4)), b], transBatchA=1)
    m.node("FusedMatMul", [m.feed(m.floats(4, 2, 3)), b], transA=1, transBatchA=1)
    m.node("FusedMatMul", [a, m.feed(m.floats(5, 2, 4))], transB=1, transBatchB=1)
    m.node("FusedMatMul", [m.feed(m.floats(3, 2, 6, 4)), m.feed(m.floats(4, 2, 6, 5))], transBatchA=1, transBatchB=1)
    m.node("FusedMatMul", [m.feed(m.floats(4)), b], transA=1)
    m.node("TransposeMatMul", [a, m.weight(m.floats(5, 4))], transB=1)
    x, w, c = m.feed(m.floats(3, 6)), m.weight(m.floats(5, 6)), m.weight(m.floats(5))
    for activation, numbers in (("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("Softplus", {}), ("Softsign", {}), ("LeakyRelu", {"alpha": 0.2}),
                                ("Elu", {"alpha": 0.7}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("ThresholdedRelu", {"alpha": 0.5})):
        m.node("FusedGemm", [x, w, c], activation=activation, transB=1, alpha=0.8, beta=0.5, **{f"activation_{k}": v for k, v in numbers.items()})


def norms_of_sums(m):
    x, skip, row = m.feed(m.floats(2, 3, 8)), m.feed(m.floats(2, 3, 8)), m.feed(m.floats(3, 8))
    scale, shift, bias = (m.weight(m.floats(8)) for _ in range(3))
    for op, weights in (("SkipLayerNormalization", [scale, shift]), ("SkipLayerNormalization", [scale]), ("SkipSimplifiedLayerNormalization", [scale])):
        m.node(op, [x, skip, *weights])
        m.node(op, [x, row, *weights], epsilon=0.1)
        biased = [x, skip, *weights, *([""] if len(weights) == 1 and "Simpl" not in op else []), bias]
        m.node(op, biased)
        m.sums(op, biased)
    for axis in (-1, 1):
        m.node("SimplifiedLayerNormalization", [x, scale if axis == -1 else m.weight(m.floats(3, 8))], domain="", axis=axis, epsilon=1e-3, stash_type=1)


def nodes_out_of_order(m):
    """As a converter to float16 leaves them: its casts at the end, and one that only a branch reads."""
    x = m.feed(m.floats(3, 4).astype("f2").astype("f4"))  # ONNX Runtime's optimizer leaves out the rounding of a cast there and back
    helper_nodes = [helper.make_node("Cast", [x], ["half"], name="half", to=TensorProto.FLOAT16), helper.make_node("Cast", ["flag"], ["chosen"], to=TensorProto.BOOL)]
    m.weights.append(onnx.numpy_helper.from_array(np.array(1.0, "f4"), "flag"))
    branch = lambda op: helper.make_graph([helper.make_node(op, ["half"], [op])], op, [], [helper.make_tensor_value_info(op, TensorProto.FLOAT16, None)])
    m.nodes.append(helper.make_node("Cast", ["out16"], ["out"], to=TensorProto.FLOAT))
    m.nodes.append(helper.make_node("If", ["chosen"], ["out16"], then_branch=branch("Neg"), else_branch=branch("Abs")))
    m.nodes += helper_nodes
    m.outputs["out"] = TensorProto.FLOAT


CASES = {"elementwise bytes": elementwise_bytes, "products of bytes": products_of_bytes, "layers of bytes": layers_of_bytes, "wide integers": wide_integers, "dynamic bytes": dynamic_bytes,
         "optimised": optimised, "fused products": fused_products, "norms of sums": norms_of_sums, "out of order": nodes_out_of_order}


def compare(name, m, folder):
    path = os.path.join(folder, "model.onnx")
    m.save(path)
    load = oracle.run(path, m.feeds, folder)
    for output, expected in zip(m.outputs, oracle.session_of(path).run(list(m.outputs), m.feeds)):
        if m.tolerance is not None:
            np.testing.assert_allclose(load(output), expected, rtol=0, atol=m.tolerance, err_msg=f"{name}: {output}")
            continue
        if expected.dtype.itemsize > 1:
            oracle.same(load(output), expected, f"{name}: {output}")
            continue
        found = load(output)
        assert found.dtype == expected.dtype and found.shape == expected.shape, (name, output, found.dtype, found.shape)
        assert np.abs(found.astype("i4") - expected.astype("i4")).max() <= 1, (name, output, found, expected)


def main():
    for seed in oracle.seeds(range(1, 4)):
        for name, build in CASES.items():
            print(f"seed {seed}: {name}", flush=True)
            m = Model(np.random.default_rng(seed))
            build(m)
            with tempfile.TemporaryDirectory() as folder:
                compare(name, m, folder)
    print("models as converters leave them give what ONNX Runtime gives")


if __name__ == "__main__":
    main()
