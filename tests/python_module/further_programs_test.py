# SPDX-License-Identifier: Apache-2.0
"""Ten further programs as a reader of docs/python.md who knows PyTorch writes them, with PyTorch and NumPy as oracles."""

import asyncio
import gc
import itertools
import weakref

import numpy as np
import pytest

import millrace as mr

torch = pytest.importorskip("torch")


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs, atol=tolerance, rtol=1e-4)


def test_a_bidirectional_tagger_of_two_loops_and_its_loss():
    torch.manual_seed(1)
    rnn, head = torch.nn.RNN(4, 5, bidirectional=True), torch.nn.Linear(10, 3)
    x, tags = [torch.randn(n, 4) for n in (6, 1, 3)], [torch.randint(0, 3, (n,)) for n in (6, 1, 3)]

    def direction(rows, end):
        w_ih, w_hh = getattr(rnn, f"weight_ih_l0{end}"), getattr(rnn, f"weight_hh_l0{end}")
        bias = getattr(rnn, f"bias_ih_l0{end}") + getattr(rnn, f"bias_hh_l0{end}")
        with mr.DynamicRNN() as loop:
            x_t, h = loop.step_input(rows), loop.memory(shape=[5])
            state = mr.tanh(x_t @ w_ih.t() + h @ w_hh.t() + bias)
            loop.update_memory(h, state)
            loop.output(state)
        return loop()

    program = mr.Program("tagger")
    with program:
        rows, target = mr.input("x", mr.f32, [None, 4], lod=1), mr.input("tags", mr.i64, [None], lod=1)
        backward = mr.sequence_reverse(direction(mr.sequence_reverse(rows), "_reverse"))
        both = mr.concat([direction(rows, ""), backward], axis=-1)
        scores = mr.layers.linear(both, head.weight.t(), head.bias)
        mr.output("scores", scores)
        mr.output("loss", mr.softmax_cross_entropy_loss(scores, target))
    made = program.run(x=x, tags=tags)
    theirs = [head(rnn(one[:, None])[0][:, 0]) for one in x]
    for ours, one in zip(made["scores"], theirs):
        close(ours, one)
    close(made["loss"], torch.nn.functional.cross_entropy(torch.cat(theirs), torch.cat(tags)))


