# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/python.md, in its order. The text between two lines that end in the same [name] is cut into it."""

import pathlib
import tempfile

import numpy as np
import torch

folder = pathlib.Path(tempfile.mkdtemp())

# [arrays]
import millrace as mr

array = np.arange(6, dtype=np.float32).reshape(2, 3)
tensor = mr.Tensor(array)                       # shares the memory of the array
assert tensor.dtype == mr.f32 and tensor.shape == (2, 3)
assert tensor.numpy()[1, 2] == 5                # shares it back, read-only

own = mr.Tensor(torch.ones(2, 3)).copy()        # elements of its own, which may be written
torch.from_dlpack(own)[0, 0] = 7                # and shared with PyTorch
assert own.tolist() == [[7, 1, 1], [1, 1, 1]]
# [arrays]

# [ragged]
x = mr.ragged([[1, 2, 3], [4], []])             # three sequences: 3, 1 and 0 rows
assert x.lengths == [3, 1, 0] and x.offsets == [0, 3, 4, 4]
assert x[0].tolist() == [1, 2, 3] and len(x) == 3

rows = np.zeros((4, 2), np.float32)             # rows that are there already, without a copy
x = mr.LoDTensor(rows, [3, 1, 0])
x = mr.ragged([np.ones((5, 2)), np.zeros((1, 2))])
nested = mr.ragged([[[1, 2], [3]], [[4, 5, 6]]], levels=2)
assert nested.lod == [[2, 1], [2, 1, 3]] and nested[0][1].tolist() == [3]
# [ragged]

# [first]
program = mr.Program("first")
with program:
    x = mr.input("x", mr.f32, [None, 2])        # None: known when it runs
    w = mr.parameter("w", [[1.0], [-1.0]])
    mr.output("y", mr.sigmoid(x @ w) + 1)
assert mr.run(program, x=[[3.0, 3.0]])["y"].tolist() == [[1.5]]
print(program)                                  # a program is data, with a printed form
# [first]

# [compile]
compiled = program.compile(threads=2)           # once; results do not depend on `threads`
for _ in range(3):
    y = compiled(x=np.ones((4, 2), np.float32))["y"]
assert y.shape == (4, 1)
# [compile]

# [async]
import asyncio


async def many():
    runs = [compiled.run_async(x=np.full((1, 2), n, np.float32)) for n in range(10)]
    return [result["y"].item() for result in await asyncio.gather(*runs)]


assert asyncio.run(many()) == [1.5] * 10
# [async]

# [loop]
program = mr.Program("count")
with program:
    limit = mr.input("limit", mr.i64, [])
    i, total = mr.Var(0), mr.Var(0)
    loop = mr.while_loop([i, total])            # the variables that it carries
    with loop.frame():
        loop.break_if(i == limit)
        total.update(total + i * i)             # what the next iteration sees
        i += 1                                  # the same, shorter
    mr.output("total", total)                   # behind the frame: the last values
assert mr.run(program, limit=4)["total"].item() == 14
# [loop]

# [functional]
program = mr.Program("power")
with program:
    n = mr.input("n", mr.i64, [])
    steps, power = mr.while_loop(lambda i, p: i < n, lambda i, p: (i + 1, p * 2), [0, 1])
    mr.output("power", power)
assert mr.run(program, n=10)["power"].item() == 1024
# [functional]

# [higher order]
program = mr.Program("higher order")
with program:
    v = mr.input("v", mr.f32, [None])
    mr.output("squares", mr.map_fn(lambda e: e * e, v))
    mr.output("sum", mr.fold(lambda a, e: a + e, v, 0.0))
    mr.output("sums", mr.scan(lambda a, e: a + e, v, 0.0))
made = mr.run(program, v=[1, 2, 3])
assert made["squares"].tolist() == [1, 4, 9] and made["sum"].item() == 6 and made["sums"].tolist() == [1, 3, 6]
# [higher order]

# [cond]
program = mr.Program("branches")
with program:
    a = mr.input("a", mr.f32, [])
    mr.output("y", mr.cond(a > 0, lambda: a * 10, lambda: -a))
    mr.output("z", mr.where(a > 0, 1.0, 2.0))   # element by element
assert mr.run(program, a=-3)["y"].item() == 3
# [cond]

# [tensor array]
program = mr.Program("rnn by hand")
with program:
    x = mr.input("x", mr.f32, [None, 3, 4])                  # [T, N, C], all as long
    steps = mr.TensorArray(unstack_from=x)
    n = steps.size()
    outputs = mr.TensorArray(n)
    step, h = mr.Var(0), mr.constant(np.zeros((3, 4), np.float32))
    loop = mr.while_loop([step, h])
    with loop.frame():
        loop.break_if(step == n)
        h.update(mr.tanh(steps.read(step) + h))
        outputs.write(step, h)
        step += 1
    mr.output("y", outputs.stack())
