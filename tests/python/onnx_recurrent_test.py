# SPDX-License-Identifier: Apache-2.0
"""`millrace run` gives what ONNX Runtime gives on recurrent networks: RNN, GRU and LSTM with random attributes, lengths and shapes, the nodes
that exporters put around them, and, where PyTorch is installed, what its exporter writes. f32 within 1e-5. Prints the seed; MILLRACE_SEED
runs one."""
import io
import os
import sys
import tempfile
import warnings

try:
    import numpy as np
    import onnxruntime  # noqa: F401: oracle.session_of
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle

oracle.need(oracle.MILLRACE)

TYPES = {np.dtype("f4"): TensorProto.FLOAT, np.dtype("i8"): TensorProto.INT64, np.dtype("i4"): TensorProto.INT32}
KINDS = {"RNN": (1, 1, 1), "GRU": (3, 1, 2), "LSTM": (4, 2, 3)}  # gates, states, functions
FUNCTIONS = {  # name -> (takes alpha, takes beta)
    "Sigmoid": (0, 0), "Tanh": (0, 0), "Relu": (0, 0), "Softsign": (0, 0), "Softplus": (0, 0), "Elu": (1, 0), "LeakyRelu": (1, 0),
    "ThresholdedRelu": (1, 0), "Affine": (1, 1), "ScaledTanh": (1, 1), "HardSigmoid": (1, 1),
}


def compare(title, model, inputs):
    """`model`: bytes; `inputs`: arrays by name."""
    session = oracle.session_of(model)
    names = [output.name for output in session.get_outputs()]
    wanted = session.run(names, inputs)
    if not all(np.all(np.isfinite(value) & (np.abs(value) < 1e4)) for value in wanted):
        return print(f"{title}: grows beyond what can be compared")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        with open(path, "wb") as file:
            file.write(model)
        load = oracle.run(path, inputs, folder)
        for name, expected in zip(names, wanted):
            oracle.same(load(name), expected, f"{title}: {name}")


def functions(rng, count):
    """Random functions, with the numbers of those that have some."""
    names = [str(name) for name in rng.choice(list(FUNCTIONS), count)]
    attributes = {"activations": names}
    alphas = [float(rng.uniform(0.1, 0.9)) for name in names if FUNCTIONS[name][0]]
    betas = [float(rng.uniform(0.1, 0.9)) for name in names if FUNCTIONS[name][1]]
    if alphas:
        attributes["activation_alpha"] = alphas
    if betas:
        attributes["activation_beta"] = betas
    return attributes


