# SPDX-License-Identifier: Apache-2.0
"""Graphs of ONNX in the shapes of real networks, with random weights, and ONNX Runtime beside them.

"models_write FOLDER NAME SHORT LONG"  writes NAME.onnx, feeds of SHORT and LONG steps as .npz, and, for a causal network, NAME_step.onnx,
                                       which takes its states and gives the next ones
"models_whole FOLDER NAME SHORT LONG THREADS"  times a step: the difference of two calls over SHORT and LONG steps
"models_live FOLDER NAME THREADS"              times a call of one step
"""
import time

import numpy


class Graph:
    """Nodes and weights of one graph, whose batch axes and number of steps stay open."""

    def __init__(self):
        self.random = numpy.random.default_rng(7)
        self.nodes, self.weights, self.count = [], {}, 0

    def weight(self, *dims, scale=None):
        fan = dims[-1] if len(dims) < 3 else int(numpy.prod(dims[1:]))
        return self.constant(self.random.normal(0, 1 / numpy.sqrt(fan) if scale is None else scale, dims).astype("f4"))

    def constant(self, value):
        name = f"w{len(self.weights)}"
        self.weights[name] = numpy.asarray(value)
        return name

    def integers(self, *values):
        return self.constant(numpy.array(values, "i8"))

    def node(self, op, *inputs, outputs=1, **attributes):
        from onnx import helper
        names = [f"v{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x, rows, columns):
        return self.node("Add", self.node("MatMul", x, self.weight(rows, columns, scale=rows ** -0.5)), self.weight(columns, scale=0.1))

    def recurrent(self, op, x, features, hidden, both=False, lengths="", states=None):
        """[T, B, features] -> [T, B, directions * hidden]. `states`: names of initial states; the last ones are added to it behind them."""
        gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if both else 1
        inputs = [x, self.weight(directions, gates * hidden, features, scale=features ** -0.5),
                  self.weight(directions, gates * hidden, hidden, scale=hidden ** -0.5), self.weight(directions, 2 * gates * hidden, scale=0.1), lengths]
        attributes = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
        if op == "GRU":
            attributes["linear_before_reset"] = 1
        y, *last = self.node(op, *inputs, *(states or []), outputs=3 if op == "LSTM" else 2, **attributes)
        if states is not None:
            states += last
        return self.node("Reshape", self.node("Transpose", y, perm=[0, 2, 1, 3]), self.integers(0, 0, directions * hidden))

    def conv(self, x, channels, filters, kernel, **attributes):
        kernel = list(kernel)
        return self.node("Conv", x, self.weight(filters, channels, *kernel), self.weight(filters, scale=0.1), kernel_shape=kernel, **attributes)

    def relu(self, x):
        return self.node("Relu", x)

    def pool(self, x, *kernel):
        return self.node("MaxPool", x, kernel_shape=list(kernel), strides=list(kernel))


def layers(graph, x, features, hidden, count, states, op="LSTM"):
    """`count` layers; `states`: of each layer its initial states, or None."""
    for layer in range(count):
        x = graph.recurrent(op, x, features if layer == 0 else hidden, hidden, states=states and states[layer])
    return x


def silero(g, states):
    """Frames [T, 576] of speech: a transform as a convolution, four convolutions, LSTM 128, a probability."""
    padded = g.node("Pad", g.node("Unsqueeze", "x", g.integers(1)), g.integers(0, 0, 0, 0, 0, 64), mode="reflect")
    spectrum = g.conv(padded, 1, 258, [256], strides=[128])
    real, imaginary = g.node("Split", spectrum, axis=1, num_outputs=2, outputs=2)
    x = g.node("Sqrt", g.node("Add", g.node("Mul", real, real), g.node("Mul", imaginary, imaginary)))
    for channels, filters, stride in ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)):
        x = g.relu(g.conv(x, channels, filters, [3], pads=[1, 1], strides=[stride]))
    x = layers(g, g.node("Reshape", x, g.integers(-1, 1, 128)), 128, 128, 1, states)
    return g.node("Sigmoid", g.linear(g.relu(x), 128, 1))


def resemblyzer(g, states):
    """Mel frames [T, 1, 40]: 3 layers of LSTM 256, then dense and relu."""
    return g.relu(g.linear(layers(g, "x", 40, 256, 3, states), 256, 256))


def beatnet(g, states):
    """Spectra [T, 272]: a convolution with 2 filters over the spectrum, a pool, dense 150, 2 layers of LSTM 150, dense 3."""
    x = g.relu(g.conv(g.node("Unsqueeze", "x", g.integers(1)), 1, 2, [10]))
    x = g.node("Reshape", g.pool(x, 2), g.integers(-1, 1, 262))
    return g.linear(layers(g, g.linear(x, 262, 150), 150, 150, 2, states), 150, 3)