def test_gradients_of_inputs_and_weights_are_those_of_autograd():
    torch.manual_seed(2)
    lstm, head = torch.nn.LSTM(3, 4, num_layers=2), torch.nn.Linear(4, 1)
    x = [torch.randn(n, 3) for n in (5, 2)]
    _, (h, _) = lstm(torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
    head(h[-1]).square().sum().backward()

    program = mr.Program("regression")
    with program:
        rows = mr.input("x", mr.f32, [None, 3], lod=1)
        y, names = rows, ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        for layer in range(2):
            layered = mr.layers.lstm(y, mr.layers.lstm_from_pytorch(*(getattr(lstm, f"{name}_l{layer}") for name in names)))
            y = layered.y
        w = mr.parameter("head", head.weight.t())
        loss = mr.sum((layered.h[0] @ w + head.bias) ** 2)
        mr.output("loss", loss)
        (dx,) = mr.gradients(loss, [rows])
        mr.output("dx", dx)
    names = mr.append_backward(program, "loss")
    made = program.run(x=x)
    close(made[names["head"]], head.weight.grad.t())
    x[0].requires_grad_()
    _, (h, _) = lstm(x[0][:, None])
    head(h[-1]).square().sum().backward()
    close(made["dx"][0], x[0].grad)


def test_a_model_is_saved_loaded_and_trained_further(tmp_path):
    def build():
        program = mr.Program("net")
        with program:
            x, target = mr.input("x", mr.f32, [None, 2]), mr.input("target", mr.f32, [None, 1])
            y = x @ mr.parameter("w", [[0.5], [-0.5]]) + mr.parameter("b", [0.0])
            mr.output("y", y)
            mr.output("loss", mr.mean_squared_error(y, target))
        return program

    rows = np.random.default_rng(3).standard_normal((16, 2)).astype(np.float32)
    feeds = {"x": rows, "target": rows @ np.float32([[2.0], [3.0]]) + 1}
    trainer = mr.Trainer(build(), mr.AdamW(), learning_rate=0.1)
    for _ in range(5):
        trainer.step(feeds)
    trainer.save(tmp_path / "checkpoint.safetensors")
    on = [trainer.step(feeds).loss for _ in range(5)]
    again = mr.Trainer(build(), mr.AdamW(), learning_rate=0.1)
    again.restore(tmp_path / "checkpoint.safetensors")
    assert [again.step(feeds).loss for _ in range(5)] == on
    trained = again.trained(["y"])
    trained.save(tmp_path / "net.mr")
    loaded = mr.load(tmp_path / "net.mr")
    assert loaded.run(x=rows)["y"].tolist() == trained.run(x=rows)["y"].tolist()
    with pytest.raises(FileNotFoundError):
        mr.load(tmp_path / "other.mr")


def test_a_cell_of_map_scan_and_cond():
    """An exponential mean that forgets faster while rows are loud, over rows that were scaled one by one."""
    x = np.random.default_rng(4).standard_normal((20, 3)).astype(np.float32)
    program = mr.Program("forgetful mean")
    with program:
        rows = mr.input("x", mr.f32, [None, 3])
        scaled = mr.map_fn(lambda row: row / (1 + mr.abs(row)), rows)

        def step(mean, row):
            loud = mr.max(mr.abs(row)) > 0.6
            rate = mr.cond(loud, lambda: mr.Var(0.5), lambda: mr.Var(0.9))
            return rate * mean + (1 - rate) * row

        mr.output("means", mr.scan(step, scaled, np.zeros(3, np.float32)))
        mr.output("last", mr.fold(step, scaled, np.zeros(3, np.float32)))
    made = program.run(x=x)
    mean, wanted = np.zeros(3, np.float32), []
    for row in x / (1 + np.abs(x)):
        rate = np.float32(0.5 if np.abs(row).max() > 0.6 else 0.9)
        mean = rate * mean + (1 - rate) * row
        wanted.append(mean)
    close(made["means"], np.array(wanted))
    assert made["last"].tolist() == made["means"].tolist()[-1]


def test_streaming_with_deadlines_loses_nothing():
    torch.manual_seed(5)
    gru = torch.nn.GRU(3, 4).eval()
    x = torch.randn(12, 3)

    async def main():
        model, made, late = mr.LiveModel(mr.from_torch(gru)), [], 0
        async with model.session("sensor", given={}) as session:

            async def sensor():
                for row in x:
                    await asyncio.sleep(0.004)
                    await session.push(row[None])
                await session.finish()

            feeding = asyncio.create_task(sensor())
            while True:
                try:
                    rows = await asyncio.wait_for(session.next(), timeout=0.002)
                except asyncio.TimeoutError:
                    late += 1
                    continue
                if rows is None:
                    break
                made.append(rows["y"].numpy())
            await feeding
        return np.concatenate(made), late

    made, late = asyncio.run(main())
    close(made, gru(x[:, None])[0][:, 0])
    assert late > 0


def test_memory_goes_both_ways_by_dlpack():
    t = torch.arange(12.0).reshape(3, 4)
    shared = mr.Tensor(t)
    t[0, 0] = 100
    assert shared.tolist()[0][0] == 100
    assert np.shares_memory(shared.numpy(), t.numpy())

    program = mr.Program("double")
    with program:
        mr.output("y", mr.input("x", mr.f32, [None, 4]) * 2)
    y = program.run(x=t.t().contiguous().t())["y"]  # rows that do not lie one behind the other
    back = torch.from_dlpack(y.copy())
    assert torch.equal(back, t * 2)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8):
        ones = torch.ones(3, dtype=dtype)
        again = torch.from_dlpack(mr.Tensor(ones).copy())
        assert again.dtype == dtype and torch.equal(again, ones), dtype
    gone = weakref.ref(t)
    del t
    gc.collect()
    assert shared.numpy()[0, 0] == 100  # the memory lives as long as one side holds it
    del shared, y, back
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("ragged", [True, False])
def test_two_layers_of_gru_come_from_pytorch(ragged):
    torch.manual_seed(7)
    gru = torch.nn.GRU(3, 4, num_layers=2, dropout=0.5).eval()
    program = mr.from_torch(gru, ragged=ragged)
    if ragged:
        x = [torch.randn(n, 3) for n in (4, 7, 1)]
        theirs, h = gru(torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
        made = program.run(x=x)
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(theirs)
        for i, ours in enumerate(made["y"]):
            close(ours, padded[: lengths[i], i])
    else:
        x = torch.randn(6, 2, 3)
        theirs, h = gru(x)
        made = program.run(x=x)
        close(made["y"], theirs)
    close(made["h"], h)
    assert made["h"].shape == tuple(h.shape)


def test_a_training_loop_by_hand_is_that_of_pytorch():
    torch.manual_seed(8)
    x, target = torch.randn(32, 3), torch.randint(0, 2, (32,))
    w, b = torch.randn(3, 2), torch.zeros(2)
    program = mr.Program("logistic regression")
    with program:
        scores = mr.input("x", mr.f32, [None, 3]) @ mr.input("w", mr.f32, [3, 2]) + mr.input("b", mr.f32, [2])
        loss = mr.softmax_cross_entropy_loss(scores, mr.input("target", mr.i64, [None]))
        mr.output("loss", loss)
    names = mr.append_backward(program, "loss", with_respect_to=["w", "b"])
    compiled, optimizer = program.compile(), mr.Adam()
    weights = {"w": mr.Tensor(w).copy(), "b": mr.Tensor(b).copy()}
    ours = []
    for _ in range(10):
        made = compiled(x=x, target=target, **weights)
        gradients = {name: made[names[name]] for name in weights}
        gradients, norm = mr.clip_gradients(gradients, norm=1.0)
        weights = optimizer.update(weights, gradients, 0.1)
        ours.append(made["loss"].item())

    parameters = [w.clone().requires_grad_(), b.clone().requires_grad_()]
    adam, theirs = torch.optim.Adam(parameters, lr=0.1), []
    for _ in range(10):
        adam.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ parameters[0] + parameters[1], target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    close(weights["w"], parameters[0], 1e-4)


def test_beam_search_finds_the_best_of_all_hypotheses():
    torch.manual_seed(9)
    vocabulary, hidden, end, longest = 4, 3, 0, 4
    embedding, cell, head = torch.nn.Embedding(vocabulary, hidden), torch.nn.GRUCell(hidden, hidden), torch.nn.Linear(hidden, vocabulary)
    h0 = torch.randn(1, hidden)
    with torch.no_grad():

        def score(tokens):
            h, total, last = h0, 0.0, 1
            for token in tokens:
                h = cell(embedding(torch.tensor([last])), h)
                total += torch.log_softmax(head(h), -1)[0, token].item()
                last = token
            return total

        hypotheses = []
        for n in range(1, longest + 1):
            for tokens in itertools.product(range(vocabulary), repeat=n):
                if end not in tokens[:-1] and (tokens[-1] == end or n == longest):
                    hypotheses.append((score(tokens), list(tokens)))
        best_score, best_tokens = max(hypotheses)

    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    program = mr.Program("beam search")
    with program:
        start, state = mr.input("start", mr.i64, [None]), mr.input("h", mr.f32, [None, hidden])
        step_cell = mr.layers.gru_cell(mr.layers.gru_from_pytorch(*(getattr(cell, name) for name in names)))
        table = mr.parameter("table", embedding.weight)

        def model(tokens, states, step):
            (h,) = states
            h = step_cell(mr.embedding(table, tokens[:, 0]), h)
            return mr.log_softmax(mr.layers.linear(h, head.weight.t(), head.bias)), [h]

        best = mr.beam_search(model, start, [state], width=64, end_token=end, max_length=longest)
        mr.output("tokens", best.tokens)
        mr.output("scores", best.scores)
    made = program.run(start=[1], h=h0)
    assert [token for (token,) in made["tokens"][0][0].tolist()] == best_tokens
    np.testing.assert_allclose(np.ravel(made["scores"].rows.numpy())[0], best_score, rtol=1e-4)


def test_a_server_and_its_clients_in_one_event_loop():
    torch.manual_seed(10)
    program = mr.from_torch(torch.nn.LSTM(3, 4).eval())
    x = [np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32) for n in range(1, 9)]

    async def client(url, rows):
        async with mr.connect(url, outputs=["y"]) as session:
            feeding = asyncio.create_task(session.feed(rows[i : i + 1] for i in range(len(rows))))
            made = [y async for result in session for y in result["y"].tolist()]
            await feeding
            return made

    async def main():
        async with mr.Server(program, port=0, sessions=8) as server:
            made = await asyncio.gather(*(client(server.url, rows) for rows in x))
            with pytest.raises(mr.ProtocolError) as refused:
                async with mr.connect(server.url, outputs=["no such output"]):
                    pass
            assert refused.value.code == "bad_input"
            return made

    for ours, rows in zip(asyncio.run(main()), x):
        assert ours == program.run(x=[rows])["y"][0].tolist()


