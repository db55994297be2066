# SPDX-License-Identifier: Apache-2.0
"""Small programs as a reader of docs/python.md who knows PyTorch writes them, with PyTorch as oracle."""

import asyncio
import gc
import sys
import weakref

import numpy as np
import pytest

import millrace as mr

torch = pytest.importorskip("torch")


def sequences(*lengths, width=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=generator) for n in lengths]


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), atol=tolerance, rtol=1e-4)


# ---- Layers ----


def test_a_ragged_classifier_is_the_packed_one_of_pytorch():
    torch.manual_seed(1)
    lstm, head = torch.nn.LSTM(3, 6).eval(), torch.nn.Linear(6, 2)
    x = sequences(5, 1, 8)
    _, (h, _) = lstm(torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
    program = mr.Program("classifier")
    with program:
        rows = mr.input("x", mr.f32, [None, 3], lod=1)
        weights = mr.layers.lstm_from_pytorch(lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0)
        last = mr.layers.lstm(rows, weights).h[0]
        mr.output("scores", last @ head.weight.t() + head.bias)
    close(program.run(x=x)["scores"], head(h[0]))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "num_layers": 3}])
def test_batch_first_is_batch_first_here_too(kind, options):
    torch.manual_seed(2)
    module = getattr(torch.nn, kind)(3, 4, batch_first=True, **options).eval()
    x = torch.randn(2, 5, 3)
    theirs, state = module(x)
    made = mr.from_torch(module, ragged=False).run(x=x)
    close(made["y"], theirs)
    close(made["h"], state[0] if kind == "LSTM" else state)
    ragged = mr.from_torch(module).run(x=list(x))["y"]
    close(ragged, theirs.reshape(10, -1))


def test_projections_and_stacks_of_modules():
    torch.manual_seed(3)
    projected = torch.nn.LSTM(3, 6, num_layers=2, bidirectional=True, proj_size=2).eval()
    x = sequences(4, 2)
    y, (h, c) = projected(torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
    made = mr.from_torch(projected).run(x=x)
    close(made["h"], h)
    close(made["c"], c)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2), torch.nn.LogSoftmax(dim=-1)).eval()
    close(mr.from_torch(net).run(x=x)["y"], net(torch.cat(x)))
    embedding = torch.nn.Embedding(10, 4)
    close(mr.from_torch(embedding).run(x=[[1, 2], [9]])["y"], embedding(torch.tensor([1, 2, 9])))


def test_a_bidirectional_tagger():
    torch.manual_seed(4)
    gru, head = torch.nn.GRU(3, 4, bidirectional=True).eval(), torch.nn.Linear(8, 5)
    x = sequences(6, 3)
    program = mr.Program()
    with program:
        rows = mr.input("x", mr.f32, [None, 3], lod=1)
        weights = [mr.layers.gru_from_pytorch(*(getattr(gru, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))) for end in ("", "_reverse")]
        y = mr.layers.gru(rows, weights, direction="bidirectional").y
        mr.output("tags", mr.argmax(mr.layers.linear(y, head.weight.t(), head.bias)))
    tags = program.run(x=x)["tags"]
    assert tags.lengths == [6, 3]
    for ours, one in zip(tags, x):
        assert ours.tolist() == head(gru(one[:, None])[0][:, 0]).argmax(-1).tolist()


def test_a_custom_cell_is_a_loop_of_pytorch():
    torch.manual_seed(5)
    w, u = torch.randn(3, 4), torch.randn(4, 4)
    x = sequences(3, 0, 5)

    def step(row, h):
        gate = torch.sigmoid(row @ w + h @ u)
        return gate * h + (1 - gate) * torch.relu(row @ w)

    program = mr.Program()
    with program:
        rows = mr.input("x", mr.f32, [None, 3], lod=1)
        W, U = mr.parameter("w", w), mr.parameter("u", u)

        def cell(x_t, states):
            (h,) = states
            gate = mr.sigmoid(x_t @ W + h @ U)
            return gate * h + (1 - gate) * mr.relu(x_t @ W)

        y, (last,) = mr.layers.unroll(cell, rows, [4])
        mr.output("y", y)
        mr.output("last", last)
    made = program.run(x=x)
    for ours, one in zip(made["y"], x):
        h = torch.zeros(4)
        for t, row in enumerate(one):
            h = step(row, h)
            close(ours[t], h)


