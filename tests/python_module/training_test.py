# SPDX-License-Identifier: Apache-2.0
"""Gradients, optimizers, trainers, jobs, and programs as functions of PyTorch, with PyTorch as oracle."""

import contextlib
import copy
import errno
import gc
import os
import pathlib
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import millrace as mr

torch = pytest.importorskip("torch")


def lstm(seed=1, width=3, hidden=4, layers=2):
    torch.manual_seed(seed)
    return torch.nn.LSTM(width, hidden, num_layers=layers, bidirectional=True)


def classifier(seed=1, width=3, hidden=8, classes=2):
    """A GRU, its last state of each sequence, scores and a loss."""
    choose = np.random.default_rng(seed)

    def weight(*shape):
        return (choose.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    program = mr.Program("classifier")
    with program:
        x = mr.input("x", mr.f32, [None, width], lod=1)
        target = mr.input("target", mr.i64, [None])
        made = mr.layers.gru(x, mr.layers.GruWeights(weight(width, 3 * hidden), weight(hidden, 3 * hidden), weight(3 * hidden), weight(3 * hidden)))
        scores = mr.layers.linear(made.h[0], weight(hidden, classes), weight(classes))
        mr.output("scores", scores)
        mr.output("loss", mr.softmax_cross_entropy_loss(scores, target))
    return program


def examples(seed=2, count=24):
    """Sequences of noise, whose class is the sign of the sum of the first column."""
    choose = np.random.default_rng(seed)
    rows = [choose.standard_normal((choose.integers(1, 9), 3)).astype(np.float32) for _ in range(count)]
    return rows, np.array([int(one[:, 0].sum() > 0) for one in rows])


# ---- Gradients ----


def test_gradients_while_a_program_is_built():
    program = mr.Program()
    with program:
        x, y = mr.input("x", mr.f32, [3]), mr.input("y", mr.f32, [3])
        loss = mr.sum(x * x * x)
        dx, dy = mr.gradients(loss, [x, y])
        assert dy is None
        mr.output("dx", dx)
        seed = mr.input("seed", mr.f32, [3])
        mr.output("d2", mr.gradients(x * x, x, seed=seed)[0])
        mr.output("stopped", mr.gradients(mr.sum(x * y), y)[0])
        with pytest.raises(mr.ProgramError):
            mr.gradients(x * x, x)
    made = program.run(x=[1, 2, 3], y=[0, 0, 0], seed=[1, 10, 100])
    assert made["dx"].tolist() == [3, 12, 27] and made["d2"].tolist() == [2, 40, 600] and made["stopped"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("memory", ["keep", "recompute", "recompute(3)"])
def test_append_backward_names_its_outputs_and_memory_changes_no_bit(memory):
    rows, target = examples()

    def gradients(policy):
        program = classifier()
        names = mr.append_backward(program, memory=policy)
        assert set(names) == set(program.parameters) and all(name == "gradient/" + weight for weight, name in names.items())
        result = program.run(x=rows, target=target)
        return {weight: result[name].numpy().tobytes() for weight, name in names.items()}

    assert gradients(memory) == gradients("keep")


def test_append_backward_says_what_it_expects():
    for wrong in ("all", "keep(3)", "recompute(x)", "truncate", "truncate(1, 2, 3)", "recompute(3"):
        with pytest.raises(mr.ArgumentError, match="memory: expected keep"):
            mr.append_backward(classifier(), memory=wrong)
    with pytest.raises(mr.ArgumentError, match="found 'z'"):
        mr.append_backward(classifier(), "z")
    with pytest.raises(mr.ArgumentError, match="expected an input or a weight"):
        mr.append_backward(classifier(), with_respect_to=["z"])
    program = classifier()
    assert mr.append_backward(program, with_respect_to=["x"], prefix="d_") == {"x": "d_x"} and "d_x" in program.outputs


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this PyTorch does not compile")
def test_a_function_stays_as_it_is_inside_a_compiled_model():
    torch.manual_seed(1)
    net = mr.torch.function(mr.from_torch(torch.nn.LSTM(3, 4).eval()), outputs=["y"])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.net, self.behind = torch.nn.Linear(3, 3), net, torch.nn.Linear(4, 2)

        def forward(self, rows, lengths):
            return self.behind(torch.tanh(self.net((torch.relu(self.before(rows)), lengths)).rows)).square().mean()

    def gradients(model, rows, lengths):
        loss = model(rows, lengths)
        return [loss, *torch.autograd.grad(loss, list(plain.parameters()))]

    plain = Model()
    compiled = torch.compile(plain, backend="eager")
    for lengths in ([5, 2], [1, 0, 3]):
        rows = torch.randn(sum(lengths), 3)
        for a, b in zip(gradients(compiled, rows, lengths), gradients(plain, rows, lengths)):
            assert torch.equal(a, b)


def test_gradients_of_an_lstm_are_those_of_pytorch():
    module, sequences = lstm(), [torch.randn(n, 3) for n in (5, 1, 3)]
    function = mr.torch.function(mr.from_torch(module.eval()))
    x = [one.clone().requires_grad_() for one in sequences]
    y, (h, c) = module(torch.nn.utils.rnn.pack_sequence(x, enforce_sorted=False))
    rows, lengths = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    rows = torch.cat([one[:n] for one, n in zip(rows, lengths)])
    ((rows**2).sum() + (h * 3).sum() + c.sum()).backward()
    ours = [one.clone().requires_grad_() for one in sequences]
    made = function(ours)
    assert made["y"].lengths == [5, 1, 3] and made["y"].rows.requires_grad
    assert torch.allclose(made["y"].rows, rows, atol=1e-5)
    ((made["y"].rows ** 2).sum() + (made["h"] * 3).sum() + made["c"].sum()).backward()
    for a, b in zip(ours, x):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    # Of the two biases of PyTorch the sum is one weight here.
    theirs = sum(float((p.grad**2).sum()) for name, p in module.named_parameters() if "bias_hh" not in name)
    found = sum(float((p.grad**2).sum()) for p in function.parameters())
    assert abs(found - theirs) < 1e-3 * theirs


def test_gradcheck_in_f64():
    choose = np.random.default_rng(3)
    program = mr.Program("recurrent in f64")
    with program:
        x = mr.input("x", mr.f64, [None, 2], lod=1)
        boot = mr.input("boot", mr.f64, [None, 3])
        u, w = mr.parameter("u", choose.standard_normal((3, 3))), mr.parameter("w", choose.standard_normal((2, 3)))
        with mr.DynamicRNN() as rnn:
            x_t, h = rnn.step_input(x), rnn.memory(boot)
            state = mr.tanh(h @ u + x_t @ w)
            rnn.update_memory(h, state)
            rnn.output(state)
        mr.output("y", rnn())
        mr.output("last", rnn.last(h))
    function = mr.torch.function(program)
    rows, boot = torch.randn(6, 2, dtype=torch.float64, requires_grad=True), torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def both(rows, boot):
        made = function((rows, [3, 0, 3]), boot=boot)
        return made["y"].rows, made["last"]

    assert torch.autograd.gradcheck(lambda rows, boot: both(rows, boot), (rows, boot))
    weights = dict(function.named_parameters())
    assert set(weights) == {"u", "w"}
    for weight in weights.values():
        assert torch.autograd.gradcheck(lambda _: both(rows, boot), (weight,))
    with pytest.raises(mr.UnsupportedError, match="gradients of gradients"):
        (first,) = torch.autograd.grad((function((rows, [6]), boot=boot[:1])["last"] ** 2).sum(), rows, create_graph=True)
        first.sum().backward()


def two_heads():
    program = mr.Program("two heads")
    with program:
        x, z = mr.input("x", mr.f64, [None, 3]), mr.input("z", mr.f64, [None, 3])
        mr.output("a", mr.tanh(x @ mr.parameter("wa", np.arange(6.0).reshape(3, 2) / 10)))
        mr.output("b", z @ mr.parameter("wb", np.ones((3, 2))))
        mr.output("place", mr.argmax(x, 1))
        mr.output("flat", x.reshape(-1))
    return program


def test_a_function_needs_only_what_its_outputs_need():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    for frozen in (False, True):
        function = mr.torch.function(two_heads(), outputs=["a"])
        for arguments in ({"x": x}, {"x": x, "z": x}):
            with torch.set_grad_enabled(not frozen):
                made = function(**arguments)
            assert torch.allclose(made, torch.tanh(x @ function.wa))
        if not frozen:
            made.sum().backward()
            assert function.wa.grad is not None and function.wb.grad is None
    assert mr.torch.function(two_heads(), outputs=["place"])(x).tolist() == x.argmax(1).tolist()


def test_outputs_of_a_function_share_no_memory_with_its_inputs():
    function = mr.torch.function(two_heads(), outputs=["flat"])
    x = torch.ones(2, 3, dtype=torch.float64)
    for wanted in (False, True):
        made = function(x.requires_grad_(wanted)).detach()
        before = made.clone()
        with torch.no_grad():
            x += 1
        assert torch.equal(made, before)


def test_gradients_of_gradients_are_refused_whatever_else_the_loss_depends_on():
    function = mr.torch.function(two_heads(), outputs=["a"])
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def penalty():
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return first.pow(2).sum()

    for loss in (penalty, lambda: penalty() + function(x).mean(), lambda: penalty() + x.sum()):
        with pytest.raises(mr.UnsupportedError, match="gradients of gradients"):
            loss().backward()
    function.requires_grad_(False)
    layer = torch.nn.Linear(3, 3).double()
    (first, _) = torch.autograd.grad(function(layer(x.detach())).sum(), list(layer.parameters()), create_graph=True)
    with pytest.raises(mr.UnsupportedError, match="gradients of gradients"):
        first.pow(2).sum().backward()
    # A graph that nobody differentiates again costs nothing.
    (kept,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (usual,) = torch.autograd.grad(function(x).sum(), x)
    assert torch.equal(kept, usual)


def test_a_function_takes_packed_sequences():
    torch.manual_seed(4)
    module = torch.nn.GRU(3, 4)
    function = mr.torch.function(mr.from_torch(module))
    sequences = [torch.randn(count, 3, requires_grad=True) for count in (2, 5, 1)]

    def packed():
        return torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)

    made = function(packed())
    assert made["y"].lengths == [2, 5, 1] and torch.equal(made["y"].rows, function(sequences)["y"].rows)
    (made["y"].rows ** 2).sum().backward()
    ours = [one.grad.clone() for one in sequences]
    for one in sequences:
        one.grad = None
    (module(packed())[0].data ** 2).sum().backward()
    for one, gradient in zip(sequences, ours):
        assert torch.allclose(one.grad, gradient, atol=1e-5)
    pair = function((sequences[0], sequences[1]))  # two sequences, no rows and lengths
    assert pair["y"].lengths == [2, 5]


def test_a_trainer_takes_one_thread_at_a_time():
    program = mr.Program("line")
    with program:
        x, target = mr.input("x", mr.f32, [None, 2]), mr.input("target", mr.f32, [None, 1])
        mr.output("loss", mr.mean_squared_error(x @ mr.parameter("w", np.zeros((2, 1), np.float32)), target))
    trainer = mr.Trainer(program, mr.SGD(), learning_rate=0.01)
    x, target = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)

    def work():
        for _ in range(50):
            trainer.step(x=x, target=target)
            assert trainer.weights["w"].shape == (2, 1) and trainer.steps > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = mr.Trainer(program, mr.SGD(), learning_rate=0.01)
    for _ in range(200):
        alone.step(x=x, target=target)
    assert trainer.steps == 200 and trainer.weights["w"].tolist() == alone.weights["w"].tolist()


def test_a_forget_bias_without_a_bias_is_no_weight():
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=1)
        weights = mr.layers.LstmWeights(np.ones((2, 4), "f4"), np.ones((1, 4), "f4"))
        mr.output("loss", mr.mean(mr.drop_lod(mr.layers.lstm(x, weights, forget_bias=1.0).y) ** 2.0))
    assert sorted(mr.Trainer(program, mr.SGD()).weights) == ["lstm_0_input", "lstm_0_recurrent"]
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2])
        cell = mr.layers.lstm_cell(weights, forget_bias=1.0)
        mr.output("h", cell(x, (np.zeros((1, 1), "f4"), np.ones((1, 1), "f4")))[0])
    assert sorted(program.parameters) == ["lstm_input", "lstm_recurrent"]
    theirs = torch.nn.LSTMCell(2, 1)
    with torch.no_grad():
        for name, value in (("weight_ih", 1.0), ("weight_hh", 1.0), ("bias_ih", 0.0), ("bias_hh", 0.0)):
            getattr(theirs, name).fill_(value)
        theirs.bias_ih[1] = 1.0
        h, _ = theirs(torch.ones(1, 2), (torch.zeros(1, 1), torch.ones(1, 1)))
    assert program.run(x=[[1.0, 1.0]])["h"].item() == pytest.approx(h.item(), abs=1e-6)


