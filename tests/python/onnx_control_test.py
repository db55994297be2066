# SPDX-License-Identifier: Apache-2.0
"""`millrace run` gives what ONNX Runtime gives on random graphs of Loop, Scan, If, sequences and optionals: f32 within 1e-5 relative.

Prints the seed; MILLRACE_SEED runs one."""
import os
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
TYPES = {np.dtype("f4"): FLOAT, np.dtype("i8"): INT64, np.dtype("?"): BOOL}


def info(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def scalar(name, kind):
    return info(name, kind, [])


def sequence(name, kind=FLOAT, shape=None):
    return helper.make_tensor_sequence_value_info(name, kind, shape)


class Nodes:
    """Nodes of one graph; a name for each value, unlike those of any other graph."""

    count = 0

    def __init__(self):
        self.nodes = []

    def __call__(self, op, *inputs, outputs=1, **attributes):
        names = []
        for _ in range(outputs):
            Nodes.count += 1
            names.append(f"{op}_{Nodes.count}")
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype=None):
        return self("Constant", value=numpy_helper.from_array(np.array(value, dtype=dtype)))

    def floats(self, value):
        return self.constant(value, "f4")

    def ints(self, value):
        return self.constant(value, "i8")

    def graph(self, inputs, outputs):
        return helper.make_graph(self.nodes, "body", inputs, outputs)


class Model(Nodes):
    def __init__(self, rng, opset=17):
        super().__init__()
        self.rng, self.opset = rng, opset
        self.feeds, self.infos, self.outputs, self.functions = {}, [], [], []

    def input(self, name, value, names=()):
        """Axes in `names` have no known extent."""
        value = np.asarray(value)
        self.feeds[name] = value
        shape = [f"{name}_{axis}" if axis in names else n for axis, n in enumerate(value.shape)]
        self.infos.append(info(name, TYPES[value.dtype], shape))
        return name

    def random(self, name, *shape, names=()):
        return self.input(name, self.rng.standard_normal(shape).astype("f4"), names)

    def weights(self, *shape, scale=0.5):
        return self.floats(self.rng.standard_normal(shape) * scale)

    def give(self, *infos):
        self.outputs += infos

    def model(self):
        graph = helper.make_graph(self.nodes, "graph", self.infos, self.outputs)
        sets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid("my", 1)] * bool(self.functions)
        return helper.make_model(graph, opset_imports=sets, ir_version=8, functions=self.functions)

    def function(self, text):
        """A function of domain "my", as onnxscript's exporters write one for each op of theirs."""
        self.functions.append(onnx.parser.parse_function(f'<opset_import: ["": {self.opset}, "my": 1], domain: "my"> {text}'))


# ---- Functions


def functions(m):
    """An LSTM that was unrolled into calls of functions, which call functions."""
    steps, units = int(m.rng.integers(1, 5)), 3
    m.function("""addmm <alpha: float = 1.0, beta: float = 1.0> (self, a, b) => (y) { y = Gemm <alpha: float = @alpha, beta: float = @beta> (a, b, self) }""")
    m.function("""chunk <axis: int> (x) => (a, b, c, d) { a, b, c, d = Split <axis: int = @axis> (x) }""")
    m.function("""lstm_cell (x, h, c, w, r, b) => (y, z) {
        p = my.addmm <alpha: float = 0.5> (b, x, w) q = my.addmm <beta: float = 0.5> (p, h, r) i, f, g, o = my.chunk <axis: int = 1> (q)
        i1 = Sigmoid (i) f1 = Sigmoid (f) g1 = Tanh (g) o1 = Sigmoid (o) keep = Mul (f1, c) take = Mul (i1, g1) z = Add (keep, take) t = Tanh (z) y = Mul (o1, t) }""")
    h, c = m.random("h", 2, units), m.random("c", 2, units)
    w, r, b = m.weights(5, 4 * units), m.weights(units, 4 * units), m.weights(4 * units)
    for step in range(steps):
        h, c = m("lstm_cell", m.random(f"x{step}", 2, 5), h, c, w, r, b, outputs=2, domain="my")
    m.give(info(h), info(c))