def g2pm(g, states):
    """Characters [T, 32, 64] of 32 sentences with lengths: BiLSTM 32, two dense layers."""
    x = g.recurrent("LSTM", "x", 64, 32, both=True, lengths="lengths")
    return g.linear(g.relu(g.linear(x, 64, 64)), 64, 128)


def sleepecg(g, states):
    """Heart rates [T, 1, 14]: BiGRU 8, dense 5, softmax."""
    return g.node("Softmax", g.linear(g.recurrent("GRU", "x", 14, 8, both=True), 16, 5), axis=-1)


def crnn_image(g, states):
    """A line of text [1, 1, 32, 4T]: four convolutions and pools, BiLSTM 64, dense 37."""
    x = "x"
    for channels, filters, pool in ((1, 32, (2, 2)), (32, 64, (2, 2)), (64, 128, (2, 1)), (128, 128, (4, 1))):
        x = g.pool(g.relu(g.conv(x, channels, filters, [3, 3], pads=[1, 1, 1, 1])), *pool)
    x = g.node("Transpose", g.node("Squeeze", x, g.integers(2)), perm=[2, 0, 1])
    return g.node("LogSoftmax", g.linear(g.recurrent("LSTM", x, 128, 64, both=True), 128, 37), axis=-1)


def crnn_sound(g, states):
    """A spectrogram [1, 1, T, 64]: three convolutions and pools over the bands, BiGRU 32, dense 10."""
    x = "x"
    for channels, filters in ((1, 16), (16, 32), (32, 32)):
        x = g.pool(g.relu(g.conv(x, channels, filters, [3, 3], pads=[1, 1, 1, 1])), 1, 4)
    x = g.node("Transpose", g.node("Squeeze", x, g.integers(3)), perm=[2, 0, 1])
    return g.node("Sigmoid", g.linear(g.recurrent("GRU", x, 32, 32, both=True), 64, 10))


def lstm_12(g, states):
    """Sensors [T, 1, 6]: LSTM 12, dense 2."""
    return g.linear(layers(g, "x", 6, 12, 1, states), 12, 2)


def scan(g, body, states, x):
    """`body(inner, states, x)` -> (next states, y) for each row of x; the states after the last one, then the rows."""
    from onnx import TensorProto, helper
    inner = Graph()
    inner.random, inner.weights, inner.count = g.random, g.weights, 10000
    names = [f"s{i}" for i in range(len(states))]
    next_states, y = body(inner, names, "row")
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(inner.nodes, "body", [value(n, None) for n in names + ["row"]], [value(n, None) for n in next_states + [y]])
    return g.node("Scan", *states, x, outputs=len(states) + 1, body=graph, num_scan_inputs=1)


def decoder(g, states):
    """Tokens [T, 1, 64] over a memory [1, 32, 128]: additive attention, GRU 128 spelled out, dense 64."""
    keys = g.linear("memory", 128, 128)

    def step(b, s, token):
        scores = b.node("MatMul", b.node("Tanh", b.node("Add", b.node("Unsqueeze", b.linear(s[0], 128, 128), b.integers(1)), keys)), b.weight(128, 1))
        seen = b.node("Softmax", b.node("Transpose", scores, perm=[0, 2, 1]), axis=-1)
        context = b.node("Squeeze", b.node("MatMul", seen, "memory"), b.integers(1))
        inputs = b.node("Split", b.linear(b.node("Concat", token, context, axis=-1), 192, 384), axis=-1, num_outputs=3, outputs=3)
        hidden = b.node("Split", b.linear(s[0], 128, 384), axis=-1, num_outputs=3, outputs=3)
        reset, update = (b.node("Sigmoid", b.node("Add", i, h)) for i, h in zip(inputs[:2], hidden[:2]))
        candidate = b.node("Tanh", b.node("Add", inputs[2], b.node("Mul", reset, hidden[2])))
        h = b.node("Add", candidate, b.node("Mul", update, b.node("Sub", s[0], candidate)))
        return [h], b.node("Identity", h)
    return g.linear(scan(g, step, [g.constant(numpy.zeros((1, 128), "f4"))], "x")[-1], 128, 64)


def layer_norm_lstm(g, states):
    """Rows [T, 1, 64]: an LSTM 64 with a layer norm of each gate and of c, spelled out."""
    def step(b, s, row):
        norm = lambda x: b.node("LayerNormalization", x, b.weight(64, scale=0.3), b.weight(64, scale=0.1), axis=-1, epsilon=1e-5)
        sums = b.node("Add", b.linear(row, 64, 256), b.linear(s[0], 64, 256))
        i, f, c, o = (norm(gate) for gate in b.node("Split", sums, axis=-1, num_outputs=4, outputs=4))
        cell = b.node("Add", b.node("Mul", b.node("Sigmoid", f), s[1]), b.node("Mul", b.node("Sigmoid", i), b.node("Tanh", c)))
        h = b.node("Mul", b.node("Sigmoid", o), b.node("Tanh", norm(cell)))
        return [h, cell], b.node("Identity", h)
    zeros = lambda: g.constant(numpy.zeros((1, 64), "f4"))
    *last, y = scan(g, step, list(states[0]) if states else [zeros(), zeros()], "x")
    if states:
        states[0] += last
    return g.linear(y, 64, 8)