def test_one_name_freezes_one_weight_and_bounds_out_of_range_are_refused_at_once():
    program = classifier()
    rows, target = examples()
    for frozen in ("linear_bias", ["linear_bias"], {"linear_bias"}, {"linear_bias": 1}.keys()):
        trainer = mr.Trainer(program, mr.SGD(), 0.1, frozen=frozen)
        held = trainer.weights["linear_bias"].tolist()
        trainer.step(x=rows, target=target)
        assert trainer.weights["linear_bias"].tolist() == held
    with pytest.raises(mr.ArgumentError, match="found 'linear'"):
        mr.Trainer(program, mr.SGD(), frozen="linear")
    for wrong in (1, None, b"linear_bias", [1]):
        with pytest.raises(TypeError, match="trainer: frozen: expected the name of a weight, or names"):
            mr.Trainer(program, mr.SGD(), frozen=wrong)
    for bound in ({"clip_norm": -1.0}, {"clip_value": -1.0}, {"clip_norm": float("nan")}, {"clip_value": float("nan")}, {"learning_rate": -1.0}, {"learning_rate": float("inf")}):
        with pytest.raises(mr.ArgumentError, match="of at least 0, found"):
            mr.Trainer(program, mr.SGD(), **bound)
    for setting in ({"warmup": 3, "every": 0}, {"factor": float("inf")}, {"factor": float("nan"), "warmup": 1}):
        with pytest.raises(mr.ArgumentError, match="schedule: expected"):
            mr.Schedule("step", 0.1, **setting)