def test_errors_are_told_apart_by_their_classes():
    program = mr.Program("net")
    with program:
        x, h = mr.input("x", mr.f32, [None, 3]), mr.input("h", mr.f32, [None, 2])
        mr.output("y", x @ mr.parameter("w", np.ones((3, 2), np.float32)) + h)
    net = program.compile()
    rows, h = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)
    for feeds, kind, base in [
        (dict(x=rows[:, :2], h=h), mr.ShapeError, ValueError),
        (dict(x=rows.astype(np.float64), h=h), mr.DTypeError, TypeError),
        (dict(x=rows), mr.ArgumentError, ValueError),
        (dict(x=rows, h=h[:1], z=1), mr.ArgumentError, ValueError),
        (dict(x=rows, h=np.zeros((3, 2), np.float32)), mr.ShapeError, ValueError),
    ]:
        with pytest.raises(kind) as raised:
            net(**feeds)
        assert isinstance(raised.value, base) and isinstance(raised.value, mr.Error)
    with pytest.raises(KeyError) as raised:
        net(x=rows, h=h)["z"]
    assert str(raised.value) == "run result: expected one of the outputs y, found 'z'" and isinstance(raised.value, mr.IndexError)
    with pytest.raises(OSError):
        mr.load("/no/such/file.onnx")
    with pytest.raises(RuntimeError, match="mr.cond, mr.where or break_if"):  # as PyTorch has it
        with mr.Program():
            if mr.input("x", mr.f32, []) > 0:
                pass
    assert net(x=rows, h=h)["y"].tolist() == [[3, 3], [3, 3]]  # the program goes on