def loop_in_a_function(m):
    m.function("""steps <n: int = 3> (h, x) => (last, all) {
        n = Constant <value_int: int = @n> () go = Constant <value = bool {1}> ()
        last, all = Loop (n, go, h) <body = iteration (int64 i, bool on, float[k, 3] s) => (bool again, float[k, 3] next, float[k, 3] shown) {
            again = Identity (on) sum = Add (s, x) next = Tanh (sum) shown = Neg (next) }> }""")
    x = m.random("x", 2, 3, names=(0,))
    h, _ = m("steps", m.random("h", 2, 3, names=(0,)), x, outputs=2, domain="my")
    last, shown = m("steps", h, x, outputs=2, domain="my", n=int(m.rng.integers(1, 4)))
    m.give(info(last), info(shown))


# ---- Loops


def loop_of(m, trips, condition, states, body, outputs):
    return m("Loop", trips, condition, *states, outputs=outputs, body=body)


def growing(m):
    """A value that is longer in every iteration, with scanned outputs, and a trip count that is known only in the run."""
    x = m.random("x", 2, 3, names=(0,))
    n = m.input("n", np.int64(m.rng.integers(0, 5)))
    b = Nodes()
    longer = b("Concat", "s", b("Mul", x, b.floats(0.5)), axis=0)
    total = b("ReduceSum", longer, keepdims=0)
    go = b("Identity", "go")
    s, totals = loop_of(m, n, "", [x], b.graph([scalar("i", INT64), scalar("go", BOOL), info("s")], [scalar(go, BOOL), info(longer), scalar(total, FLOAT)]), 2)
    m.give(info(s), info(totals))


def growing_in_a_branch(m):
    """Tokens that a loop in a loop collects, from none, in those of its iterations that find one: a greedy transducer."""
    x = m.random("x", 5, 4, names=(0,))
    n = m("Gather", m("Shape", x), m.ints(0))
    inner = Nodes()
    best = inner("ArgMax", inner("Gather", x, inner("Unsqueeze", inner("Add", "i", "j"), inner.ints([0])), axis=0), axis=-1, keepdims=0)
    same, longer = Nodes(), Nodes()
    kept = same("Identity", "found")
    joined = longer("Concat", "found", best, axis=0)
    found = inner("If", inner("Equal", inner("Squeeze", best, inner.ints([0])), inner.ints(0)), then_branch=same.graph([], [info(kept, INT64)]), else_branch=longer.graph([], [info(joined, INT64)]))
    outer = Nodes()
    go = inner("Identity", "go_inner")
    iterations = outer("Min", outer("Sub", n, "i"), outer.ints(2))
    last = loop_of(outer, iterations, "", ["all"], inner.graph([scalar("j", INT64), scalar("go_inner", BOOL), info("found", INT64)], [scalar(go, BOOL), info(found, INT64)]), 1)
    outer_go = outer("Identity", "go")
    body = outer.graph([scalar("i", INT64), scalar("go", BOOL), info("all", INT64)], [scalar(outer_go, BOOL), info(last, INT64)])
    m.give(info(loop_of(m, n, "", [m.ints(np.zeros(0))], body, 1), INT64))


def ends_by_condition(m):
    """No trip count; the condition is computed; zero iterations when it is false at the start."""
    x = m.random("x", 4)
    limit = m.input("limit", np.float32(m.rng.choice([-100.0, 3.0, 30.0])))
    absolute = m("ReduceSum", m("Abs", x), keepdims=0)
    b = Nodes()
    y = b("Mul", "s", b.floats(1.5))
    again = b("Less", b("ReduceSum", b("Abs", y), keepdims=0), limit)
    body = b.graph([scalar("i", INT64), scalar("go", BOOL), info("s", FLOAT, [4])], [scalar(again, BOOL), info(y, FLOAT, [4]), info(b("Neg", y), FLOAT, [4])])
    s, all_of_them = loop_of(m, "", m("Less", absolute, limit), [x], body, 2)
    m.give(info(s), info(all_of_them))