def test_a_compiled_program_and_a_module_are_refused_by_pickle():
    module = mr.torch.function(mr.from_torch(torch.nn.GRU(2, 3)))
    for one in (module, mr.from_torch(torch.nn.GRU(2, 3)).compile()):
        with pytest.raises(mr.UnsupportedError, match=r"pickle the Program, and of a module of millrace.torch.function its program\(\) or state_dict\(\)"):
            pickle.dumps(one)
    again = mr.torch.function(pickle.loads(pickle.dumps(module.program())))
    again.load_state_dict(module.state_dict())


def test_errors_of_a_configuration_file_are_of_this_library(tmp_path):
    with pytest.raises(mr.FileNotFoundError) as raised:
        mr.train(tmp_path / "none.toml")
    assert raised.value.errno == errno.ENOENT and raised.value.filename == str(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(mr.ParseError, match="UTF-8"):
        mr.train(tmp_path / "bytes.toml")


def test_a_function_of_straight_line_with_several_kinds_of_inputs():
    program = mr.Program("mixed")
    with program:
        x, i = mr.input("x", mr.f32, [None, 3]), mr.input("i", mr.i64, [None])
        table = mr.parameter("table", np.arange(12, dtype=np.float32).reshape(4, 3))
        y = x * mr.embedding(table, i)
        mr.output("y", y)
        mr.output("best", mr.argmax(y))
    function = mr.torch.function(program)
    x = torch.ones(2, 3, requires_grad=True)
    made = function(x, torch.tensor([1, 3]))
    assert made["best"].tolist() == [2, 2] and not made["best"].requires_grad
    made["y"].sum().backward()
    assert x.grad.tolist() == [[3, 4, 5], [9, 10, 11]]
    (weight,) = function.parameters()
    assert weight.grad.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]]
    with torch.no_grad():
        weight += 1
        assert function(x, i=torch.tensor([0, 0]))["y"].tolist() == [[1, 2, 3]] * 2
    assert function.program().run(x=np.ones((1, 3), np.float32), i=[0])["y"].tolist() == [[1, 2, 3]]
    alone = mr.torch.function(program, outputs=["y"])
    assert torch.is_tensor(alone(x, torch.tensor([1, 3])))
    state = function.state_dict()
    other = copy.deepcopy(function)
    with torch.no_grad():
        next(iter(other.parameters())).zero_()
    assert not other(x, torch.tensor([1, 3]))["y"].any() and function(x, torch.tensor([1, 3]))["y"].any()
    other.load_state_dict(state)
    assert other(x, torch.tensor([1, 3]))["y"].equal(function(x, torch.tensor([1, 3]))["y"])
    for wrong in (lambda: function(x, i=torch.tensor([1]), z=1), lambda: function(x, x, x), lambda: mr.torch.function(program, outputs=["z"])):
        with pytest.raises(mr.ArgumentError):
            wrong()
    with pytest.raises(mr.ShapeError):
        function(torch.ones(2, 4), torch.tensor([1, 3]))