def random_node(rng):
    """One recurrent node: its model and its inputs."""
    op = str(rng.choice(list(KINDS)))
    gates, states, per_direction = KINDS[op]
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    t, b, c, h = (int(rng.integers(1, limit)) for limit in (9, 6, 7, 11))
    attributes = {"hidden_size": h, "direction": direction}
    if rng.random() < 0.4:
        attributes.update(functions(rng, d * per_direction))
    if rng.random() < 0.3:
        attributes["clip"] = float(rng.uniform(0.2, 1))
    if op == "GRU" and rng.random() < 0.5:
        attributes["linear_before_reset"] = 1
    if op == "LSTM" and rng.random() < 0.3:
        attributes["input_forget"] = 1

    def floats(*shape, scale=0.5):
        return (rng.standard_normal(shape) * scale).astype("f4")

    values = {"X": floats(t, b, c, scale=1), "W": floats(d, gates * h, c), "R": floats(d, gates * h, h, scale=0.3)}
    if rng.random() < 0.7:
        values["B"] = floats(d, 2 * gates * h)
    if rng.random() < 0.6:
        values["lens"] = rng.integers(0, t + 1, b).astype("i4")
    if rng.random() < 0.6:
        values["h0"] = floats(d, b, h)
    if op == "LSTM" and rng.random() < 0.6:
        values["c0"] = floats(d, b, h)
    if op == "LSTM" and rng.random() < 0.4:
        values["P"] = floats(d, 3 * h)
    order = ["X", "W", "R", "B", "lens", "h0"] + (["c0", "P"] if op == "LSTM" else [])
    names = [name if name in values else "" for name in order]
    while names[-1] == "":
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 1 + states]
    wanted = [name if rng.random() < 0.8 else "" for name in outputs]
    if not any(wanted):
        wanted = outputs
    nodes = [helper.make_node(op, names, wanted, **attributes)]
    fed = {name: values[name] for name in ("X", "lens", "h0", "c0") if name in values}
    weights = [numpy_helper.from_array(value, name) for name, value in values.items() if name not in fed]
    infos = [helper.make_tensor_value_info(name, TYPES[value.dtype], [f"{name}{i}" if rng.random() < 0.5 else n for i, n in enumerate(value.shape)]) for name, value in fed.items()]
    graph = helper.make_graph(nodes, "graph", infos, [helper.make_empty_tensor_value_info(name) for name in wanted if name], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", int(rng.choice([7, 13, 14, 22])))], ir_version=8)
    return f"{nodes[0].op_type} {attributes} lens {values.get('lens')}", model.SerializeToString(), fed


def random_nodes(seed):
    rng = np.random.default_rng(seed)
    for _ in range(int(os.environ.get("MILLRACE_CASES", 25))):
        title, model, inputs = random_node(rng)
        compare(f"seed {seed}: {title}", model, inputs)


# ---- what exporters put around recurrent layers


def single(op, inputs, weights=(), outputs=1, opset=17, known=False, **attributes):
    """A model of one node. `inputs`: arrays that are fed, extents unknown unless `known`; `weights`: arrays that the file holds."""
    fed = {f"x{i}": value for i, value in enumerate(inputs)}
    held = [numpy_helper.from_array(value, f"w{i}") for i, value in enumerate(weights)]
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, [*fed, *(tensor.name for tensor in held)], names, **attributes)
    infos = [helper.make_tensor_value_info(name, TYPES[value.dtype], value.shape if known else [f"{name}_{i}" for i in range(value.ndim)]) for name, value in fed.items()]
    graph = helper.make_graph([node], "graph", infos, [helper.make_empty_tensor_value_info(name) for name in names], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return f"{op} {attributes} {[value.shape for value in inputs]}", model.SerializeToString(), fed


def window(rng):
    kernel, stride = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    attributes = {"strides": [stride]}
    if rng.random() < 0.5:
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes["pads"] = [int(pad) for pad in rng.integers(0, kernel, 2)]
    return kernel, attributes


def around(rng):
    def floats(*shape):
        return rng.standard_normal(shape).astype("f4")

    a, b, c, d = (int(extent) for extent in rng.integers(2, 6, 4))
    length = int(rng.integers(8, 20))
    kernel, attributes = window(rng)
    dilation = {} if attributes.get("auto_pad", "").startswith("SAME") else {"dilations": [int(rng.integers(1, 3))]}
    yield single("Conv", [floats(a, 2 * b, length)], [floats(2 * c, b, kernel), floats(2 * c)], group=2, **attributes, **dilation)
    yield single("Conv", [floats(a, b, length, 7)], [floats(c, b, 3, kernel)], strides=[2, 1], pads=[1, 0, 0, kernel], dilations=[2, 1])
    yield single("MaxPool", [floats(a, b, length)], kernel_shape=[kernel], **attributes)
    yield single("AveragePool", [floats(a, b, length)], kernel_shape=[kernel], count_include_pad=int(rng.integers(0, 2)), **attributes)
    pads = [int(pad) for pad in rng.integers(0, kernel, 2)]
    yield single("MaxPool", [floats(a, b, length)], opset=19, kernel_shape=[kernel], strides=attributes["strides"], pads=pads, ceil_mode=1)
    yield single("AveragePool", [floats(a, b, length)], opset=19, kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1)
    yield single("GlobalAveragePool", [floats(a, b, length)])
    yield single("InstanceNormalization", [floats(a, b, length)], [floats(b), floats(b)])
    yield single("GroupNormalization", [floats(a, 2 * b, length)], [floats(2 * b), floats(2 * b)], opset=21, known=True, num_groups=2)
    axis = int(rng.integers(0, 2))
    lengths = rng.integers(1, (b, a)[axis] + 1, (a, b)[axis]).astype("i8")
    yield single("ReverseSequence", [floats(a, b, c), lengths], batch_axis=axis, time_axis=1 - axis)
    yield single("Trilu", [floats(a, b, c)], [np.array(int(rng.integers(-2, 3)))], upper=int(rng.integers(0, 2)))
    yield single("TopK", [floats(a, b, c)], [np.array([2])], outputs=2, axis=int(rng.integers(-1, 2)), largest=int(rng.integers(0, 2)))
    yield single("NonZero", [(floats(a, b) > 0).astype("f4")])
    yield single("GatherND", [floats(a, b, c), rng.integers(0, b, (a, d, 1)).astype("i8")], batch_dims=1)
    yield single("ScatterND", [floats(a, b), rng.integers(0, a, (d, 1)).astype("i8"), floats(d, b)], opset=18, reduction="add")
    yield single("ScatterElements", [floats(a, b), rng.integers(-b, b, (a, d)).astype("i8"), floats(a, d)], opset=18, axis=1, reduction="max")
    yield single("Split", [floats(a, 2 * b)], outputs=2, opset=13, axis=-1)
    yield single("Einsum", [floats(a, b, c), floats(a, d, c)], equation="bqd,bkd->bqk")
    yield single("Einsum", [floats(a, b, c, d), floats(a, length, c, d)], equation="bqhd,bkhd->bhqk")
    yield single("Einsum", [floats(a, b, c), floats(c, d), floats(d)], equation="bij,jk,k->ib")
    yield single("Einsum", [floats(a, b, b)], equation="...ii->...i")


# ---- what PyTorch exports


def exported(torch):
    """Models with axes of any extent: how they are called, what is fed when they are exported, and what is fed then."""
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self, kind, packed, **options):
            super().__init__()
            self.packed, self.words = packed, nn.Embedding(50, 12)
            self.layers = getattr(nn, kind)(12, 8, batch_first=True, bidirectional=True, **options)
            self.out = nn.Linear(16, 5)

        def forward(self, words, lengths):
            x = self.words(words)
            if self.packed:
                x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            y, h = self.layers(x)
            if self.packed:
                y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
            return torch.log_softmax(self.out(y), -1), (h[0] if isinstance(h, tuple) else h) + lengths.sum()

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.encoder = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True, bidirectional=True)
            self.cell, self.look, self.out = nn.GRUCell(24, 16), nn.Linear(16, 16), nn.Linear(16, 20)

        def forward(self, words, lengths):
            y, h = self.encoder(self.words(words))
            state, token, outputs = torch.cat([h[0], h[1]], -1), torch.zeros(words.size(0), dtype=torch.long), []
            behind = torch.arange(words.size(1))[None, :] >= lengths[:, None]
            for _ in range(4):
                scores = torch.bmm(y, self.look(state).unsqueeze(2)).squeeze(2).masked_fill(behind, -1e9)
                seen = torch.bmm(torch.softmax(scores, 1).unsqueeze(1), y).squeeze(1)
                state = self.cell(torch.cat([self.words(token), seen], -1), state)
                outputs.append(self.out(state))
                token = outputs[-1].argmax(-1)
            return torch.stack(outputs, 1), state

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(6, 16, 5, padding=2), nn.BatchNorm1d(16), nn.GELU(), nn.MaxPool1d(2),
                                       nn.Conv1d(16, 16, 3, dilation=2, groups=4), nn.InstanceNorm1d(16, affine=True), nn.ELU(),
                                       nn.AvgPool1d(3, 2, padding=1), nn.GroupNorm(4, 16), nn.SiLU())  # fmt: skip
            self.layers, self.attention, self.norm = nn.LSTM(16, 12, batch_first=True), nn.MultiheadAttention(12, 3, batch_first=True), nn.LayerNorm(12)

        def forward(self, words, lengths):
            x = words.float().unsqueeze(1) * torch.linspace(-1, 1, 6)[None, :, None] / 50
            y, _ = self.layers(self.front(x).transpose(1, 2))
            seen, _ = self.attention(y, y, y)
            return self.norm(y + seen), nn.functional.adaptive_avg_pool1d(y.transpose(1, 2), 1) + lengths.sum()

    for kind in ("RNN", "GRU", "LSTM"):
        yield f"{kind}, 3 layers", Tagger(kind, False, num_layers=3)
        yield f"packed {kind}", Tagger(kind, True, num_layers=2)
    yield "attention decoder", Translator()
    yield "convolutions and attention", Listener()