def test_cells_of_layers_are_cells_of_pytorch():
    torch.manual_seed(11)
    lstm, gru, rnn = torch.nn.LSTMCell(3, 4), torch.nn.GRUCell(3, 4), torch.nn.RNNCell(3, 4)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    program = mr.Program()
    with program:
        rows, first, second = mr.input("x", mr.f32, [None, 3]), mr.input("h", mr.f32, [None, 4]), mr.input("c", mr.f32, [None, 4])
        cell = mr.layers.lstm_cell(mr.layers.lstm_from_pytorch(*(getattr(lstm, name) for name in names)))
        mr.output("lh", (made := cell(rows, (first, second)))[0])
        mr.output("lc", made[1])
        mr.output("g", mr.layers.gru_cell(mr.layers.gru_from_pytorch(*(getattr(gru, name) for name in names)))(rows, first))
        mr.output("r", mr.layers.rnn_cell(mr.layers.rnn_from_pytorch(*(getattr(rnn, name) for name in names)))(rows, first))
        with pytest.raises(mr.ArgumentError, match=r"two states, \(h, c\), found 1"):
            cell(rows, first)
    made = program.run(x=x, h=h, c=c)
    for name, theirs in zip(("lh", "lc", "g", "r"), (*lstm(x, (h, c)), gru(x, h), rnn(x, h))):
        close(made[name], theirs)
    program = mr.Program()
    with program:
        y, last = mr.layers.unroll(mr.layers.lstm_cell(mr.layers.lstm_from_pytorch(*(getattr(lstm, name) for name in names))), mr.input("x", mr.f32, [None, 3], lod=1), [4, 4])
        mr.output("y", y)
    y = program.run(x=[x, x[:1]])["y"]
    h, c = lstm(x[:1])
    close(y[1], h)
    close(y[0][1:], lstm(x[1:], (h, c))[0])


def test_lengths_may_be_an_array():
    rows = np.zeros((4, 2), np.float32)
    for lengths in ([3, 1, 0], (3, 1, 0), np.array([3, 1, 0]), torch.tensor([3, 1, 0]), [np.int64(3), 1, 0], np.array([3, 1, 0], np.int32), "[[3,1,0]]"):
        assert mr.LoDTensor(rows, lengths).lengths == [3, 1, 0]
    assert mr.LoDTensor(rows, [np.array([2, 1]), [2, 1, 1]]).lod == [[2, 1], [2, 1, 1]]
    assert mr.LoDTensor(rows[:0], []).lengths == []
    for wrong in (np.array([3.0, 1.0]), [[3, 1], "x"], 4, np.ones((2, 2), np.int64), [3, 2], None):
        with pytest.raises((mr.Error, TypeError)):
            mr.LoDTensor(rows, wrong)