class Counted:
    """A compiled program that counts its runs and the iterations of their loops."""

    def __init__(self, compiled):
        self.compiled, self.runs, self.iterations = compiled, 0, 0

    @property
    def inputs(self):
        return self.compiled.inputs

    def _run_sharing(self, feeds):
        result = self.compiled._run_sharing(feeds)
        self.runs, self.iterations = self.runs + 1, self.iterations + result.iterations
        return result


def counted(function):
    """The halves of the one set of gradients that a Function has computed."""
    ((wanted, pair),) = function._pairs.items()
    pair = function._pairs[wanted] = pair._replace(forward=Counted(pair.forward), backward=Counted(pair.backward))
    return pair


def test_forward_runs_once_and_backward_does_not_run_it_again():
    function, sequences = mr.torch.function(mr.from_torch(lstm().eval())), [torch.randn(n, 3) for n in (5, 1, 3)]

    def loss():
        made = function(sequences)
        return (made["y"].rows ** 2).sum() + made["h"].sum()

    loss().backward()
    gradients = [weight.grad.clone() for weight in function.parameters()]
    pair = counted(function)
    plain = function._run = Counted(function._run)
    first = loss()
    assert (pair.forward.runs, pair.backward.runs, plain.runs) == (1, 0, 0)
    first.backward()
    assert (pair.forward.runs, pair.backward.runs, plain.runs) == (1, 1, 0)
    assert pair.backward.iterations == pair.forward.iterations == 2 * 2 * 5  # 2 layers, 2 directions, 5 steps
    second = loss()
    second.backward(retain_graph=True)
    second.backward()
    assert (pair.forward.runs, pair.backward.runs) == (2, 3)
    for weight, one in zip(function.parameters(), gradients):
        assert torch.allclose(weight.grad, 4 * one, rtol=1e-5)
    with pytest.raises(RuntimeError, match="second time"):
        second.backward()
    with torch.no_grad():
        assert not loss().requires_grad
    for weight in function.parameters():
        weight.requires_grad_(False)
    assert not loss().requires_grad
    assert (pair.forward.runs, plain.runs) == (2, 2)


def test_kept_values_go_with_the_graph_of_autograd():
    function, sequences = mr.torch.function(mr.from_torch(lstm().eval()), outputs=["h"]), [torch.randn(n, 3) for n in (5, 1, 3)]
    function(sequences).sum().backward()
    kept = []

    class Watching(Counted):
        def _run_sharing(self, feeds):
            return Watched(self.compiled._run_sharing(feeds))

    class Watched:
        def __init__(self, result):
            self.result = result

        def __getitem__(self, name):
            return self.result[name]

        def _handed(self, *names):
            values, sharing = self.result._handed(*names)
            kept.extend(weakref.ref(value) for value in values.values())
            return values, sharing

    ((wanted, pair),) = function._pairs.items()
    function._pairs[wanted] = pair._replace(forward=Watching(pair.forward))
    loss = function(sequences).sum()
    assert kept and all(one() is not None for one in kept)
    loss.backward()  # the loss itself lives on
    gc.collect()
    assert all(one() is None for one in kept)
    loss = function(sequences).sum()
    del loss
    gc.collect()
    assert all(one() is None for one in kept)