def torch_exports():
    try:
        import torch
    except ImportError as error:
        return print(f"skipped: models that PyTorch exports: {error}")
    torch.manual_seed(1)
    axes = {"words": {0: "b", 1: "t"}, "lengths": {0: "b"}}
    for title, model in exported(torch):
        model.eval()
        for opset in (11, 16) if "packed" in title else (14,):
            file = io.BytesIO()
            # A packed layer's initial state has the batch of the export.
            example = torch.randint(0, 20, (3, 17)), torch.tensor([17, 9, 4])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(model, example, file, input_names=list(axes), output_names=["y", "h"], dynamic_axes=axes, opset_version=opset)
            batch = 3 if "packed" in title else 5
            fed = {"words": np.random.default_rng(2).integers(0, 20, (batch, 23)), "lengths": np.array([23, 20, 11, 2, 1][:batch])}
            compare(f"{title}, opset {opset}", file.getvalue(), fed)
            print(f"PyTorch {torch.__version__}: {title}, opset {opset}", flush=True)


def main():
    for seed in oracle.seeds(range(1, 4)):
        print(f"seed {seed}: random nodes", flush=True)
        random_nodes(seed)
        for title, model, inputs in around(np.random.default_rng(seed)):
            compare(f"seed {seed}: {title}", model, inputs)
    torch_exports()
    print("every output is within 1e-5 of ONNX Runtime's")


if __name__ == "__main__":
    main()