def nested(m):
    """A loop in a loop, which reads values of both graphs around it, with a branch inside."""
    x = m.random("x", 3, names=(0,))
    n, k = m.input("n", np.int64(m.rng.integers(1, 4))), m.input("k", np.int64(m.rng.integers(1, 4)))
    inner = Nodes()
    even = inner("Equal", inner("Mod", inner("Add", "i", "j"), inner.ints(2)), inner.ints(0))
    yes, no = Nodes(), Nodes()
    a = yes("Add", "t", x)
    c = no("Sub", "t", "s")
    t = inner("If", even, then_branch=yes.graph([], [info(a)]), else_branch=no.graph([], [info(c)]))
    inner_go = inner("Identity", "go_inner")
    outer = Nodes()
    start = outer("Mul", "s", outer.floats(0.25))
    last, steps = loop_of(outer, k, "", [start], inner.graph([scalar("j", INT64), scalar("go_inner", BOOL), info("t")], [scalar(inner_go, BOOL), info(t), info(inner("Identity", t))]), 2)
    squeezed = outer("ReduceSum", steps, outer.ints([0]), keepdims=0) if m.opset >= 13 else outer("ReduceSum", steps, axes=[0], keepdims=0)
    both = outer("Add", last, squeezed)
    go = outer("Identity", "go")
    s, sums = loop_of(m, n, "", [x], outer.graph([scalar("i", INT64), scalar("go", BOOL), info("s")], [scalar(go, BOOL), info(both), info(last)]), 2)
    m.give(info(s), info(sums))


# ---- Scan


def scan9(m):
    """Two states, two inputs on different axes and in different directions, two outputs likewise."""
    steps = int(m.rng.integers(1, 6))
    x, y = m.random("x", 3, steps, names=(1,)), m.random("y", steps, 4, names=(0,))
    b = Nodes()
    p = b("Tanh", b("Add", "p", "u"))
    q = b("Add", "q", b("ReduceMean", "v", keepdims=0))
    joined = b("Concat", p, "v", axis=0)
    outer = b("MatMul", b("Unsqueeze", p, b.ints([1])), b("Unsqueeze", "v", b.ints([0])))
    body = b.graph([info("p", FLOAT, [3]), scalar("q", FLOAT), info("u", FLOAT, [3]), info("v", FLOAT, [4])], [info(p, FLOAT, [3]), scalar(q, FLOAT), info(joined, FLOAT, [7]), info(outer, FLOAT, [3, 4])])
    given = m("Scan", m.random("p0", 3), m.random("q0"), x, y, outputs=4, body=body, num_scan_inputs=2,
              scan_input_axes=[1, -2], scan_input_directions=[0, 1], scan_output_axes=[-1, 1], scan_output_directions=[1, 0])
    m.give(*(info(name) for name in given))


def scan8(lengths):
    def build(m):
        batch, steps = 3, 5
        x = m.random("x", batch, steps, 2)
        inputs = [m.input("lens", m.rng.integers(1, steps + 1, batch)) if lengths else "", m.random("s0", batch, 2), x, m.random("y", batch, steps, 2)]
        b = Nodes()
        s = b("Add", b("Mul", "s", b.floats(0.5)), b("Sub", "u", "v"))
        body = b.graph([info("s", FLOAT, [2]), info("u", FLOAT, [2]), info("v", FLOAT, [2])], [info(s, FLOAT, [2]), info(b("Tanh", s), FLOAT, [2])])
        m.give(*(info(name) for name in m("Scan", *inputs, outputs=2, body=body, num_scan_inputs=2, directions=[0, int(m.rng.integers(0, 2))])))

    return build


# ---- If


def branches(m):
    x = m.random("x", 2, 3, names=(0,))
    positive = m("Greater", m("ReduceSum", x, keepdims=0), m.floats(0))
    yes, no = Nodes(), Nodes()
    a, c = yes("Transpose", x), yes("Abs", x)
    deeper_yes, deeper_no = Nodes(), Nodes()
    d, e = deeper_yes("Neg", x), deeper_no("Concat", x, x, axis=0)
    limit = no("Less", no("ReduceMax", x, keepdims=0), no.floats(1))
    f = no("If", limit, then_branch=deeper_yes.graph([], [info(d)]), else_branch=deeper_no.graph([], [info(e)]))
    first, second = m("If", positive, outputs=2, then_branch=yes.graph([], [info(a), info(c)]), else_branch=no.graph([], [info(f), info(no("Exp", x))]))
    m.give(info(first), info(second), info(m("Add", second, m.floats(1))))


# ---- Sequences