def test_an_output_that_backward_reads_is_not_changed_unnoticed():
    program = mr.Program("in place")
    with program:
        x = mr.input("x", mr.f32, [None, 2])
        mr.output("read", mr.sigmoid(x))
        mr.output("unread", x * 3.0)
    function = mr.torch.function(program)
    x = torch.ones(2, 2, requires_grad=True)
    made = function(x)
    made["unread"].add_(1)
    (made["read"].sum() + made["unread"].sum()).backward()
    expected = torch.sigmoid(torch.ones(())) * (1 - torch.sigmoid(torch.ones(()))) + 3
    assert torch.allclose(x.grad, expected.expand(2, 2))
    made = function(x)
    made["read"].add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        made["read"].sum().backward()


@pytest.mark.parametrize("memory", ["keep", "recompute", "recompute(2)"])
def test_halves_give_the_bits_of_the_whole(memory):
    rows, target = examples()
    program = classifier()
    names = mr.append_backward(program, memory=memory, with_respect_to=[*program.parameters, "x"])
    whole = program.run(x=rows, target=target)
    function = mr.torch.function(classifier(), outputs=["loss"], memory=memory)
    x = torch.from_numpy(np.concatenate(rows)).requires_grad_()
    function((x, [len(one) for one in rows]), torch.from_numpy(target)).backward()
    assert x.grad.numpy().tobytes() == whole[names["x"]].rows.numpy().tobytes()
    for name, fed in function._fed_names.items():
        assert getattr(function, function._weights[fed]).grad.numpy().tobytes() == whole[names[name]].numpy().tobytes()


def test_a_function_is_trained_by_pytorch():
    rows, target = examples()
    function = mr.torch.function(classifier())
    optimizer = torch.optim.Adam(function.parameters(), lr=0.02)
    x, target = [torch.from_numpy(one) for one in rows], torch.from_numpy(target)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = function(x, target)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.25 * losses[0]


def test_a_function_leaks_nothing():
    function, x = mr.torch.function(classifier()), torch.randn(300, 3, requires_grad=True)
    target = torch.zeros(3, dtype=torch.int64)

    def some(times):
        for _ in range(times):
            function((x, [100, 100, 100]), target)["loss"].backward()
            x.grad = None
        gc.collect()

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    some(30)
    before, references = resident(), sys.getrefcount(x)
    some(150)
    assert resident() - before < 8 << 20 and sys.getrefcount(x) == references


# ---- Optimizers ----


@pytest.mark.parametrize(
    "ours,theirs",
    [
        (lambda: mr.SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (lambda: mr.SGD(momentum=0.9, nesterov=True, weight_decay=0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        (lambda: mr.Adam(betas=(0.8, 0.99), eps=1e-6), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), eps=1e-6)),
        (lambda: mr.AdamW(), lambda p: torch.optim.AdamW(p, lr=0.1)),
    ],
)
def test_optimizers_are_those_of_pytorch(ours, theirs):
    torch.manual_seed(4)
    parameter = torch.nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
    weights, optimizer, other = {"w": parameter.detach().numpy().copy()}, ours(), theirs([parameter])
    for step in range(5):
        gradient = torch.randn(5, 3, dtype=torch.float64)
        parameter.grad = gradient.clone()
        other.step()
        if step == 3:
            state, optimizer = optimizer.state(), ours()
            optimizer.restore(state)
        weights = optimizer.update(weights, {"w": gradient}, 0.1)
    assert np.allclose(weights["w"].numpy(), parameter.detach().numpy(), rtol=1e-12) and optimizer.steps == 5
    with pytest.raises(mr.ArgumentError):
        optimizer.update(weights, {"z": gradient}, 0.1)


@pytest.mark.parametrize("eps", [0.0, -1e-8, float("nan"), float("inf")])
def test_an_epsilon_that_is_not_above_0_and_finite_is_refused(eps):
    for made in (mr.Adam, mr.AdamW):
        with pytest.raises(mr.ArgumentError, match="expected a finite epsilon of at least 1.1754944e-38"):
            made(eps=eps)


def test_a_weight_that_was_made_narrow_is_no_weight_of_the_program_any_more(tmp_path):
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 40])
        y = x @ mr.parameter("w", np.ones((40, 40), "f4"))
        mr.output("loss", mr.mean(y * y))
    program.save(tmp_path / "wide.mr")
    assert mr.narrow_weights(program, mr.bf16) == 1 and list(program.parameters) == ["w_bf16"]
    program.save(tmp_path / "narrow.mr")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("wide", "narrow")]
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(mr.ArgumentError):
        mr.Trainer(program, mr.SGD(), frozen="w")


def test_clipping_and_schedules():
    clipped, norm = mr.clip_gradients({"a": [3.0, -4.0]}, norm=1.0)
    assert norm == 5 and np.allclose(clipped["a"].numpy(), [0.6, -0.8])
    assert mr.clip_gradients({"a": [3.0, -4.0]}, value=1.0)[0]["a"].tolist() == [1, -1]
    schedule = mr.Schedule("linear", 1.0, warmup=2, decay_steps=4)
    assert [schedule.at(step) for step in range(7)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]
    assert mr.Schedule("cosine", 2.0, decay_steps=2, least=1.0)(1) == 1.5
    with pytest.raises(mr.ArgumentError, match="found 'sine'"):
        mr.Schedule("sine")