def test_masks_are_lengths():
    padded = torch.randn(3, 4, 2)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=1)
        mr.output("mean", mr.sequence_pool(x, "mean"))
    x = mr.LoDTensor(padded[mask], mask.sum(1))
    close(program.run(x=x)["mean"], (padded * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    again = torch.nn.utils.rnn.pad_sequence([torch.from_dlpack(one.copy()) for one in x], batch_first=True)
    assert again.equal(padded * mask[..., None])


def test_encoder_and_decoder_with_attention():
    torch.manual_seed(6)
    width, hidden = 3, 4
    encoder, cell, score = torch.nn.GRU(width, hidden).eval(), torch.nn.GRUCell(2 * hidden, hidden), torch.nn.Linear(hidden, hidden, bias=False)
    table = torch.nn.Embedding(7, hidden)
    x, targets = sequences(5, 2, 3), [[1, 2, 3], [4], [5, 6]]

    def weights(module, end=""):
        return mr.layers.gru_from_pytorch(*(getattr(module, name + end) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))

    program = mr.Program("seq2seq")
    with program:
        source = mr.input("source", mr.f32, [None, width], lod=1)
        target = mr.input("target", mr.i64, [None], lod=1)
        encoded = mr.layers.gru(source, weights(encoder, "_l0"))
        memory = encoded.y
        keys = mr.layers.linear(memory, score.weight.t())
        decoder = mr.layers.gru_cell(weights(cell))
        embedded = mr.layers.embedding(target, table.weight)
        with mr.DynamicRNN() as rnn:
            e = rnn.step_input(embedded)
            h = rnn.memory(encoded.h[0])
            k, m = rnn.static_input(keys), rnn.static_input(memory)
            weight = mr.sequence_softmax(mr.sum(k * mr.sequence_expand_as(h, k), [1], True))
            context = mr.sequence_pool(m * weight, "sum")
            state = decoder(mr.concat([e, context], 1), h)
            rnn.update_memory(h, state)
            rnn.output(state)
        mr.output("y", rnn())
    made = program.run(source=x, target=targets)["y"]
    for ours, one, tokens in zip(made, x, targets):
        m, h = encoder(one[:, None])
        m, h = m[:, 0], h[0]
        for t, token in enumerate(tokens):
            weight = torch.softmax(score(m) @ h[0], 0)
            h = cell(torch.cat([table.weight[token], weight @ m])[None], h)
            close(ours[t], h[0])


def test_beam_search_over_a_trained_looking_model():
    torch.manual_seed(7)
    table = torch.randn(6, 6)  # log-probabilities of the next token by the last one

    def best_by_hand(start, width, length):
        beams = [([], 0.0)]
        for _ in range(length):
            grown = []
            for tokens, total in beams:
                last = tokens[-1] if tokens else start
                if tokens and last == 0:
                    grown.append((tokens, total))
                    continue
                scores = torch.log_softmax(table[last], 0)
                grown += [(tokens + [k], total + float(scores[k])) for k in range(6)]
            beams = sorted(grown, key=lambda one: -one[1])[:width]
        return beams[0]

    program = mr.Program("generation")
    with program:
        start = mr.input("start", mr.i64, [None])
        t = mr.parameter("table", table)

        def model(tokens, states, step):
            return mr.log_softmax(mr.embedding(t, mr.reshape(tokens, [-1]))), states

        state = mr.input("state", mr.f32, [None, 1])
        best = mr.beam_search(model, start, [state], width=3, end_token=0, max_length=5)
        mr.output("tokens", best.tokens)
        mr.output("totals", best.totals)
    made = program.run(start=[1, 4], state=np.zeros((2, 1), np.float32))
    for i, first in enumerate((1, 4)):
        tokens, total = best_by_hand(first, 3, 5)
        assert made["tokens"][i][0].numpy().ravel().tolist() == tokens
        assert abs(made["totals"][i].numpy().ravel()[0] - total) < 1e-4


def test_nested_sequences_words_in_sentences():
    words = [[["a", "bc"], ["def"]], [[], ["g", "h", "i"]]]
    ids = [[[ord(w[0]) - 96 for w in sentence] for sentence in document] for document in words]
    program = mr.Program()
    with program:
        x = mr.input("x", mr.i64, [None], lod=2)
        vectors = mr.layers.embedding(x, np.eye(12, dtype=np.float32))
        sentence = mr.sequence_pool(vectors, "sum")                 # a row for each sentence, in documents
        mr.output("documents", mr.sequence_pool(sentence, "max"))
    made = program.run(x=ids)["documents"].numpy()
    assert made.shape == (2, 12)
    assert made[0].nonzero()[0].tolist() == [1, 2, 4] and made[1].nonzero()[0].tolist() == [7, 8, 9]


def test_a_model_of_onnx_is_loaded_and_run(tmp_path):
    torch.manual_seed(8)
    net = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.ReLU(), torch.nn.Conv1d(4, 1, 2)).eval()
    x = torch.randn(3, 2, 9)
    torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}})
    program = mr.load(tmp_path / "net.onnx")
    assert list(program.inputs) == ["x"]
    close(program.run(x=x)["y"], net(x), 1e-4)
    close(program.run(x=x[:1])["y"], net(x[:1]), 1e-4)


def test_a_dense_loop_with_early_stop_and_a_running_mean():
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None])
        limit = mr.input("limit", mr.f32, [])
        steps = mr.TensorArray(unstack_from=x)
        i, total = mr.Var(0), mr.Var(0.0)
        loop = mr.while_loop([i, total])
        with loop.frame():
            loop.break_if(i == steps.size())
            loop.break_if(total > limit)
            total += steps.read(i)
            i += 1
        mr.output("steps", i)
        mr.output("mean", total / mr.cast(i, mr.f32))
    made = program.run(x=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), limit=5)
    assert made["steps"].item() == 3 and made["mean"].item() == 2


# ---- Arrays ----