def list_ops(m):
    x, y = m.random("x", 2, 3, names=(0,)), m.random("y", 5, 3)
    at = m.input("at", np.int64(m.rng.integers(-3, 3)))
    s = m("SequenceConstruct", x, y)
    s = m("SequenceInsert", s, m("Concat", x, y, axis=0), at if m.rng.integers(2) and abs(int(m.feeds["at"])) <= 2 else m.ints(-1))
    erased = m("SequenceErase", s, at)
    m.give(info(m("SequenceAt", s, at)), scalar(m("SequenceLength", erased), INT64), sequence(s), sequence(erased), info(m("ConcatFromSequence", s, axis=0)))
    m.give(sequence(m("SequenceErase", s)), sequence(m("SequenceEmpty")), info(m("ConcatFromSequence", m("SequenceConstruct", x, x), axis=-1, new_axis=1)))


def splits(m):
    x = m.random("x", 7, 4, names=(0,))
    m.give(sequence(m("SplitToSequence", x)), sequence(m("SplitToSequence", x, axis=-1, keepdims=0)))
    m.give(sequence(m("SplitToSequence", x, m.ints(3))), sequence(m("SplitToSequence", x, m.input("sizes", np.array([2, 0, 5])))))
    # As torch.jit.script writes x.unbind(), with a scalar; a list of lengths keeps the axis.
    m.give(sequence(m("SplitToSequence", x, m.ints(1), axis=1, keepdims=0)), sequence(m("SplitToSequence", x, m.ints([1, 1, 1, 1]), axis=1, keepdims=0)))
    joined = m("ConcatFromSequence", m("SplitToSequence", x, m.ints(2), axis=1), axis=0)
    m.give(info(joined), scalar(m("SequenceLength", m("SplitToSequence", x)), INT64))


def mapped(m):
    x = m.random("x", 3, 4, names=(0,))
    scale = m.random("scale", 4)
    s = m("SequenceInsert", m("SplitToSequence", x), x)
    b = Nodes()
    y = b("Add", b("Mul", "each", "by"), b.floats(0.5))
    body = b.graph([info("each"), info("by")], [info(y), info(b("Shape", "each"), INT64)])
    ys, shapes = m("SequenceMap", s, scale, outputs=2, body=body)
    m.give(sequence(ys), sequence(shapes, INT64))


def built_in_loop(m):
    """As torch.jit.script writes `out = []; for t in range(n): out.append(f(x[t]))`, then torch.stack(out)."""
    x = m.random("x", 5, 3, names=(0,))
    n = m("Gather", m("Shape", x), m.ints(0))
    empty = m("SequenceEmpty")
    b = Nodes()
    row = b("Gather", x, "i", axis=0)
    h = b("Tanh", b("Add", row, "h"))
    out = b("SequenceInsert", "out", h)
    go = b("Cast", b.ints(1), to=BOOL)
    body = b.graph([scalar("i", INT64), scalar("go", BOOL), info("h", FLOAT, [3]), sequence("out")], [scalar(go, BOOL), info(h, FLOAT, [3]), sequence(out)])
    h, out = loop_of(m, n, m("Cast", m.ints(1), to=BOOL), [m.random("h0", 3), empty], body, 2)
    m.give(info(h), sequence(out), info(m("ConcatFromSequence", out, axis=0, new_axis=1)))
    # A stack has a rank, so that it goes on through a product.
    m.give(info(m("MatMul", m("ConcatFromSequence", out, axis=0, new_axis=1), m.weights(3, 2))))


def replaced_in_loop(m):
    """A list of states, one a layer, of which every iteration replaces each: stacked cells as torch.jit.script writes them."""
    x = m.random("x", 4, 2, 3, names=(0,))
    n = m("Gather", m("Shape", x), m.ints(0))
    states = m("SequenceConstruct", m.random("h0", 2, 3), m.random("h1", 2, 3))
    w = [m.weights(3, 3), m.weights(3, 3)]
    b = Nodes()
    value, hs = b("Gather", x, "i", axis=0), "hs"
    for layer in range(2):
        at = b.ints(layer)
        value = b("Tanh", b("Add", b("MatMul", value, w[layer]), b("SequenceAt", hs, at)))
        hs = b("SequenceInsert", b("SequenceErase", hs, at), value, at)
    go = b("Identity", "go")
    body = b.graph([scalar("i", INT64), scalar("go", BOOL), sequence("hs", FLOAT, [2, 3])], [scalar(go, BOOL), sequence(hs, FLOAT, [2, 3]), info(value, FLOAT, [2, 3])])
    hs, ys = loop_of(m, n, "", [states], body, 2)
    m.give(sequence(hs), info(ys))


