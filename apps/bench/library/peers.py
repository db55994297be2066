# SPDX-License-Identifier: Apache-2.0
"""Peers in Python, asked through lines on stdin and answered on stdout.

set_up:  "NAME ARGUMENT..."  ->  "ok NAME VERSION" or "no REASON"
"time SECONDS [processor]"   ->  seconds a call, on the wall's clock or in processor time of all threads
"result FILE"                ->  "ok", once FILE holds what a call gives, as f32
The set_ups of model_graphs.py, which stands in front of this text, are among them.
FOLDER holds w, r, bias, x, h, c and lengths as raw f32 or i64, and what a set_up needs besides; weights are [C, 4H] with gates i f g o.
"""
import sys
import time

import numpy


class Problem:
    def __init__(self, folder, hidden):
        self.hidden = hidden
        for name in ("w", "r", "bias", "x", "h", "c"):
            setattr(self, name, numpy.fromfile(f"{folder}/{name}", "<f4"))
        self.w, self.r = self.w.reshape(hidden, 4 * hidden), self.r.reshape(hidden, 4 * hidden)
        self.x, self.h, self.c = (a.reshape(-1, hidden) for a in (self.x, self.h, self.c))
        self.lengths = numpy.fromfile(f"{folder}/lengths", "<i8").tolist()