def test_round_trips_with_pytorch_share_memory_and_keep_it():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8):
        t = torch.arange(12).reshape(3, 4).to(dtype)
        ours = mr.Tensor(t)
        assert ours.read_only and ours.shape == (3, 4) and mr.Tensor(t.t()).tolist() == t.t().tolist()
        own = ours.copy()
        theirs = torch.from_dlpack(own)
        assert theirs.dtype == dtype and theirs.equal(t)
        del own
        gc.collect()
        theirs += 1
        assert theirs.equal(t + 1)
    t = torch.zeros(1 << 18)
    alive, count = weakref.ref(t), sys.getrefcount(t)
    views = [mr.Tensor(t)[i * 10 : i * 10 + 10] for i in range(50)]
    assert views[3].numpy().__array_interface__["data"][0] == t.data_ptr() + 120
    del t
    gc.collect()
    assert views[0].tolist() == [0] * 10
    del views
    gc.collect()
    assert alive() is None and count == 2
    assert torch.from_dlpack(mr.Tensor(np.ones(3))).tolist() == [1, 1, 1]  # a copy, where PyTorch does not ask for DLPack 1.0
    x = torch.ones(3, requires_grad=True)  # its elements: gradients flow through millrace.torch.function alone
    assert mr.Tensor(x).numpy().__array_interface__["data"][0] == x.data_ptr()


def test_round_trips_leave_no_memory_behind():
    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def some(times):
        for _ in range(times):
            t = torch.ones(1 << 16)
            assert torch.from_dlpack(mr.Tensor(torch.from_dlpack(mr.Tensor(t).copy())).copy())[0] == 1
            assert mr.Tensor(mr.Tensor(t).numpy())[1].item() == 1

    some(50)
    before = resident()
    some(500)
    assert resident() - before < 8 << 20


# ---- Errors ----


@pytest.mark.parametrize(
    "wrong,words",
    [
        (lambda x: x @ mr.constant(np.ones((4, 2), np.float32)), "matmul"),
        (lambda x: x + mr.constant(np.ones(3)), "f64"),
        (lambda x: mr.concat([x, mr.constant(np.ones((2, 2), np.float32))], 0), "concat"),
        (lambda x: bool(x > 0), "mr.cond"),
        (lambda x: [row for row in x], "mr.map_fn"),
        (lambda x: len(x), "size"),
        (lambda x: mr.layers.gru(x, mr.layers.GruWeights(*[np.zeros(s, np.float32) for s in ((3, 5), (2, 6), (6,), (6,))])), "gru"),
        (lambda x: mr.sequence_pool(x, "median"), "median"),
        (lambda x: mr.softmax(x, axis=5), "axis"),
        (lambda x: mr.input("x", mr.f32, [1]), "'x'"),
    ],
)
def test_mistakes_are_named_where_they_are_made(wrong, words):
    with mr.Program():
        x = mr.input("x", mr.f32, [None, 3], lod=1)
        with pytest.raises((mr.Error, TypeError)) as raised:
            wrong(x)
    assert words in str(raised.value), raised.value


def test_functions_outside_of_a_program_say_so():
    with pytest.raises(mr.ProgramError, match="with program"):
        mr.input("x", mr.f32, [1])
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None])
    with pytest.raises(mr.ProgramError):
        mr.relu(x)
    with pytest.raises(AttributeError):
        mr.lstm_layer
    with pytest.raises(OSError):
        mr.load("nowhere.onnx")


# ---- Live ----


def test_a_live_session_of_a_module_of_pytorch():
    torch.manual_seed(9)
    module = torch.nn.GRU(3, 4, num_layers=2).eval()
    x = torch.randn(9, 3)

    async def main():
        model = mr.LiveModel(mr.from_torch(module))
        made = []
        async with model.session() as session:
            for row in x:
                await session.push(row[None])
                made.append((await session.next())["y"])
            await session.finish()
            assert await session.next() is None
        return np.concatenate([one.numpy() for one in made])

    np.testing.assert_allclose(asyncio.run(main()), module(x[:, None])[0][:, 0].detach().numpy(), atol=1e-5)


def test_a_function_is_a_part_of_a_network_of_pytorch():
    torch.manual_seed(10)
    x, classes = sequences(4, 2, 7, 1), torch.tensor([0, 1, 0, 1])
    recurrent = mr.torch.function(mr.from_torch(torch.nn.GRU(5, 6).eval()), outputs=["h"])

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.recurrent, self.head = torch.nn.Linear(3, 5), recurrent, torch.nn.Linear(6, 2)

        def forward(self, x):
            lengths = [len(one) for one in x]
            return self.head(self.recurrent((torch.relu(self.project(torch.cat(x))), lengths))[0])

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), classes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert len(list(net.parameters())) == 4 + len(list(recurrent.parameters()))