def optionals(m):
    x = m.random("x", 2, 3)
    flag = m("Greater", m("ReduceSum", x, keepdims=0), m.floats(0))
    some = m("Optional", x)
    yes, no = Nodes(), Nodes()
    m.give(scalar(m("OptionalHasElement", some), BOOL), info(m("OptionalGetElement", some)))
    of_list = m("Optional", m("SequenceConstruct", x, m("Neg", x)))
    element = yes("SequenceAt", yes("OptionalGetElement", of_list), yes.ints(1))
    other = no("Abs", x)
    m.give(info(m("If", flag, then_branch=yes.graph([], [info(element)]), else_branch=no.graph([], [info(other)]))))


# ---- Decoders, as exporters write them


def gru_step(b, x, h, w, u, bias, hidden):
    """r, z, n from one product each, by Split as a scripted GRUCell has it."""
    gx = b("Split", b("Add", b("MatMul", x, w), bias), outputs=3, axis=-1)
    gh = b("Split", b("MatMul", h, u), outputs=3, axis=-1)
    r = b("Sigmoid", b("Add", gx[0], gh[0]))
    z = b("Sigmoid", b("Add", gx[1], gh[1]))
    n = b("Tanh", b("Add", gx[2], b("Mul", r, gh[2])))
    return b("Add", b("Mul", b("Sub", b.floats(1), z), n), b("Mul", z, h))


def attention_decoder(m):
    """Teacher-free decoder with dot-product attention over the encoder's outputs: a Loop over a trip count."""
    batch, time, hidden, words = 2, 6, 8, 5
    memory = m.random("memory", batch, time, hidden, names=(0, 1))
    n = m.input("n", np.int64(m.rng.integers(1, 6)))
    table, out = m.weights(words, hidden), m.weights(2 * hidden, words)
    w, u, bias = m.weights(hidden, 3 * hidden), m.weights(hidden, 3 * hidden), m.weights(3 * hidden)
    h0 = m("ReduceMean", memory, axes=[1], keepdims=0)
    token0 = m("ConstantOfShape", m("Slice", m("Shape", memory), m.ints([0]), m.ints([1])), value=numpy_helper.from_array(np.array([1], "i8")))
    b = Nodes()
    h = gru_step(b, b("Gather", table, "token", axis=0), "h", w, u, bias, hidden)
    scores = b("Div", b("MatMul", b("Unsqueeze", h, b.ints([1])), b("Transpose", memory, perm=[0, 2, 1])), b.floats(np.sqrt(hidden)))
    weights = b("Softmax", scores, axis=-1)
    context = b("Squeeze", b("MatMul", weights, memory), b.ints([1]))
    logits = b("LogSoftmax", b("MatMul", b("Concat", h, context, axis=-1), out), axis=-1)
    token = b("ArgMax", logits, axis=-1, keepdims=0)
    go = b("Identity", "go")
    body = b.graph([scalar("i", INT64), scalar("go", BOOL), info("token", INT64, ["n"]), info("h", FLOAT, ["n", hidden])],
                   [scalar(go, BOOL), info(token, INT64, ["n"]), info(h, FLOAT, ["n", hidden]), info(logits, FLOAT, ["n", words]), info(b("Squeeze", weights, b.ints([1])), FLOAT, None)])
    last, h, logits, weights = loop_of(m, n, m.constant(True), [token0, h0], body, 4)
    m.give(info(last, INT64), info(h), info(m("Transpose", logits, perm=[1, 0, 2])), info(weights))