# Name: the graph, dims of x with "T" steps, the states of one sequence by layer where it is causal, more inputs with their dims.
MODELS = {
    "silero": (silero, ["T", 576], [[(1, 1, 128)] * 2], {}),
    "resemblyzer": (resemblyzer, ["T", 1, 40], [[(1, 1, 256)] * 2] * 3, {}),
    "beatnet": (beatnet, ["T", 272], [[(1, 1, 150)] * 2] * 2, {}),
    "g2pm": (g2pm, ["T", 32, 64], None, {"lengths": [32]}),
    "sleepecg": (sleepecg, ["T", 1, 14], None, {}),
    "crnn_image": (crnn_image, [1, 1, 32, "4T"], None, {}),
    "crnn_sound": (crnn_sound, [1, 1, "T", 64], None, {}),
    "decoder": (decoder, ["T", 1, 64], None, {"memory": [1, 32, 128]}),
    "layer_norm_lstm": (layer_norm_lstm, ["T", 1, 64], [[(1, 64)] * 2], {}),
    "lstm_12": (lstm_12, ["T", 1, 6], [[(1, 1, 12)] * 2], {}),
}


def dims_of(name, steps):
    return [steps if d == "T" else 4 * steps if d == "4T" else d for d in MODELS[name][1]]


def feeds_of(name, steps):
    random = numpy.random.default_rng(steps)
    feeds = {"x": random.normal(0, 0.5, dims_of(name, steps)).astype("f4")}
    for more, dims in MODELS[name][3].items():
        if more == "lengths":
            feeds[more] = random.integers(steps // 2, steps + 1, dims).astype("i4")
            feeds[more][0] = steps
        else:
            feeds[more] = random.normal(0, 0.5, dims).astype("f4")
    return feeds


def write_graph(folder, name, live):
    from onnx import TensorProto, helper, numpy_helper
    build, dims, widths, more = MODELS[name]
    g = Graph()
    states = [[f"state{layer}_{i}" for i in range(len(each))] for layer, each in enumerate(widths)] if live else None
    given = [list(each) for each in states] if live else []
    y = build(g, states)
    value = lambda name, shape, kind=TensorProto.FLOAT: helper.make_tensor_value_info(name, kind, shape)
    inputs, outputs = [value("x", dims_of(name, 1) if live else dims)], [value(y, None)]
    inputs += [value(key, shape, TensorProto.INT32 if key == "lengths" else TensorProto.FLOAT) for key, shape in more.items()]
    for layer, each in enumerate(given):
        for i, state in enumerate(each):
            inputs.append(value(state, list(widths[layer][i])))
            outputs.append(value(states[layer][len(each) + i], list(widths[layer][i])))
    graph = helper.make_graph(g.nodes, name, inputs, outputs, [numpy_helper.from_array(w, n) for n, w in g.weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with open(f"{folder}/{name}{'_step' if live else ''}.onnx", "wb") as file:
        file.write(model.SerializeToString())


def models_write(folder, name, *lengths):
    write_graph(folder, name, False)
    for steps in lengths:
        for key, value in feeds_of(name, int(steps)).items():
            numpy.save(f"{folder}/{key}_{steps}.npy", value)
    if MODELS[name][2] is not None:
        write_graph(folder, name, True)
    return "graph", lambda: None


class MarginalTime:
    """Seconds of a step: calls of two lengths by turns, the medians of both."""

    def __init__(self, session, feeds):
        self.session, self.feeds = session, feeds

    def __call__(self):
        return self.session.run(None, self.feeds[-1][1])[0]

    def seconds(self, wanted, clock):
        taken = [[], []]
        start = clock()
        while len(taken[0]) < 5 or clock() - start < wanted:
            for all_taken, (_, feeds) in zip(taken, self.feeds):
                begin = clock()
                self.session.run(None, feeds)
                all_taken.append(clock() - begin)
        (few, short), (many, long) = ((steps, numpy.median(each)) for (steps, _), each in zip(self.feeds, taken))
        return (long - short) / (many - few)


def models_whole(folder, name, short, long, threads):
    session, peer = onnx_session(f"{folder}/{name}.onnx", int(threads))
    return peer, MarginalTime(session, [(int(steps), feeds_of(name, int(steps))) for steps in (short, long)])


def models_live(folder, name, threads):
    session, peer = onnx_session(f"{folder}/{name}_step.onnx", int(threads))
    feeds = {"x": feeds_of(name, 1)["x"]}
    for given in session.get_inputs()[1:]:
        feeds[given.name] = numpy.zeros(given.shape, "f4")
    return peer + ", one call a step", lambda: session.run(None, feeds)[0]


MODEL_SET_UPS = {"models_write": models_write, "models_whole": models_whole, "models_live": models_live}