assert mr.run(program, x=np.zeros((7, 3, 4), np.float32))["y"].shape == (7, 3, 4)
# [tensor array]

# [dynamic rnn]
U, W = np.eye(2, dtype=np.float32), np.ones((3, 2), np.float32)
program = mr.Program("dynamic rnn")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)              # rows of sequences
    u, w = mr.parameter("U", U), mr.parameter("W", W)
    with mr.DynamicRNN() as rnn:
        x_t = rnn.step_input(x)                              # a row of each sequence that still lives
        h = rnn.memory(shape=[2])
        state = mr.tanh(h @ u + x_t @ w)
        rnn.update_memory(h, state)
        rnn.output(state)
    mr.output("y", rnn())                                    # [rows, 2], the sequences of x
    mr.output("last", rnn.last(h))                           # [sequences, 2]
made = mr.run(program, x=[np.ones((2, 3)).astype("f4"), np.ones((5, 3)).astype("f4"), []])
assert made["y"].lengths == [2, 5, 0] and made["last"].tolist()[2] == [0, 0]
# [dynamic rnn]

# [listing]
program = mr.Program("listing")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)
    boot_state = mr.input("boot", mr.f32, [None, 2])         # a row for each sequence
    u, w = mr.parameter("U", U), mr.parameter("W", W)

    steps, order = mr.unpack(x, 0, sort_by_length=True)
    n = steps.size()
    states, outputs = mr.TensorArray(n, order), mr.TensorArray(n, order)
    step = mr.Var(0)
    wloop = mr.while_loop([step])
    with wloop.frame():
        wloop.break_if(mr.equal(step, n))
        step_input = steps.read(step)
        pre_state = mr.shrink(states.read(step - 1, boot_state), step_input)
        state = mr.sigmoid(pre_state @ u + step_input @ w)
        states.write(step, state)
        outputs.write(step, state, data_shared=True)
        step.update(step + 1)
    mr.output("y", mr.pack(outputs, 0, order))
made = mr.run(program, x=[[[1, 2, 3]], [], [[0, 0, 1], [1, 0, 0]]], boot=np.zeros((3, 2), np.float32))
assert made["y"].lengths == [1, 0, 2] and made.fused_loops == 1
# [listing]

# [cell]
program = mr.Program("a cell of one's own")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)
    w, u = mr.parameter("w", W), mr.parameter("u", U)

    def cell(x_t, states):                      # called once, now; never when it runs
        h, = states
        z = mr.sigmoid(x_t @ w + h @ u)
        return z * h + (1.0 - z) * mr.tanh(x_t @ w)

    y, (last,) = mr.layers.unroll(cell, x, [2])
    mr.output("y", y)
result = program.compile(backend="fused", backend_required=True)(x=[[[1, 2, 3]], [[0, 0, 1], [1, 0, 0]]])
assert result.fused_loops == 1                  # the loop ran in one piece
# [cell]

# [lstm]
module = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True).eval()
program = mr.from_torch(module)                 # x: rows with lod=1; y, h, c
result = program.run(x=[torch.randn(6, 3), torch.randn(2, 3)])
assert result["y"].shape == (8, 8) and result["h"].shape == (4, 2, 4)
# [lstm]

# [layers]
weights = mr.layers.gru_from_pytorch(*[torch.randn(*s) for s in ((12, 3), (12, 4), (12,), (12,))])
program = mr.Program("classifier")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)
    y = mr.layers.gru(x, weights).y                          # [rows, 4]
    one = mr.sequence_pool(y, "max")                         # [sequences, 4]
    mr.output("class", mr.argmax(mr.layers.linear(one, np.eye(4, dtype=np.float32))))
assert mr.run(program, x=[torch.randn(3, 3), torch.randn(1, 3)])["class"].shape == (2,)
# [layers]

# [export]
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).sum(-1)


program = mr.from_torch(Net(), [torch.zeros(2, 3)], input_names=["x"], output_names=["y"])
assert program.run(x=torch.ones(2, 3))["y"].tolist() == [3, 3]
# [export]

# [files]
program.save(folder / "net.mr")                              # and net.safetensors, the weights
assert mr.load(folder / "net.mr").text == program.text
mr.export_onnx(program, folder / "net.onnx")
assert mr.load(folder / "net.onnx").run(x=torch.ones(2, 3))["y"].tolist() == [3, 3]
mr.save(folder / "arrays.npz", {"a": np.ones(3, np.float32)})
assert mr.load(folder / "arrays.npz")["a"].tolist() == [1, 1, 1]
# [files]