def greedy_decoder(m):
    """Encoder and greedy decoder: a while loop that ends when the end token came or the list is full; tokens in a list."""
    hidden, words, limit = 8, 6, 9
    source = m.input("source", m.rng.integers(0, words, 5), names=(0,))
    table = m.weights(words, hidden, scale=1.0)
    encoded = m("Gather", table, source, axis=0)
    w, u, bias = m.weights(hidden, 3 * hidden), m.weights(hidden, 3 * hidden), m.weights(3 * hidden)
    e = Nodes()
    h = gru_step(e, e("Unsqueeze", e("Gather", encoded, "t", axis=0), e.ints([0])), "he", w, u, bias, hidden)
    keep = e("Identity", "go_e")
    encoder = e.graph([scalar("t", INT64), scalar("go_e", BOOL), info("he", FLOAT, [1, hidden])], [scalar(keep, BOOL), info(h, FLOAT, [1, hidden])])
    steps = m("Gather", m("Shape", source), m.ints(0))
    zero = m("ConstantOfShape", m.ints([1, hidden]))
    state = loop_of(m, steps, m.constant(True), [zero], encoder, 1)
    out = m.weights(hidden, words, scale=1.5)
    end = int(m.rng.integers(0, words))
    b = Nodes()
    h = gru_step(b, b("Gather", table, "token", axis=0), "h", w, u, bias, hidden)
    logits = b("MatMul", h, out)
    token = b("ArgMax", logits, axis=-1, keepdims=0)
    tokens = b("SequenceInsert", "tokens", token)
    going = b("Not", b("Equal", b("Squeeze", token, b.ints([0])), b.ints(end)))
    again = b("And", going, b("Less", b("SequenceLength", tokens), b.ints(limit)))
    body = b.graph([scalar("i", INT64), scalar("go", BOOL), info("token", INT64, [1]), info("h", FLOAT, [1, hidden]), sequence("tokens", INT64, [1])],
                   [scalar(again, BOOL), info(token, INT64, [1]), info(h, FLOAT, [1, hidden]), sequence(tokens, INT64, [1]), info(logits, FLOAT, [1, words])])
    forever = m.ints(np.iinfo(np.int64).max)
    _, h, tokens, logits = loop_of(m, forever, m.constant(True), [m.ints([0]), state, m("SequenceEmpty", dtype=INT64)], body, 4)
    m.give(info(h), info(m("ConcatFromSequence", tokens, axis=0), INT64), info(logits), scalar(m("SequenceLength", tokens), INT64))


CASES = {
    "a loop whose value grows": (growing, (11, 13, 17, 21)),
    "a value that grows in a branch": (growing_in_a_branch, (13, 17)),
    "a loop that ends by its condition": (ends_by_condition, (11, 17)),
    "loops and branches in each other": (nested, (13, 18)),
    "scan": (scan9, (13, 17, 20)),
    "scan of opset 8": (scan8(False), (8,)),
    "scan of opset 8 with lengths": (scan8(True), (8,)),
    "branches": (branches, (11, 17)),
    "list ops": (list_ops, (11, 17)),
    "splits": (splits, (11, 17)),
    "a map": (mapped, (17,)),
    "a list that a loop builds": (built_in_loop, (13, 17)),
    "a list that a loop changes": (replaced_in_loop, (13, 17)),
    "optionals": (optionals, (15, 18)),
    "functions of the model": (functions, (13, 17)),
    "a loop in a function": (loop_in_a_function, (13, 17)),
    "attention decoder": (attention_decoder, (13, 17)),
    "greedy decoder": (greedy_decoder, (13, 17)),
}


def compare(name, m, folder):
    path = os.path.join(folder, "model.onnx")
    onnx.save(m.model(), path)
    load = oracle.run(path, m.feeds, folder)
    names = [output.name for output in m.outputs]
    for output, expected in zip(names, oracle.session_of(path).run(names, m.feeds)):
        if not isinstance(expected, list):
            oracle.same(load(output), expected, f"{name}: {output}")
            continue
        assert load(f"{output}.length") == len(expected), (name, output, load(f"{output}.length"), len(expected))
        for i, element in enumerate(expected):
            oracle.same(load(f"{output}.{i}"), element, f"{name}: {output}[{i}]")


def main():
    for seed in oracle.seeds(range(1, 4)):
        for name, (build, opsets) in CASES.items():
            for opset in opsets:
                print(f"seed {seed}: {name}, opset {opset}", flush=True)
                m = Model(np.random.default_rng(seed), opset)
                build(m)
                with tempfile.TemporaryDirectory() as folder:
                    compare(name, m, folder)
    print("every output is within 1e-5 of ONNX Runtime's")


if __name__ == "__main__":
    main()