# ---- Trainers ----


def test_a_trainer_learns_and_goes_on_from_a_checkpoint(tmp_path):
    rows, target = examples()
    make = lambda threads=1: mr.Trainer(classifier(), mr.Adam(), mr.Schedule("cosine", 0.02, decay_steps=80, least=0.005), clip_norm=1.0, threads=threads)  # noqa: E731
    trainer, losses = make(), []
    for step in range(60):
        made = trainer.step(x=rows, target=target)
        losses.append(made.loss)
        assert made.outputs["scores"].shape == (24, 2) and made.gradient_norm > 0
        if step == 29:
            trainer.save(tmp_path / "checkpoints")
    assert losses[-1] < 0.3 * losses[0] and trainer.steps == 60
    again = make(threads=2)
    again.restore(tmp_path / "checkpoints")
    assert again.steps == 30
    assert [again.step({"x": rows, "target": target}).loss for _ in range(30)] == losses[30:]
    trained = trainer.trained(["scores"])
    assert list(trained.inputs) == ["x"]
    right = (trained.run(x=rows)["scores"].numpy().argmax(1) == target).mean()
    assert right > 0.9
    assert trainer.evaluate(x=rows, target=target)["scores"].numpy().tobytes() == trained.run(x=rows)["scores"].numpy().tobytes()


def test_the_halves_of_a_step_and_what_is_frozen():
    rows, target = examples()
    whole, halves = mr.Trainer(classifier(), mr.SGD(), 0.1), mr.Trainer(classifier(), mr.SGD(), 0.1)
    step = whole.step(x=rows, target=target)
    loss, gradients = halves.gradients(x=rows, target=target)
    assert loss == step.loss and set(gradients) == set(halves.weights) and halves.apply(gradients) == step.gradient_norm
    assert all(halves.weights[name].numpy().tobytes() == one.numpy().tobytes() for name, one in whole.weights.items())
    name = next(iter(whole.weights))
    frozen = mr.Trainer(classifier(), mr.SGD(), 0.1, frozen={name})
    held = frozen.weights[name].tolist()
    frozen.step(x=rows, target=target)
    assert frozen.weights[name].tolist() == held and held != whole.weights[name].tolist()
    frozen.weights = {name: np.zeros(np.array(held).shape, np.float32)}
    assert not np.any(frozen.weights[name].numpy())
    with pytest.raises(TypeError, match="item assignment"):
        frozen.weights[name] = np.ones(np.array(held).shape, np.float32)
    assert not np.any(frozen.weights[name].numpy())
    frozen.weights = whole.weights  # what another gave
    assert frozen.weights[name].tolist() == whole.weights[name].tolist()


def test_a_trainer_says_what_it_expects():
    rows, target = examples()
    trainer = mr.Trainer(classifier(), mr.SGD(), 0.1)
    for feeds, error in [({"x": rows}, mr.ArgumentError), ({"x": rows, "target": target, "z": 1}, mr.ArgumentError), ({"x": rows, "target": target * 1.5}, mr.DTypeError)]:
        with pytest.raises(error):
            trainer.step(feeds)
    with pytest.raises(mr.ArgumentError, match="an output 'z'"):
        mr.Trainer(classifier(), mr.SGD(), loss="z")
    x = [one * np.float32(np.nan) for one in rows]
    with pytest.raises(mr.TrainingError, match="finite"):
        trainer.step(x=x, target=target)


# ---- Jobs ----


def data_set(folder, seed, count=40):
    rows, target = examples(seed, count)
    mr.save(folder, {"rows": np.concatenate(rows), "lengths": np.array([len(one) for one in rows]), "labels": target})


def config(folder, **training):
    return {
        "epochs": 6,
        "data": {"train": "train.npz", "test": "test.npz"},
        "layer": [{"kind": "gru", "units": 8}],
        "training": {"learning_rate": 0.02, "batch_sequences": 8, **training},
        "output": {"folder": str(folder / "out")},
    }


@pytest.fixture
def folder(tmp_path):
    data_set(tmp_path / "train.npz", 1)
    data_set(tmp_path / "test.npz", 2)
    return tmp_path


def test_a_job_trains_and_writes_its_folder(folder):
    seen, notes = [], []
    made = mr.train(config(folder), data=folder, on_epoch=seen.append, on_note=notes.append, seed=3)
    assert seen == made.epochs and [one.epoch for one in seen] == list(range(1, 7)) and notes
    assert made.epochs[-1].train.loss < made.epochs[0].train.loss and made.test.accuracy > 0.6
    program = mr.load(made.folder / "model.mr")
    rows, _ = examples(5, 3)
    assert program.run(x=rows)["scores"].shape == (3, 2)
    again = mr.train(config(folder), data=folder, output=folder / "other", seed=3, threads=2)
    assert again.epochs == made.epochs and (folder / "other" / "model.safetensors").read_bytes() == (made.folder / "model.safetensors").read_bytes()