# [attention]
program = mr.Program("attention over a sequence")
with program:
    x = mr.input("x", mr.f32, [None, 2], lod=1)
    query = mr.input("query", mr.f32, [None, 2])             # a row for each sequence
    score = mr.sum(x * mr.sequence_expand_as(query, x), [1], True)
    weight = mr.sequence_softmax(score)                      # along the rows of each sequence
    mr.output("context", mr.sequence_pool(x * weight, "sum"))
made = mr.run(program, x=[[[1, 0], [0, 1]], [[2, 2]]], query=[[0, 0], [1, 1]])
assert made["context"].tolist() == [[0.5, 0.5], [2, 2]]
# [attention]

# [generation]
def model(tokens, states, step):                # i64 [hypotheses, 1] to [hypotheses, vocabulary]; here one more, until 5
    candidates = mr.constant(np.arange(8)[None, :])
    return mr.where(mr.equal(tokens + 1, candidates), 0.0, -10.0), states


program = mr.Program("generation")
with program:
    start = mr.input("start", mr.i64, [None])
    state = mr.input("state", mr.f32, [None, 1])
    best = mr.beam_search(model, start, [state], width=2, end_token=5)
    mr.output("tokens", best.tokens)
tokens = mr.run(program, start=[2, 3], state=[[0.0], [0.0]])["tokens"]
assert tokens[0][0].tolist() == [[3], [4], [5]]              # source 0, its best hypothesis
# [generation]

# [step by step]
program = mr.Program("one step")
with program:
    x, h = mr.input("x", mr.f32, [1, 3]), mr.input("h", mr.f32, [1, 2])
    mr.output("h", mr.tanh(x @ mr.parameter("w", W) + h @ mr.parameter("u", U)))
one_step = program.compile()
h = np.zeros((1, 2), np.float32)
for x in np.ones((100, 1, 3), np.float32):      # rows as they arrive
    h = one_step(x=x, h=h)["h"]                 # the state goes back in as it came
# [step by step]

step_program, step_h = program, h

# [live]
U, W = np.eye(2, dtype=np.float32), np.ones((3, 2), np.float32)
program = mr.Program("live")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)
    with mr.DynamicRNN() as rnn:
        x_t, h = rnn.step_input(x), rnn.memory(shape=[2])
        state = mr.tanh(h @ mr.parameter("U", U) + x_t @ mr.parameter("W", W))
        rnn.update_memory(h, state)
        rnn.output(state)
    mr.output("y", rnn())


async def listen(rows):
    model = mr.LiveModel(program)
    async with model.session() as session:
        for row in rows:
            await session.push(row[None, :])    # any number of rows, as they come
        await session.finish()                  # no row follows
        return [y async for made in session for y in made["y"].tolist()]


rows = np.ones((5, 3), np.float32)
assert asyncio.run(listen(rows)) == program.run(x=[rows])["y"][0].tolist()  # the bits of the whole
# [live]

# [live feed]
async def microphone():
    for _ in range(1000):
        await asyncio.sleep(0)
        yield np.ones((10, 3), np.float32)


async def transcribe():
    model, count = mr.LiveModel(program), 0
    async with model.session("kitchen") as session:
        feeding = asyncio.create_task(session.feed(microphone()))    # pushes, and finishes
        async for made in session:                                   # meanwhile
            count += len(made["y"])
        await feeding
    return count


assert asyncio.run(transcribe()) == 10_000
# [live feed]

# [live many]
async def many_sessions():
    model = mr.LiveModel(program)
    async with model.session() as a, model.session() as b:
        await model.push([a, b], [np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)])
        await a.flush()
        await b.flush()
        batch = await model.next()              # of any session: ids, outputs, ended, failed
        return dict(zip(batch.ids, batch.outputs["y"].lengths))


assert sorted(asyncio.run(many_sessions()).values()) == [1, 2]
# [live many]

# [serve]
async def serve_and_ask():
    async with mr.Server(program, port=0) as server:                 # `millrace serve`, in one's own event loop
        async with mr.connect(server.url) as session:                # as a session in the process is used
            await session.push(rows)
            await session.finish()
            return [y async for made in session for y in made["y"].tolist()]


assert asyncio.run(serve_and_ask()) == program.run(x=[rows])["y"][0].tolist()
# [serve]

# [live program]
program = mr.Program("any program")
with program:
    x, sums = mr.TensorArray.input("x", mr.f32, [2]), mr.TensorArray.input("sums", mr.f32, [2])
    i, total = mr.Var(0), mr.constant(np.zeros(2, np.float32))
    loop = mr.while_loop([i, total])
    with loop.frame():
        loop.break_if(~x.has(i))                # `has` waits: true once slot i is there, false behind `finish`
        total.update(total + x.read(i))
        sums.write(i, total)
        i += 1


async def slots():
    async with mr.LiveProgram(program) as live:
        await live.push("x", [1.0, 2.0])
        await live.push("x", [10.0, 20.0])
        live.finish()
        return [slot.tolist() async for slot in live.slots("sums")]