def onnx_session(model, threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session, f"ONNX Runtime {onnxruntime.__version__}"


def onnx_step(folder, hidden, threads):
    from onnx import TensorProto, helper, numpy_helper
    hidden = int(hidden)
    problem = Problem(folder, hidden)
    to_onnx = lambda w: numpy.concatenate([numpy.split(w, 4, -1)[i] for i in (0, 3, 1, 2)], -1)  # i f g o -> i o f c
    weights = {"W": to_onnx(problem.w).T[None], "R": to_onnx(problem.r).T[None],
               "B": numpy.concatenate([to_onnx(problem.bias), numpy.zeros(4 * hidden, "f4")])[None]}
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    node = helper.make_node("LSTM", ["X", "W", "R", "B", "", "H", "C"], ["", "h", "c"], hidden_size=hidden)
    graph = helper.make_graph([node], "step", [value("X", [1, 1, hidden]), value("H", [1, 1, hidden]), value("C", [1, 1, hidden])],
                              [value("h", [1, 1, hidden]), value("c", [1, 1, hidden])],
                              [numpy_helper.from_array(numpy.ascontiguousarray(w), name) for name, w in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session, name = onnx_session(model.SerializeToString(), int(threads))
    feeds = {"X": problem.x[None], "H": problem.h[None], "C": problem.c[None]}
    return name + ", one LSTM node", lambda: session.run(None, feeds)[0]


def onnx_frame(model, threads):
    session, name = onnx_session(model, int(threads))
    frame = numpy.random.default_rng(1).normal(0, 0.1, (1, 576)).astype("f4")
    state = numpy.random.default_rng(2).normal(0, 0.1, (1, 1, 128)).astype("f4")
    return name + ", one call a frame", lambda: session.run(None, {"input": frame, "h": state, "c": state})[0]


def onnx_loop(iterations):
    """A Loop that counts to `iterations`, and asks in each of them whether to go on."""
    from onnx import TensorProto, helper, numpy_helper
    value = lambda name, dtype: helper.make_tensor_value_info(name, dtype, [])
    number = lambda name, n: numpy_helper.from_array(numpy.array(n, "i8"), name)
    body = helper.make_graph(
        [helper.make_node("Add", ["step", "one"], ["next"]), helper.make_node("Less", ["next", "n"], ["more"])], "body",
        [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("step", TensorProto.INT64)],
        [value("more", TensorProto.BOOL), value("next", TensorProto.INT64)])
    graph = helper.make_graph([helper.make_node("Loop", ["", "always", "zero"], ["last"], body=body)], "count",
                              [value("n", TensorProto.INT64)], [value("last", TensorProto.INT64)],
                              [number("one", 1), number("zero", 0), numpy_helper.from_array(numpy.array(True), "always")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    session, name = onnx_session(model.SerializeToString(), 1)
    feeds = {"n": numpy.array(int(iterations), "i8")}
    if session.run(None, feeds)[0] != int(iterations):
        raise RuntimeError("the Loop did not count")
    return name, lambda: session.run(None, feeds)


def torch_op(count):
    import torch
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    x, count = torch.ones(1), int(count)

    def call():
        for _ in range(count):
            torch.add(x, x)
    return f"eager PyTorch {torch.__version__}", call


def torch_layer(problem, threads):
    import torch
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    layer = torch.nn.LSTM(problem.hidden, problem.hidden)
    state = {"weight_ih_l0": problem.w.T.copy(), "weight_hh_l0": problem.r.T.copy(), "bias_ih_l0": problem.bias,
             "bias_hh_l0": numpy.zeros(4 * problem.hidden, "f4")}
    layer.load_state_dict({name: torch.from_numpy(w) for name, w in state.items()})
    return torch, layer.eval()


def torch_step(folder, hidden, threads):
    problem = Problem(folder, int(hidden))
    torch, layer = torch_layer(problem, threads)
    x, h, c = (torch.from_numpy(a[None]) for a in (problem.x, problem.h, problem.c))
    return f"PyTorch {torch.__version__} nn.LSTM", lambda: layer(x, (h, c))[0].numpy()


def torch_dense(folder, hidden, threads):
    """Sequences of one length, as [T, N, C]."""
    problem = Problem(folder, int(hidden))
    torch, layer = torch_layer(problem, threads)
    n = len(problem.lengths)
    x = torch.from_numpy(problem.x.reshape(n, -1, problem.hidden)).transpose(0, 1).contiguous()

    class Call:
        def __call__(self):
            return layer(x)[0]

        def result(self):
            return self().transpose(0, 1).reshape(-1, problem.hidden).numpy()
    return f"PyTorch {torch.__version__} nn.LSTM", Call()


def torch_packed(folder, hidden, threads):
    problem = Problem(folder, int(hidden))
    torch, layer = torch_layer(problem, threads)
    rnn = torch.nn.utils.rnn
    sequences = [torch.from_numpy(rows) for rows in numpy.split(problem.x, numpy.cumsum(problem.lengths)[:-1])]
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)

    class Call:
        def __call__(self):
            return layer(packed)[0]

        def result(self):
            rows, lengths = rnn.pad_packed_sequence(self(), batch_first=True)
            return numpy.concatenate([rows[i, :n].numpy() for i, n in enumerate(lengths)])
    return f"PyTorch {torch.__version__} packed", Call()


def torch_train(folder, features, hidden, classes, form, threads):
    """A training step of a classifier: LSTM, last state, linear, mean cross entropy, Adam. `form`: padded or packed."""
    import torch
    torch.set_num_threads(int(threads))
    features, hidden, classes = int(features), int(hidden), int(classes)
    load = lambda name, *shape: torch.from_numpy(numpy.fromfile(f"{folder}/{name}", "<f4").reshape(shape))
    lengths = torch.from_numpy(numpy.fromfile(f"{folder}/lengths", "<i8"))
    labels = torch.from_numpy(numpy.fromfile(f"{folder}/labels", "<i8"))
    layer, linear = torch.nn.LSTM(features, hidden), torch.nn.Linear(hidden, classes)
    layer.load_state_dict({"weight_ih_l0": load("w", features, -1).T.contiguous(), "weight_hh_l0": load("r", hidden, -1).T.contiguous(),
                           "bias_ih_l0": load("bias", -1), "bias_hh_l0": torch.zeros(4 * hidden)})
    linear.load_state_dict({"weight": load("out", hidden, -1).T.contiguous(), "bias": load("shift", -1)})
    optimizer = torch.optim.Adam([*layer.parameters(), *linear.parameters()], lr=1e-5)
    rnn = torch.nn.utils.rnn
    sequences = list(torch.split(load("x", -1, features), lengths.tolist()))
    padded, last, each = rnn.pad_sequence(sequences), lengths - 1, torch.arange(len(lengths))
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)

    def backward():
        optimizer.zero_grad()
        state = layer(packed)[1][0][0] if form == "packed" else layer(padded)[0][last, each]
        torch.nn.functional.cross_entropy(linear(state), labels).backward()
    backward()
    gradient = layer.weight_hh_l0.grad.T.contiguous().numpy().copy()

    class Call:
        def __call__(self):
            backward()
            optimizer.step()

        def result(self):
            return gradient
    return f"PyTorch {torch.__version__} {form}", Call()


def torch_backward(folder, hidden, threads):
    """Forward and backward of nn.LSTM over sequences of one length: gradients of input, weights and bias."""
    problem = Problem(folder, int(hidden))
    torch, layer = torch_layer(problem, threads)
    torch.set_grad_enabled(True)
    layer.train()
    n = len(problem.lengths)
    rows = lambda a: torch.from_numpy(a.reshape(n, -1, problem.hidden)).transpose(0, 1).contiguous()
    x, dy = rows(problem.x).requires_grad_(), rows(numpy.fromfile(f"{folder}/dy", "<f4"))

    def call():
        layer.zero_grad()
        x.grad = None
        layer(x)[0].backward(dy)
        return layer.weight_hh_l0.grad.T.contiguous().numpy()
    return f"PyTorch {torch.__version__} nn.LSTM", call


def on_cuda(device):
    import torch
    if not torch.cuda.is_available():
        raise RuntimeError(f"PyTorch {torch.__version__} has no CUDA device")
    torch.cuda.set_device(int(device))
    torch.set_grad_enabled(False)
    return torch


def cuda_layers(torch, hidden, layers, dtype):
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    return torch.nn.LSTM(hidden, hidden, layers).to("cuda", types[dtype]).eval(), types[dtype]


def torch_cuda_layers(device, steps, rows, hidden, layers, dtype):
    torch = on_cuda(device)
    layer, dtype = cuda_layers(torch, int(hidden), int(layers), dtype)
    x = torch.randn(int(steps), int(rows), int(hidden), device="cuda", dtype=dtype)

    def call():
        layer(x)
        torch.cuda.synchronize()
    return f"PyTorch {torch.__version__} nn.LSTM", call


def torch_cuda_backward(device, steps, rows, hidden, layers, dtype):
    """Forward and backward: gradients of input, weights and bias."""
    torch = on_cuda(device)
    torch.set_grad_enabled(True)
    layer, dtype = cuda_layers(torch, int(hidden), int(layers), dtype)
    layer.train()
    x, dy = (torch.randn(int(steps), int(rows), int(hidden), device="cuda", dtype=dtype) for _ in range(2))
    x.requires_grad_()

    def call():
        layer.zero_grad()
        x.grad = None
        layer(x)[0].backward(dy)
        torch.cuda.synchronize()
    return f"PyTorch {torch.__version__} nn.LSTM", call


def torch_cuda_ragged(device, hidden, dtype, lengths, form):
    """Ragged sequences, time first: all padded to the longest; sorted, in batches of 64, each padded to its longest; or packed."""
    torch = on_cuda(device)
    layer, dtype = cuda_layers(torch, int(hidden), 1, dtype)
    lengths = sorted((int(n) for n in lengths.split(",")), reverse=True)
    drawn = lambda steps, rows: torch.randn(steps, rows, int(hidden), device="cuda", dtype=dtype)
    if form == "sorted":
        batches = [drawn(lengths[i], len(lengths[i:i + 64])) for i in range(0, len(lengths), 64)]
    elif form == "packed":
        batches = [torch.nn.utils.rnn.pack_padded_sequence(drawn(lengths[0], len(lengths)), lengths)]
    else:
        batches = [drawn(lengths[0], len(lengths))]

    def call():
        for batch in batches:
            layer(batch)
        torch.cuda.synchronize()
    return f"PyTorch {torch.__version__} nn.LSTM, {form}", call


def torch_cuda_tick(device, sessions, rows, hidden, layers):
    """States of sessions gathered, one step, states scattered: a CUDA graph whose inputs are copied in and whose output is copied out."""
    torch = on_cuda(device)
    sessions, rows, hidden, layers = int(sessions), int(rows), int(hidden), int(layers)
    layer, dtype = cuda_layers(torch, hidden, layers, "f16")
    h, c = (torch.randn(layers, sessions, hidden, device="cuda", dtype=dtype) for _ in range(2))
    slots, x = torch.randperm(sessions, device="cuda")[:rows], torch.randn(1, rows, hidden, device="cuda", dtype=dtype)
    new_slots, new_x = (a.cpu().pin_memory() for a in (slots, x))
    out = torch.empty(1, rows, hidden, dtype=dtype).pin_memory()

    def step():
        y, (new_h, new_c) = layer(x, (h.index_select(1, slots), c.index_select(1, slots)))
        h.index_copy_(1, slots, new_h)
        c.index_copy_(1, slots, new_c)
        return y
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()

    def call():
        slots.copy_(new_slots, non_blocking=True)
        x.copy_(new_x, non_blocking=True)
        graph.replay()
        out.copy_(y, non_blocking=True)
        torch.cuda.synchronize()
    return f"PyTorch {torch.__version__}, a CUDA graph", call


def torch_cuda_cell(device, steps, rows, hidden, form):
    """A layer-norm LSTM of f16. compiled: its step by torch.compile, all steps as one CUDA graph. The product with x runs before them."""
    torch = on_cuda(device)
    steps, rows, hidden = int(steps), int(rows), int(hidden)

    def drawn(*shape, scale=1.0):
        return torch.randn(*shape, device="cuda", dtype=torch.float16) * scale
    norm = torch.nn.functional.layer_norm
    x, h0, c0 = drawn(steps, rows, hidden), drawn(rows, hidden), drawn(rows, hidden)
    w, r = (drawn(hidden, 4 * hidden, scale=hidden ** -0.5) for _ in range(2))
    bias, scale_x, scale_h = (drawn(4 * hidden, scale=0.1) for _ in range(3))
    scale_c, bias_c = (drawn(hidden, scale=0.1) for _ in range(2))

    def step(of_x, h, c):
        i, f, g, o = (norm(h @ r, (4 * hidden,), scale_h) + bias + of_x).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(norm(c, (hidden,), scale_c, bias_c)), c
    one = torch.compile(step, dynamic=False) if form == "compiled" else step

    def layer():
        of_x, h, c, y = norm(x @ w, (4 * hidden,), scale_x), h0, c0, []
        for t in range(steps):
            h, c = one(of_x[t], h, c)
            y.append(h)
        return torch.stack(y)
    replay = layer
    if form == "compiled":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            layer()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer()
        replay = graph.replay

    def call():
        replay()
        torch.cuda.synchronize()
    return f"PyTorch {torch.__version__}, {'torch.compile and a CUDA graph' if form == 'compiled' else 'eager'}", call


def millrace(package):
    """This library: the package in the folder, else an installed one."""
    sys.path.insert(0, package)
    import millrace as mr
    return mr, f"millrace {mr.__version__}"


def millrace_call(package, file, units, kind):
    mr, name = millrace(package)
    compiled = mr.load(file).compile()
    x, h = (numpy.random.default_rng(i).normal(0, 1, (1, int(units))).astype("f4") for i in range(2))
    if kind == "Tensors":
        x, h = mr.Tensor(x), mr.Tensor(h)
    return name, lambda: compiled(x=x, h=h)


def millrace_sessions(package, file, units, sessions, steps, one):
    """A task for each session; `one` streams its rows through it."""
    import asyncio
    mr, name = millrace(package)
    model, steps, loop = mr.LiveModel(mr.load(file)), int(steps), asyncio.new_event_loop()
    row = numpy.full((1, int(units)), 0.5, "f4")

    async def session():
        async with model.session() as opened:
            await one(opened, row, steps)

    async def together():
        await asyncio.gather(*(session() for _ in range(int(sessions))))
    return name, lambda: loop.run_until_complete(together())


def millrace_turns(*arguments):
    async def one(session, row, steps):
        for _ in range(steps):
            await session.push(row)
            await session.next()
    return millrace_sessions(*arguments, one)


def millrace_iteration(*arguments):
    async def one(session, row, steps):
        await session.push(row)
        done = 0
        async for made in session:
            done += len(made["y"])
            if done == steps:
                break
            await session.push(row)
    return millrace_sessions(*arguments, one)


def millrace_feed(*arguments):
    import asyncio

    async def one(session, row, steps):
        feeding = asyncio.create_task(session.feed(row for _ in range(steps)))
        async for made in session:
            pass
        await feeding
    return millrace_sessions(*arguments, one)


SET_UPS = {"millrace_call": millrace_call, "millrace_turns": millrace_turns, "millrace_iteration": millrace_iteration, "millrace_feed": millrace_feed,
           "torch_cuda_layers": torch_cuda_layers, "torch_cuda_backward": torch_cuda_backward, "torch_cuda_ragged": torch_cuda_ragged, "torch_cuda_tick": torch_cuda_tick, "torch_cuda_cell": torch_cuda_cell, "onnx_step": onnx_step, "onnx_frame": onnx_frame,
           "onnx_loop": onnx_loop, "torch_op": torch_op, "torch_step": torch_step, "torch_dense": torch_dense, "torch_packed": torch_packed, "torch_train": torch_train, "torch_backward": torch_backward, **MODEL_SET_UPS}


def seconds_a_call(call, seconds, clock):
    call()
    calls, start = 0, clock()
    passed = 0.0
    while passed < seconds:
        call()
        calls += 1
        passed = clock() - start
    return passed / calls


def main():
    call = None
    for line in sys.stdin:
        what, *arguments = line.rstrip("\n").split("\t")
        if what == "time":
            wanted, clock = float(arguments[0]), time.process_time if arguments[1:] == ["processor"] else time.perf_counter
            answer = f"{call.seconds(wanted, clock) if hasattr(call, 'seconds') else seconds_a_call(call, wanted, clock):.9g}"
        elif what == "result":
            result = call.result() if hasattr(call, "result") else call()
            numpy.ascontiguousarray(result, "<f4").tofile(arguments[0])
            answer = "ok"
        else:
            try:
                name, call = SET_UPS[what](*arguments)
                answer = f"ok {name}"
            except Exception as error:  # whatever it is, the row says so
                answer = f"no {type(error).__name__}: {' '.join(str(error).split())}"
        print(answer, flush=True)


main()