def test_a_dict_may_hold_any_letters_lists_and_numbers_of_numpy(folder):
    place = folder / "größe 時"
    place.mkdir()
    lines = [f"{i // 3},{i % 2}.5,{i % 3},{i},{-i}" for i in range(60)]
    (place / "таблица.csv").write_text("\n".join(["sequence,a,b,y,z", *lines]) + "\n")
    job = {
        "epochs": np.int64(2),
        "data": {"train": "таблица.csv", "targets": "row", "target_columns": ["y", "z"], "feature_columns": ("a", "b"), "standardize": np.bool_(True)},
        "model": {"loss": "mse"},
        "layer": ({"kind": "gru", "units": np.uint8(4)},),
        "training": {"learning_rate": np.float32(0.01)},
        "output": {"folder": place / "out"},
    }
    made = mr.train(job, data=place)
    assert made.folder == place / "out" and len(made.epochs) == 2
    assert "model.mr" in made.files and made.epochs[-1].train.loss > 0
    for wrong, place in (
        ({"layer": [{"kind": "gru"}, 3]}, r"layer\[0\]"),
        ({"layer": [{"kind": "gru"}, {"kind": None}]}, r"layer\[1\]\.kind"),
        ({"data": {"train": {"a": 1}}}, r"data\.train"),
        ({"epochs": None}, "epochs"),
    ):
        with pytest.raises(TypeError, match=f"train: {place}: expected text, a number, a bool or a list of these"):
            mr.train({**job, **wrong}, data=place)


def test_a_job_of_a_file_stops_and_goes_on(folder):
    whole = mr.train(config(folder), data=folder, output=folder / "whole")
    from millrace.training import _toml

    (folder / "job.toml").write_text(_toml(config(folder)))

    class Enough(Exception):
        pass

    def stop(epoch):
        if epoch.epoch == 3:
            raise Enough

    with pytest.raises(Enough):
        mr.train(folder / "job.toml", on_epoch=stop)
    made = mr.train(folder / "job.toml", resume=True)
    assert [one.train.loss for one in made.epochs] == [one.train.loss for one in whole.epochs]
    for wrong, error in [({"epoch": 3}, mr.ParseError), ({**config(folder), "epochs": object()}, TypeError)]:
        with pytest.raises(error):
            mr.train(wrong)


def test_a_job_takes_the_numbers_and_paths_of_the_command(folder):
    for name, values in {"seed": (-1, 2**31, 10**30), "epochs": (0, -5, 2**62), "threads": (0, 2000000000), "ranks": (-1, 1025)}.items():
        for value in values:
            with pytest.raises(mr.ArgumentError, match=f"train: {name}: expected a whole number from .*, found {value}"):
                mr.train(config(folder), data=folder, **{name: value})
        with pytest.raises(TypeError):
            mr.train(config(folder), data=folder, **{name: 1.5})
    for name in ("data", "output"):
        for path in ("", "a\0b"):
            with pytest.raises(mr.ArgumentError, match=f"train: {name}: expected a path that is not empty and has no NUL"):
                mr.train(config(folder), **{"data": folder, name: path})
    with pytest.raises(mr.ArgumentError, match="train: config: expected a path"):
        mr.train("a\0b")
    with pytest.raises(mr.ParseError, match="start: expected a text without a NUL"):
        mr.train({**config(folder), "model": {"start": "a\0b"}}, data=folder)
    assert mr.train(config(folder), data=folder, epochs=np.int64(1), seed=np.uint8(0)).epochs


def test_a_job_beside_its_caller(folder):
    curve = mr.train_curve(config(folder), data=folder)
    losses = [epoch.train.loss for epoch in curve]
    assert len(losses) == 6 and curve.result.epochs[-1].train.loss == losses[-1]
    with mr.train_curve({**config(folder), "epochs": 100000}, data=folder) as endless:
        for epoch in endless:
            if epoch.epoch == 3:
                break
    with pytest.raises(RuntimeError, match="stopped"):
        endless.result
    with pytest.raises(OSError):
        list(mr.train_curve(config(folder), data=folder / "nowhere"))
    with pytest.raises(OSError):
        with mr.train_curve(config(folder), data=folder / "nowhere"):
            pass
    with mr.train_curve(config(folder), data=folder / "nowhere") as told:  # once is enough
        with pytest.raises(OSError):
            list(told)


def test_a_loop_over_a_job_that_is_left_stops_the_job(folder):
    for epoch in mr.train_curve({**config(folder), "epochs": 100000}, data=folder):
        if epoch.epoch == 3:
            break
    assert len(mr.train(config(folder), data=folder).epochs) == 6  # in the folder of the job that was left
    curve = mr.train_curve(config(folder), data=folder)
    for epoch in curve:
        break  # the job goes on, since `curve` holds it
    assert len(curve.result.epochs) == 6


# ---- Several processes ----