assert asyncio.run(slots()) == [[1, 2], [11, 22]]
# [live program]

# [trainer]
def weight(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) / 4


program = mr.Program("classifier")
with program:
    x = mr.input("x", mr.f32, [None, 3], lod=1)
    target = mr.input("target", mr.i64, [None])                      # a class for each sequence
    last = mr.layers.gru(x, mr.layers.GruWeights(weight(3, 24), weight(8, 24), weight(24), weight(24))).h[0]
    scores = mr.layers.linear(last, weight(8, 2), weight(2))
    mr.output("scores", scores)
    mr.output("loss", mr.softmax_cross_entropy_loss(scores, target))

trainer = mr.Trainer(program, mr.Adam(), learning_rate=mr.Schedule("cosine", 0.03, decay_steps=50), clip_norm=1.0)
x = [np.full((length, 3), sign, np.float32) for length in (1, 2, 5) for sign in (-1, 1)]
losses = [trainer.step(x=x, target=[0, 1] * 3).loss for _ in range(50)]
assert losses[-1] < 0.1 * losses[0]
trained = trainer.trained(["scores"])                                # a program as any other: run it, save it, serve it
assert trained.run(x=x)["scores"].numpy().argmax(1).tolist() == [0, 1] * 3
# [trainer]

# [backward]
program = mr.Program("gradients")
with program:
    x, w = mr.input("x", mr.f32, [None, 2]), mr.parameter("w", [[1.0], [2.0]])
    loss = mr.sum((x @ w) ** 2.0)
    mr.output("loss", loss)
    dx, = mr.gradients(loss, [x])               # while it is built, as torch.autograd.grad
    mr.output("dx", dx)
names = mr.append_backward(program, "loss")     # of a program that is there: {'w': 'gradient/w'}
made = program.run(x=[[1.0, 1.0]])
assert made["dx"].tolist() == [[6, 12]] and made[names["w"]].tolist() == [[6], [6]]
# [backward]

# [fine_tuning]
mr.export_onnx(mr.from_torch(torch.nn.Linear(2, 1), [torch.zeros(3, 2)], input_names=["x"], output_names=["y"]), folder / "line.onnx")

program = mr.load(folder / "line.onnx")
with program:                                   # appends to what is there
    target = mr.input("target", mr.f32, [None, 1])
    mr.output("loss", mr.mean_squared_error(program.var("y"), target))
trainer = mr.Trainer(program, mr.SGD(), learning_rate=0.1)
losses = [trainer.step(x=[[0, 1], [1, 0], [1, 1]], target=[[1], [2], [3]]).loss for _ in range(100)]
assert losses[-1] < 0.1 * losses[0]
program = trainer.trained(["y"])
# [fine_tuning]

# [function]
import millrace.torch

lstm = torch.nn.LSTM(3, 4).eval()
program = mr.from_torch(lstm)                   # any program will do
net = millrace.torch.function(program, outputs=["h"])
head = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=0.01)
sequences = [torch.randn(5, 3), torch.randn(2, 3)]                   # ragged: nothing is padded
for _ in range(3):
    optimizer.zero_grad()
    loss = head(net(sequences)[0]).square().mean()
    loss.backward()
    optimizer.step()
program = net.program()                         # with the weights as they are now
# [function]

# [train]
lengths = np.array([3, 1, 4] * 10)
mr.save(folder / "train.npz", {"rows": np.ones((80, 2), np.float32), "lengths": lengths, "labels": lengths % 2})
config = {
    "epochs": 3,
    "data": {"train": "train.npz"},
    "layer": [{"kind": "gru", "units": 8}],
    "output": {"folder": str(folder / "trained")},
}                                               # or the name of a file of `millrace train`
result = mr.train(config, data=folder, on_epoch=lambda epoch: print(epoch.epoch, epoch.train.loss))
assert len(result.epochs) == 3 and "model.mr" in result.files
for epoch in mr.train_curve(config, data=folder):                    # the same beside what you do
    print(epoch.epoch, epoch.train.loss)
# [train]

program, h = step_program, step_h

# [errors]
try:
    one_step(x=np.ones((1, 4), np.float32), h=h)
except mr.ShapeError as error:                  # a ValueError, and an mr.Error
    assert "input 'x': expected f32[1, 3], found f32[1, 4]" in str(error)
with mr.Program():
    try:
        mr.constant([[1.0]]) @ mr.constant([[1.0], [2.0]])
    except mr.ProgramError as error:            # refused while the program is built
        assert "matmul" in str(error)
try:
    program.compile(deadline=5.0)(x=[[1, 2, 3]], h=h)        # seconds
except TimeoutError:                            # mr.DeadlineError
    pass
# [errors]