def script(text, **environment):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), **environment)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def test_ranks_share_a_job_and_report_to_their_caller(folder):
    seen, notes = [], []
    made = mr.train(config(folder), data=folder, ranks=2, on_epoch=seen.append, on_note=notes.append, seed=3)
    assert seen == made.epochs and len(seen) == 6 and notes and made.folder == folder / "out"
    alone = mr.train(config(folder), data=folder, output=folder / "alone", seed=3)
    assert np.allclose([one.train.loss for one in made.epochs], [one.train.loss for one in alone.epochs], rtol=1e-3)
    mr.train(config(folder), data=folder, output=folder / "again", ranks=2, seed=3)
    assert weights_of(folder / "again") == weights_of(made.folder)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def job(folder, ranks=1):
    """The text of a rank that others start."""
    return f"""
        import millrace as mr
        from training_test import config
        import pathlib
        folder = pathlib.Path({str(folder)!r})
        made = mr.train(config(folder), data=folder, ranks={ranks}, seed=3, on_epoch=lambda epoch: print(epoch.epoch))
        """


def test_ranks_that_others_started_meet_by_their_environment(folder):
    port = free_port()
    ranks = [script(job(folder, 2), RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=port) for rank in range(2)]
    said = [one.communicate(timeout=300) for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], said
    assert [one[0].split() for one in said] == [["1", "2", "3", "4", "5", "6"], []]
    mr.train(config(folder), data=folder, output=folder / "spawned", ranks=2, seed=3)
    assert weights_of(folder / "spawned") == weights_of(folder / "out")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_ranks_that_mpirun_started_share_a_job(folder):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), MASTER_PORT=free_port())
    # Open MPI asks for these where root runs it, and where there are fewer cores than ranks.
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    (folder / "job.py").write_text(textwrap.dedent(job(folder)))
    command = ["mpirun", "-n", "2", sys.executable, str(folder / "job.py")]
    made = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.split() == ["1", "2", "3", "4", "5", "6"]  # of rank 0 alone
    mr.train(config(folder), data=folder, output=folder / "spawned", ranks=2, seed=3)
    assert weights_of(folder / "spawned") == weights_of(folder / "out")


def test_a_job_of_ranks_stops_and_goes_on(folder):
    whole = mr.train(config(folder), data=folder, output=folder / "whole", ranks=2)

    class Enough(Exception):
        pass

    def stop(epoch):
        if epoch.epoch == 2:
            raise Enough

    with pytest.raises(Enough):
        mr.train(config(folder), data=folder, ranks=2, on_epoch=stop)
    made = mr.train(config(folder), data=folder, ranks=2, resume=True)
    assert [one.train.loss for one in made.epochs] == [one.train.loss for one in whole.epochs] and weights_of(made.folder) == weights_of(folder / "whole")


def test_the_error_of_a_rank_is_that_of_the_job(folder):
    with pytest.raises(OSError):
        mr.train(config(folder), data=folder / "nowhere", ranks=2)
    with pytest.raises(mr.ParseError):
        mr.train({"epoch": 3}, ranks=2)
    with pytest.raises(mr.ArgumentError, match="ranks: expected a whole number from 1 to 1024, found 0"):
        mr.train(config(folder), ranks=0)

    def kill(epoch):
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout.split()
        for pid in children:
            with contextlib.suppress(OSError):  # `ps` is a child, too, and has ended
                if b"RANK=1" in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)

    with pytest.raises(mr.RankError, match="rank 1 of 2 ended with the exit status -9"):
        mr.train({**config(folder), "epochs": 100000}, data=folder, ranks=2, on_epoch=kill)


# ---- Ctrl-C ----


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_stops_a_job_behind_a_checkpoint(folder, ranks):
    endless = {**config(folder), "epochs": 1000000}
    whole = mr.train(endless, epochs=12, data=folder, output=folder / "whole", ranks=ranks)
    text = f"""
        import pathlib, time
        import millrace as mr
        from training_test import config
        folder = pathlib.Path({str(folder)!r})
        try:
            mr.train({{**config(folder), "epochs": 1000000}}, data=folder, ranks={ranks}, on_epoch=lambda epoch: print(epoch.epoch, flush=True))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    child = script(text)
    while child.stdout.readline() != "2\n":
        assert child.poll() is None, child.stderr.read()
    child.send_signal(signal.SIGINT)
    said, wrong = child.communicate(timeout=120)
    assert child.returncode == 0 and said.split()[-1] == "interrupted", wrong
    last = int(said.split()[-2]) if len(said.split()) > 1 else 2
    made = mr.train(endless, epochs=max(12, last + 1), data=folder, ranks=ranks, resume=True)
    assert [one.train.loss for one in made.epochs[:12]] == [one.train.loss for one in whole.epochs]


def test_ctrl_c_reaches_a_run_in_a_child_process_at_once():
    child = script(
        """
        import time
        import millrace as mr
        from programs import counting
        compiled = counting().compile(backend="interpreted")
        print("begins", flush=True)
        try:
            compiled(limit=10**12)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic(), flush=True)
        assert compiled(limit=3)["i"].item() == 3
        """
    )
    assert child.stdout.readline() == "begins\n"
    time.sleep(0.2)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    said, wrong = child.communicate(timeout=120)
    assert child.returncode == 0 and said.startswith("interrupted"), wrong
    print(f"KeyboardInterrupt after {float(said.split()[1]) - sent:.3f} s")
