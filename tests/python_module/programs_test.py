# SPDX-License-Identifier: Apache-2.0
"""Programs that Python builds: the listings of the designs, loops, blocks, and what is refused."""

import pathlib
import pickle
import re
import threading

import numpy as np
import pytest

import millrace as mr
from programs import case_25, counting, listing, listing_by_numpy, random_sequences

HERE = pathlib.Path(__file__).parent


def built(build):
    """The values of a program without inputs."""
    program = mr.Program()
    with program:
        mr.output("y", build())
    return mr.run(program)["y"].tolist()


def test_the_canonical_listing_is_the_text_that_cpp_builds():
    # tests/runtime/builder/listing_test.cpp compares what C++ builds with the same file.
    assert case_25().text == (HERE / "listing.mr").read_text()


@pytest.mark.parametrize("sorted", [True, False])
def test_the_canonical_listing_over_ragged_sequences(sorted):
    random = np.random.default_rng(25)
    for _ in range(20):
        c, h = random.integers(1, 9, 2)
        u, w = random.standard_normal((h, h)).astype(np.float32), random.standard_normal((c, h)).astype(np.float32)
        sequences = random_sequences(random, c)
        boot = random.standard_normal((len(sequences), h)).astype(np.float32)
        x = mr.LoDTensor(np.concatenate(sequences) if sequences else np.zeros((0, c), np.float32), [len(s) for s in sequences])
        y = mr.run(listing(u, w, sorted), x=x, boot=boot)["y"]
        assert y.lengths == x.lengths
        for ours, theirs in zip(y, listing_by_numpy(sequences, boot, u, w)):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-6)


def test_the_listing_of_design_000():
    """As the document has it, but for what it leaves out: the reads, and an index that starts at 0."""
    random = np.random.default_rng(0)
    input_rows = random.standard_normal((12, 3, 4)).astype(np.float32)
    w, u = random.standard_normal((4, 5)).astype(np.float32), random.standard_normal((5, 5)).astype(np.float32)
    program = mr.Program()
    with program:
        input = mr.input("input", mr.f32, [None, 3, 4])
        num_steps = mr.Var(12)

        states = mr.TensorArray(size=num_steps)
        step_inputs = mr.TensorArray(unstack_from=input)
        step_outputs = mr.TensorArray(size=num_steps)

        W = mr.parameter("W", w)
        U = mr.parameter("U", u)
        default_state = mr.constant(np.zeros((3, 5), np.float32))

        step = mr.Var(0)

        wloop = mr.create_whileloop(loop_vars=[step])
        with wloop.frame():
            wloop.break_if(mr.equal(step, num_steps))
            pre_state = states.read(step - 1, default_state)
            step_input = step_inputs.read(step)
            state = mr.sigmoid(mr.matmul(pre_state, U) + mr.matmul(step_input, W))
            states.write(step, state)
            step_outputs.write(step, state)  # output state
            step.update(step + 1)

        output = step_outputs.stack()
        mr.output("output", output)
    made = mr.run(program, input=input_rows)["output"].numpy()
    state = np.zeros((3, 5), np.float32)
    for t in range(12):
        state = 1 / (1 + np.exp(-(state @ u + input_rows[t] @ w)))
        np.testing.assert_allclose(made[t], state, atol=2e-6)


def test_the_forward_logic_of_design_003():
    program = mr.Program()
    with program:
        x, zeros = mr.input("input", mr.f32, [None, 1], lod=1), mr.input("zeros", mr.f32, [None, 1])
        inputs_for_each_timestep, order = mr.unpack(x)
        size = inputs_for_each_timestep.size()
        memories, outputs = mr.TensorArray(size, order), mr.TensorArray(size, order)
        W0, W1, Bias = [[2.0]], [[0.5]], [[1.0]]
        i = mr.Var(0)
        more = i < size
        loop = mr.while_op(more, [i])
        with loop.frame():
            step_input = inputs_for_each_timestep[i]
            ex_mem = mr.shrink(memories.read(i - 1, zeros), step_input)
            tmp0 = step_input @ mr.constant(W0)
            tmp1 = ex_mem @ mr.constant(W1)
            sum = tmp0 + tmp1 + mr.constant(Bias)
            memories[i] = sum
            outputs[i] = sum
            i += 1
            more.update(i < size)
        mr.output("y", mr.pack(outputs, 0, order))
    x = mr.LoDTensor(np.arange(1, 7, dtype=np.float32).reshape(6, 1), [2, 1, 3])
    y = mr.run(program, input=x, zeros=np.zeros((3, 1), np.float32))["y"]
    assert [v for row in y.rows.tolist() for v in row] == [3, 6.5, 7, 9, 15.5, 20.75] and y.lengths == [2, 1, 3]


# ---- Design 000: the helper operators of TensorArray, and the class around them ----


def tensor_array_stack(ta):
    """get a tensor array `ta`, return a packed `tensor`."""
    return mr.call("tensor_array_stack", ta)


def tensor_array_unstack(tensor):
    """get a `tensor`, unstack it and get a tensor array `ta`."""
    return mr.call("tensor_array_unstack", tensor)


def tensor_array_write(ta, index, tensor, data_shared):
    """get a `tensor` and a scalar tensor `index`, write `tensor` into index-th value of the tensor array `ta`."""
    mr.call("tensor_array_write", ta, index, tensor, share=data_shared)


def tensor_array_read(ta, index):
    """get a tensor array `ta`, a scalar tensor `index`, read the index-th value of `ta` and return as the `tensor`."""
    return mr.call("tensor_array_read", ta, index)


def tensor_array_size(ta):
    """get a tensor array `ta`, return the size of `ta` and return as the scalar `tensor`."""
    return mr.call("tensor_array_size", ta)


class TensorArray:
    """The class of the document, line by line. Operators of the document take the name of the variable that they set; here they return it."""

    def __init__(self, name, size=None):
        self.name = name
        self.desc = mr.call("tensor_array", size) if size is not None else None

    def stack(self, name=None):
        tensor = tensor_array_stack(self.desc)
        return tensor

    def unstack(self, input):
        self.desc = tensor_array_unstack(input)

    def write(self, index, value, data_shared=True):
        tensor_array_write(self.desc, index, value, data_shared)

    def read(self, index):
        return tensor_array_read(self.desc, index)

    def size(self):
        return tensor_array_size(self.desc)


def test_the_helpers_of_design_000_and_the_class_around_them():
    x = np.random.default_rng(1).standard_normal((7, 2, 3)).astype(np.float32)
    program = mr.Program()
    with program:
        step_inputs = TensorArray("step_inputs")
        step_inputs.unstack(mr.input("x", mr.f32, [None, 2, 3]))
        num_steps = step_inputs.size()
        step_outputs = TensorArray("step_outputs", num_steps)
        step = mr.Var(0)
        wloop = mr.create_whileloop(loop_vars=[step])
        with wloop.frame():
            wloop.break_if(mr.equal(step, num_steps))
            step_outputs.write(step, mr.sigmoid(step_inputs.read(step)), data_shared=False)
            step.update(step + 1)
        mr.output("y", step_outputs.stack())
    assert isinstance(step_inputs.desc, mr.TensorArray)
    np.testing.assert_allclose(mr.run(program, x=x)["y"].numpy(), 1 / (1 + np.exp(-x)), atol=2e-6)


@pytest.mark.parametrize("share", [True, False])
def test_the_loop_of_design_001_over_an_unpacked_lod_tensor(share):
    """`TensorArray::unpack(input, 1, true, &ta, &indice_map)`, `states.read(step)`, `ta.pack(ta, indice_map)`: levels count from 0 here."""
    program = mr.Program()
    with program:
        sentence_input = mr.input("sentence_input", mr.f32, [None, 2], lod=1)
        boot_state = mr.constant(np.ones((1, 2), np.float32))  # to initialize rnn's first state
        ta, indice_map = mr.unpack(sentence_input, 0, True)
        states, step_outputs = mr.TensorArray.growable("states"), mr.TensorArray(ta.size(), indice_map)
        states.write(0, mr.sequence_pool(sentence_input * 0.0, "sum") + boot_state)
        step = mr.Var(0)
        loop = mr.while_loop([step])
        with loop.frame():
            loop.break_if(step == ta.size())
            step_input = ta.read(step)
            step_output = mr.tanh(mr.shrink(states.read(step), step_input) + step_input)  # rnnstep
            states.write(step + 1, step_output)
            step_outputs.write(step, step_output, data_shared=share)
            step += 1
        rnn_output = mr.pack(step_outputs, 0, indice_map)
        mr.output("rnn_output", rnn_output)
    sequences = [np.random.default_rng(n).standard_normal((n, 2)).astype(np.float32) for n in (2, 5, 1, 3)]
    made = mr.run(program, sentence_input=sequences)["rnn_output"]
    for ours, rows in zip(made, sequences):
        state = np.ones(2, np.float32)
        for t, row in enumerate(rows):
            state = np.tanh(state + row)
            np.testing.assert_allclose(ours.numpy()[t], state, atol=2e-6)


def test_functional_forms():
    x = mr.Tensor([1.0, 2.0, 3.0, 4.0])
    assert built(lambda: mr.map_fn(lambda v: v * v, x)) == [1, 4, 9, 16]
    assert built(lambda: mr.fold(lambda total, v: total + v, x, 0.5)) == 10.5
    assert built(lambda: mr.scan(lambda total, v: total + v, x, 0.0)) == [1, 3, 6, 10]
    assert built(lambda: mr.while_loop(lambda i, total: i < 5, lambda i, total: (i + 1, total + i), [0, 0])[1]) == 10
    assert built(lambda: mr.cond(mr.Var(2) < 3, lambda: 1.5, lambda: 2.5)) == 1.5

    def both():
        one, two = mr.cond(mr.Var(False), lambda: (1, 2), lambda: (3, 4))
        return one * 10 + two

    assert built(both) == 34


@pytest.mark.parametrize("dtype", [mr.f64, mr.f16, mr.f32])
def test_a_number_takes_the_dtype_of_the_values_beside_it_in_loops_and_branches(dtype):
    program = mr.Program()
    with program:
        v = mr.input("v", dtype, [None])
        total = mr.sum(v)
        mr.output("fold", mr.fold(lambda a, e: a + e, v, 0.1))
        mr.output("whole", mr.fold(lambda a, e: a + e, v, 0))
        mr.output("scan", mr.scan(lambda a, e: a + e, v, 0.1))
        mr.output("last", mr.fold(lambda a, e: 0.1, v, 0.2))
        mr.output("pair", mr.fold(lambda a, e: a + e, mr.reshape(v, [2, 2]), [0.1, 0.2]))
        steps, made, _ = mr.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a + b, 0.1), [0, 0.1, total])
        mr.output("steps", steps)
        mr.output("while", made)
        mr.output("then", mr.cond(total > 0, lambda: 0.1, lambda: total))
        mr.output("else", mr.cond(total < 0, lambda: (total, total), lambda: (0, 0.1))[1])
        i, state = mr.Var(0), total * 1
        loop = mr.while_loop([i, state])
        with loop.frame():
            loop.break_if(i == 1)
            state.update(0.1)
            i += 1
        mr.output("updated", state)
    made = program.run(v=[0.0] * 4)
    assert made["steps"].dtype == mr.i64
    tenth = mr.Tensor(0.1, dtype=dtype).item()
    for name in ("fold", "whole", "scan", "last", "pair", "while", "then", "else", "updated"):
        assert made[name].dtype == dtype, name
    for name in ("fold", "last", "else", "updated"):
        assert made[name].item() == tenth, name
    assert made["scan"].tolist() == [tenth] * 4 and made["pair"].tolist()[0] == tenth


def test_whole_numbers_count_where_a_state_of_their_own_says_so():
    program = mr.Program()
    with program:
        v, flags, small = mr.input("v", mr.f32, [None]), mr.input("flags", mr.bool_, [None]), mr.input("small", mr.i32, [None])
        mr.output("constant", mr.fold(lambda n, e: n + 1, v, mr.constant(0)))
        mr.output("flags", mr.fold(lambda n, e: n + mr.cast(e, mr.i64), flags, 0))
        mr.output("small", mr.fold(lambda n, e: n + e, small, 0))
        mr.output("any", mr.fold(lambda n, e: n | e, flags, False))
        mr.output("mixed", mr.cond(mr.sum(v) > 0, lambda: 1, lambda: 0.5))
        mr.output("float beside integers", mr.fold(lambda n, e: n + mr.cast(e, mr.f32), small, 0.5))
    with mr.Program(), pytest.raises(mr.ProgramError, match="expected 2 results of the else block, as many as the then block has, found 1"):
        mr.cond(mr.Var(True), lambda: (1, 2), lambda: 1)
    program = mr.parse(program.text)
    made = program.run(v=[1, 2], flags=[True, False], small=[3, 4])
    assert {name: (made[name].dtype, made[name].item()) for name in made} == {
        "constant": (mr.i64, 2),
        "flags": (mr.i64, 1),
        "small": (mr.i32, 7),
        "any": (mr.bool_, True),
        "mixed": (mr.f32, 1.0),
        "float beside integers": (mr.f32, 7.5),
    }


def test_a_function_is_called_once_when_the_program_is_built_and_never_when_it_runs():
    calls = []

    def f(total, v):
        calls.append(1)
        return total + v

    program = mr.Program()
    with program:
        mr.output("y", mr.fold(f, mr.input("x", mr.f32, [None]), 0.0))
    compiled = program.compile()
    for n in range(5):
        assert compiled(x=[1.0] * n)["y"].item() == n
    assert len(calls) == 1


def test_dynamic_rnn_as_a_context_manager_and_nested():
    random = np.random.default_rng(3)
    w, u = random.standard_normal((2, 3)).astype(np.float32), random.standard_normal((3, 3)).astype(np.float32)
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=1)
        W, U = mr.parameter("W", w), mr.parameter("U", u)
        with mr.DynamicRNN() as rnn:
            x_t = rnn.step_input(x)
            h = rnn.memory(shape=[3], value=0.5)
            next = mr.tanh(x_t @ W + h @ U)
            rnn.update_memory(h, next)
            rnn.output(next, next * 2)
        y, double = rnn()
        mr.output("y", y)
        mr.output("double", double)
        mr.output("last", rnn.last(h))
    sequences = random_sequences(random, 2, count=6)
    made = mr.run(program, x=sequences)
    for i, rows in enumerate(sequences):
        state = np.full(3, 0.5, np.float32)
        for t, row in enumerate(rows):
            state = np.tanh(row @ w + state @ u)
            np.testing.assert_allclose(made["y"][i].numpy()[t], state, atol=2e-6)
        np.testing.assert_allclose(made["last"].numpy()[i], state, atol=2e-6)
    assert np.array_equal(made["double"].numpy(), 2 * made["y"].numpy())

    nested = mr.Program()
    with nested:
        x = mr.input("x", mr.f32, [None, 1], lod=2)
        with mr.DynamicRNN() as outer:
            sub = outer.step_input(x)
            total = outer.memory(shape=[1])
            with mr.DynamicRNN() as inner:
                row = inner.step_input(sub)
                sum = inner.memory(total)
                inner.update_memory(sum, sum + row)
                inner.output(sum + row)
            outer.update_memory(total, inner.last(sum))
            outer.output(inner())
        mr.output("y", outer())
    x = mr.LoDTensor(np.ones((6, 1), np.float32), [[2, 1, 0], [3, 1, 2]])
    assert mr.run(nested, x=x)["y"].tolist() == [[[[1], [2], [3]], [[4]]], [[[1], [2]]], []]


def test_static_rnn():
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2, 1])
        with mr.StaticRNN(reverse=True) as rnn:
            x_t = rnn.step_input(x)
            total = rnn.memory(mr.constant(np.zeros((2, 1), np.float32)))
            rnn.update_memory(total, total + x_t)
            rnn.output(total + x_t)
        mr.output("y", rnn())
    x = np.arange(6, dtype=np.float32).reshape(3, 2, 1)
    assert np.array_equal(mr.run(program, x=x)["y"].numpy(), x[::-1].cumsum(0)[::-1])
    with mr.Program():
        with pytest.raises(mr.ProgramError, match="step_input before it"):
            with mr.StaticRNN() as rnn:
                rnn.memory(shape=[1])


def test_a_cell_of_ones_own_runs_fused():
    random = np.random.default_rng(7)
    wz, w, u = (random.standard_normal(s).astype(np.float32) / 4 for s in ((4, 16), (4, 16), (16, 16)))
    calls = []
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 4], lod=1)
        Wz, W, U = mr.parameter("Wz", wz), mr.parameter("W", w), mr.parameter("U", u)

        def cell(x, states):
            calls.append(1)
            (h,) = states
            z = mr.sigmoid(x @ Wz + h @ U)
            return z * h + (1.0 - z) * mr.tanh(x @ W)

        y, (last,) = mr.layers.unroll(cell, x, [16])
        mr.output("y", y)
        mr.output("last", last)
    sequences = random_sequences(random, 4, count=5)
    made = program.compile(backend="fused", backend_required=True)(x=sequences)
    assert made.fused_loops == 1 and len(calls) == 1
    again = program.compile(backend="interpreted")(x=sequences)
    assert again.fused_loops == 0 and np.array_equal(again["y"].numpy(), made["y"].numpy())
    for i, rows in enumerate(sequences):
        h = np.zeros(16, np.float32)
        for row in rows:
            z = 1 / (1 + np.exp(-(row @ wz + h @ u)))
            h = z * h + (1 - z) * np.tanh(row @ w)
        np.testing.assert_allclose(made["last"].numpy()[i], h, atol=1e-5)


def test_operators_of_vars_are_those_of_numpy():
    a, b = np.array([[1.5, -2, 3]], np.float32), np.array([[4.0], [0.5]], np.float32)
    cases = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: 2 - x, lambda x, y: 1 / y, lambda x, y: 3 + y * 2, lambda x, y: -x,
        lambda x, y: x < y, lambda x, y: x <= y, lambda x, y: x > y, lambda x, y: x >= 3, lambda x, y: x == y, lambda x, y: x != y, lambda x, y: abs(x), lambda x, y: y @ x,
        lambda x, y: (x > 0) & (x < 2), lambda x, y: (x > 2) | (x < 0), lambda x, y: ~(x > 0), lambda x, y: y ** 2, lambda x, y: np.array([1, 2, 3], np.float32) * x,
    ]  # fmt: skip
    for number, case in enumerate(cases):
        program = mr.Program()
        with program:
            mr.output("y", case(mr.input("a", mr.f32, [1, 3]), mr.input("b", mr.f32, [2, 1])))
        assert program.run(a=a, b=b)["y"].tolist() == case(a, b).tolist(), number


def test_in_place_operators_update_a_variable():
    program = mr.Program()
    with program:
        i, total = mr.Var(0), mr.Var(0)
        loop = mr.while_loop([i, total])
        with loop.frame():
            loop.break_if(i == 5)
            total += i
            i += 1
        mr.output("total", total)
    assert mr.run(program)["total"].item() == 10


def test_any_op_by_name():
    assert built(lambda: mr.call("sequence_pool", mr.lod_reset(mr.constant([[1.0], [2.0]]), [2]), kind="sum")) == [[3]]
    assert built(lambda: mr.call("concat", mr.constant([1.0]), mr.constant([5.0]), axis=0)) == [1, 5]
    with pytest.raises(mr.Error, match="no_such_op"):
        built(lambda: mr.call("no_such_op", 1))
    with pytest.raises(mr.ProgramError, match="axis"):
        built(lambda: mr.call("concat", mr.constant([1.0]), axis="zero"))


def test_what_is_refused_says_so_and_is_a_class():
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2])
        with pytest.raises(mr.ProgramError, match="matmul"):
            x @ mr.constant(np.zeros((3, 1), np.float32))
        with pytest.raises(mr.ProgramError, match="has no value while the program is built"):
            if x > 0:
                pass
        with pytest.raises(mr.ProgramError, match="cannot be iterated"):
            list(x)
        with pytest.raises(mr.ProgramError, match="has no length"):
            len(x)
        with pytest.raises(mr.ShapeError):
            mr.input("z", mr.f32, [-3])
        with pytest.raises(mr.DTypeError, match="found the format 'h'"):
            mr.parameter("W", np.zeros(2, np.int16))
    with pytest.raises(mr.ProgramError, match="open program on this thread"):
        mr.constant(1)
    with mr.Program():
        with pytest.raises(mr.ProgramError, match="of another one"):
            x + 1
    for error in (mr.ProgramError, mr.ShapeError, mr.DeadlockError, mr.CancelledError):
        assert issubclass(error, mr.Error)


def test_frames_and_blocks_end_in_order_whatever_happens():
    program = mr.Program()
    with program:
        i = mr.Var(0)
        loop = mr.while_loop([i])
        with pytest.raises(ZeroDivisionError):
            with loop.frame():
                1 / 0
        assert i.name == "constant"  # stands for what it stood for before
    with pytest.raises(mr.ProgramError):
        program.check()

    with pytest.raises(mr.ProgramError, match="can never end"):
        with mr.Program():
            i = mr.Var(0)
            loop = mr.while_loop([i])
            with loop.frame():
                pass

    def generator():
        with mr.Program():
            yield mr.Var(1)

    left = generator()
    next(left)
    with pytest.raises(mr.ProgramError, match="has ended"):
        with mr.Program():
            with pytest.raises(mr.ProgramError, match="reverse order"):
                next(left)
    with pytest.raises(mr.ProgramError):
        mr.Var(1)  # nothing is open any more


def test_a_function_may_leave_nothing_open():
    kept = []

    def leaves_a_frame_open(v):
        i = mr.Var(0)
        loop = mr.while_loop([i])
        frame = loop.frame()
        frame.__enter__()
        kept.append(frame)
        return v

    with mr.Program():
        with pytest.raises(mr.ProgramError, match="left a frame"):
            mr.map_fn(leaves_a_frame_open, mr.constant([1.0]))
        mr.Var(1)
        with pytest.raises(KeyError):
            mr.map_fn(lambda v: {}["missing"], mr.constant([1.0]))
        mr.Var(1)


def test_threads_build_programs_of_their_own():
    texts, errors = [], []

    def build():
        try:
            for _ in range(20):
                texts.append(case_25().text)
        except Exception as error:  # seen below
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(set(texts)) == 1 and len(texts) == 80


def test_a_thread_that_ends_inside_a_program_leaves_nothing_behind():
    def leave():
        program = mr.Program()
        program.__enter__()
        i = mr.Var(0)
        mr.while_loop([i]).frame().__enter__()

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    with pytest.raises(mr.ProgramError):
        mr.Var(1)


def test_programs_are_printed_parsed_saved_and_loaded(tmp_path):
    program = case_25()
    assert str(program) == program.text and "2 blocks" in repr(program)
    assert program.inputs == {"x": "f32[?, 1] lod=1", "boot": "f32[?, 1]"} and program.outputs == {"y": "f32[?, 1] lod=1"}
    weights = program.parameters
    assert set(weights) == {"U", "W"} and weights["U"].read_only
    assert mr.parse(program.text, weights).text == program.text
    program.save(tmp_path / "listing.mr")
    again = mr.load(tmp_path / "listing.mr")
    feeds = {"x": [[[1.0], [2.0]], [], [[3.0]]], "boot": [[0.1], [0.2], [0.3]]}
    assert again.text == program.text and again.run(feeds)["y"].tolist() == program.run(feeds)["y"].tolist()
    with pytest.raises(mr.ParseError):
        mr.parse("millrace 1 nonsense")


def test_weights_are_copied():
    w = np.array([[2.0]], np.float32)
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [None, 1]) @ mr.parameter("w", w))
        mr.output("z", mr.layers.linear(mr.input("v", mr.f32, [None, 1]), w))
    w[:] = 100
    made = program.run(x=[[3.0]], v=[[4.0]])
    assert made["y"].tolist() == [[6.0]] and made["z"].tolist() == [[8.0]]


def test_generation():
    # A model that counts up from its last token, and ends at 5.
    def model(tokens, states, step):
        (steps,) = states
        next = mr.reshape(tokens, [-1, 1]) + 1
        hit = mr.equal(next, mr.constant(np.arange(8)[None, :]))
        return mr.where(hit, 0.0, -10.0), [steps + 1.0]

    for search in (lambda *a, **k: mr.beam_search(*a, width=2, **k), mr.greedy_search):
        program = mr.Program()
        with program:
            made = search(model, mr.input("start", mr.i64, [None]), [mr.input("state", mr.f32, [None, 1])], end_token=5, max_length=9)
            mr.output("tokens", made.tokens)
            mr.output("totals", made.totals)
        tokens = program.run(start=[0, 3], state=[[0.0], [0.0]])["tokens"]
        assert tokens[0][0].tolist() == [[1], [2], [3], [4], [5]] and tokens[1][0].tolist() == [[4], [5]]


# ---- What who knows PyTorch writes ----


def test_a_var_is_indexed_as_an_array_is():
    torch = pytest.importorskip("torch")
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    indices = [
        0, -1, (1, 2), (1, -1, 3), slice(1, None), slice(None, None, 2), (slice(None), slice(-2, None)), (slice(None, None, -1), 1),
        (..., 0), (..., slice(1, 3)), (0, ..., -1), None, (slice(None), None, 2), (slice(0, 0),), (slice(2, 100), slice(None, -1)),
        [2, 0, 0],
    ]  # fmt: skip
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 4, 5])
        for number, index in enumerate(indices):
            mr.output(str(number), x[index])
        mr.output("picked", x[mr.input("i", mr.i64, [None])])
        for wrong in ((0, 0, 0, 0), "text", (..., ...), (slice(0, 4, 0),), (mr.Var(0), 1)):
            with pytest.raises(mr.Error):
                x[wrong]
        numbers = [0, 1]
        for several in (numbers, np.array(numbers), np.array([1]), torch.tensor(numbers), torch.tensor([1]), mr.Tensor(numbers), mr.constant(numbers)):
            with pytest.raises(mr.ArgumentError, match=f"expected numbers, slices, '...' and None as indices, found a {type(several).__name__}: mr.gather picks by a Var"):
                x[:, several]
        mr.output("number of NumPy", x[np.int64(0), np.array(1), torch.tensor(2)])
    made = program.run(x=array, i=[1, 1])
    assert made["number of NumPy"].item() == array[0, 1, 2]
    for number, index in enumerate(indices):
        assert np.array_equal(made[str(number)].numpy(), array[index]), index
    assert np.array_equal(made["picked"].numpy(), array[[1, 1]])


def test_a_var_has_the_methods_of_an_array():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 3, 4])
        for name, var in {"sum": x.sum(), "mean": x.mean(-1), "max": x.max([0, 1]), "min": x.min(0, keepdims=True), "T": x.T, "a": x.reshape(-1, 4), "b": x.reshape([6, -1])}.items():
            mr.output(name, var)
    made = program.run(x=array)
    wanted = {"sum": array.sum(), "mean": array.mean(-1), "max": array.max((0, 1)), "min": array.min(0, keepdims=True), "T": array.T, "a": array.reshape(-1, 4), "b": array.reshape(6, -1)}
    for name, value in wanted.items():
        assert np.array_equal(made[name].numpy(), value), name


def test_functions_of_elements_and_axes_are_those_of_numpy():
    array = np.array([[1.5, -2.5, 3.0], [0.25, 0.0, -7.0]], np.float32)
    whole = np.array([[7, -7, 7], [-7, 4, 0]])
    cases = {
        "floor": (mr.floor, np.floor), "ceil": (mr.ceil, np.ceil), "round": (mr.round, np.round), "sign": (mr.sign, np.sign), "sin": (mr.sin, np.sin),
        "cos": (mr.cos, np.cos), "atan": (mr.atan, np.arctan), "softplus": (mr.softplus, lambda x: np.log1p(np.exp(x))), "softsign": (mr.softsign, lambda x: x / (1 + abs(x))),
        "leaky": (lambda x: mr.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)), "elu": (mr.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
        "clip": (lambda x: mr.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)), "clip below": (lambda x: mr.clip(x, min=0.5), lambda x: np.maximum(x, 0.5)),
        "stack": (lambda x: mr.stack([x, x + 1], 1), lambda x: np.stack([x, x + 1], 1)), "cumsum": (lambda x: mr.cumsum(x, 1), lambda x: x.cumsum(1)),
        "sum": (lambda x: mr.sum(x, axis=-1, keepdims=True), lambda x: x.sum(-1, keepdims=True)), "mean": (lambda x: mr.mean(x, 0), lambda x: x.mean(0)),
        "max": (lambda x: mr.max(x, axis=(0, 1)), lambda x: x.max()), "min": (lambda x: mr.min(x, 1), lambda x: x.min(1)), "prod": (mr.prod, np.prod),
        "argmin": (lambda x: mr.argmin(x, axis=0), lambda x: x.argmin(0)), "astype": (lambda x: x.astype(mr.i64), lambda x: x.astype(np.int64)),
        "mod": (lambda x: x % 2, lambda x: x % 2), "floordiv": (lambda x: x // 2, lambda x: x // 2), "rfloordiv": (lambda x: 2 // (x + 8), lambda x: 2 // (x + 8)),
    }  # fmt: skip
    program = mr.Program()
    with program:
        x, n = mr.input("x", mr.f32, [None, 3]), mr.input("n", mr.i64, [None, 3])
        for name, (ours, _) in cases.items():
            mr.output(name, ours(x))
        for divisor in (2, -2):
            mr.output(f"n % {divisor}", n % divisor)
            mr.output(f"n // {divisor}", n // divisor)
        mr.output("hot", mr.one_hot(n[1] + 7, 12))
        mr.output("gelu", mr.gelu(x, "tanh"))
    made = program.run(x=array, n=whole)
    for name, (_, theirs) in cases.items():
        np.testing.assert_allclose(made[name].numpy(), theirs(array), atol=1e-6, err_msg=name)
    for divisor in (2, -2):
        assert np.array_equal(made[f"n % {divisor}"].numpy(), whole % divisor) and np.array_equal(made[f"n // {divisor}"].numpy(), whole // divisor)
    assert np.array_equal(made["hot"].numpy(), np.eye(12, dtype=np.float32)[whole[1] + 7])


def test_inputs_and_outputs_stand_in_the_programs_order():
    program = mr.Program()
    with program:
        z, a = mr.input("z", mr.f32, []), mr.input("a", mr.f32, [])
        mr.output("y", z + a)
        mr.output("b", z - a)
    assert list(program.inputs) == ["z", "a"] and list(program.outputs) == ["y", "b"] and list(program.compile().inputs) == ["z", "a"]


def test_a_program_is_pickled_with_its_weights():
    program = mr.Program("words")
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=1)
        mr.output("y", mr.tanh(x @ mr.parameter("w", np.arange(6, dtype="f4").reshape(2, 3) / 10)))
    again = pickle.loads(pickle.dumps(program))
    assert (again.title, again.text) == ("words", program.text)
    rows = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]
    assert again.run(x=mr.ragged(rows, dtype=mr.f32))["y"].tolist() == program.run(x=mr.ragged(rows, dtype=mr.f32))["y"].tolist()


def test_arrays_pick_along_the_first_axis():
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2])
        mr.output("some", x[np.array([2, 0])])
        mr.output("one", x[np.array([1])])
        mr.output("number", x[np.int64(1), np.array(0)])
        with pytest.raises(mr.ArgumentError, match="found a ndarray: mr.gather picks by a Var"):
            x[:, np.array([0, 1])]
    result = program.run(x=[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert result["some"].tolist() == [[4, 5], [0, 1]]
    assert result["one"].tolist() == [[2, 3]]
    assert result["number"].tolist() == 2


ELEMENTWISE = "relu sigmoid tanh exp log sqrt abs erf floor ceil round sign sin cos reciprocal neg".split()
PAIRS = "add sub mul div pow minimum maximum less less_equal greater greater_equal not_equal".split()
METHODS = {
    **dict.fromkeys(ELEMENTWISE, ()), **dict.fromkeys(PAIRS, (2,)), "clip": (0.5, 1), "squeeze": (0,), "unsqueeze": (1,), "cumsum": (1,),
    "softmax": (0,), "log_softmax": (1,), "argmax": (1,), "argmin": (0,), "sum": (0,), "mean": ([0, 1],), "max": (1,), "min": (), "prod": (0,),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_var_is_the_function_of_its_name(name):
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [1 if name == "squeeze" else 2, 3])
        mr.output("method", getattr(x, name)(*METHODS[name]))
        mr.output("function", getattr(mr, name)(x, *METHODS[name]))
    made = program.run(x=np.random.default_rng(0).random((1 if name == "squeeze" else 2, 3), np.float32))
    assert made["method"].dtype == made["function"].dtype and np.array_equal(made["method"].numpy(), made["function"].numpy())
    assert (getattr(mr.Var, name).__doc__ or "").splitlines()[-1] in getattr(mr, name).__doc__


def test_methods_change_axes_as_those_of_pytorch_do():
    torch = pytest.importorskip("torch")
    given = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    changes = {
        "two": lambda x: x.transpose(0, 2),
        "negative": lambda x: x.transpose(-1, 1),
        "permute": lambda x: x.permute(2, 0, 1),
        "view": lambda x: x.view(-1, 4),
        "reshape": lambda x: x.reshape(4, 6),
        "unsqueeze": lambda x: x.unsqueeze(-1),
        "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
        "clamp": lambda x: x.clamp(2, 9),
        "chain": lambda x: x.relu().sum(0).softmax(-1).argmax(1),
        "matmul": lambda x: x.matmul(x.permute(0, 2, 1)),
        "T": lambda x: x[0].T,
    }
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [2, 3, 4])
        for name, change in changes.items():
            mr.output(name, change(x))
        mr.output("permutation", x.transpose([1, 2, 0]))
        mr.output("reverse", x.transpose())
        mr.output("reverse of a function", mr.transpose(x))
        mr.output("permutation of a function", mr.transpose(x, (1, 2, 0)))
        assert x.to(mr.f64).dtype == x.to("f64").dtype == x.to(torch.float64).dtype == x.astype(np.float64).dtype == mr.f64
        with pytest.raises(mr.ShapeError, match="expected axes of 'x' of f32.2, 3, 4., found 3"):
            x.transpose(0, 3)
        with pytest.raises(TypeError, match="axis: int"):
            x.argmax()  # the one of PyTorch is over all elements
    made = program.run(x=given)
    for name, change in changes.items():
        assert made[name].shape == tuple(change(given).shape), name
        np.testing.assert_allclose(made[name].numpy(), change(given).numpy(), atol=1e-6, err_msg=name)
    for end in "", " of a function":
        assert np.array_equal(made["permutation" + end].numpy(), given.numpy().transpose([1, 2, 0]))
        assert np.array_equal(made["reverse" + end].numpy(), given.numpy().T)


@pytest.mark.parametrize("dtype", [mr.f64, mr.f32, mr.bf16, mr.i64, mr.i32])
def test_a_number_takes_the_dtype_of_the_var_beside_it(dtype):
    floating = dtype in (mr.f64, mr.f32, mr.bf16)
    numbers = [0, True, mr.Var] + ([0.1, np.float64(0.1)] if floating else [])
    with mr.Program():
        x, row = mr.input("x", dtype, [3]), mr.input("rows", dtype, [None], lod=1)
        for number in numbers:
            if number is mr.Var:
                number = mr.Var(2)
            chosen = mr.where(x > 0, x, number), mr.where(x > 0, number, x), mr.clip(x, number, number)
            stacked = mr.stack([mr.max(x), number]), mr.stack([number, mr.max(x)])
            assert {made.dtype for made in chosen + stacked} == {dtype}, number
            for function in (mr.add, mr.sub, mr.mul, mr.div, mr.minimum, mr.maximum, mr.pow):
                assert function(x, number).dtype == function(number, x).dtype == dtype, number
            assert mr.sequence_pad(row, number)[0].dtype == dtype
            assert mr.TensorArray(unstack_from=x).read(-1, number).dtype == dtype
        if not floating:
            with pytest.raises(mr.ProgramError, match="use cast"):
                mr.where(x > 0, x, 0.5)


def test_numbers_alone_agree_on_one_dtype():
    assert built(lambda: mr.where(True, 1, 0.5)) == 1.0 and built(lambda: mr.where(False, True, 7)) == 7
    assert built(lambda: mr.stack([1, 0.5])) == [1, 0.5]
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f64, [2])
        mr.output("y", mr.where(x > 0, x, 0.1))
    assert program.run(x=[-1, 2])["y"].tolist() == [0.1, 2]  # all bits of f64


def test_a_number_beside_a_weight_or_a_constant_takes_its_dtype():
    for make in (lambda value: mr.parameter("w", value), mr.constant):
        for dtype in (np.float32, np.float64):
            def all_of_them():
                w = make(np.array([1, 2], dtype))
                made = [w * 10, 1 - w, w**2, w / 4, 0.5 + w, mr.maximum(w, 2), w.clip(0, 1), w + [1, 2]]
                assert {one.dtype for one in made} == {mr.Tensor(np.zeros(1, dtype)).dtype}
                made += [mr.cast(one, dtype) for one in (w > 1, w == 2, 1 <= w)]
                return mr.stack(made)

            expected = [[10, 20], [0, -1], [1, 4], [0.25, 0.5], [1.5, 2.5], [2, 2], [1, 1], [2, 4], [0, 1], [0, 1], [1, 1]]
            assert built(all_of_them) == expected
    assert built(lambda: mr.constant(2.0) * 3) == 6 and built(lambda: 3 - mr.constant(2.0)) == 1 and built(lambda: mr.constant(2) * 3.5) == 7
    assert built(lambda: mr.Var(0.0) + 1) == 1 and built(lambda: mr.parameter("s", np.float32(3)) * 2) == 6
    assert built(lambda: mr.constant(np.array(0.1)) + 0.2) == 0.1 + 0.2  # f64: all bits
    with mr.Program():
        x = mr.input("x", mr.i8, [2])
        with pytest.raises(mr.OverflowError, match="300"):
            x + 300
        for refused in (lambda: x + None, lambda: x < "a", lambda: None * x):
            with pytest.raises(TypeError, match="unsupported operand|not supported"):
                refused()
        assert (x == None) is False and (x != None) is True  # noqa: E711


def test_whole_division_of_infinities_is_that_of_numpy():
    values = np.array([np.inf, -np.inf, 7, -7, 0.5], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(built(lambda: mr.constant(values) // 2), values // 2)


def test_operators_outside_of_a_program_say_so_alone(capfd):
    with mr.Program():
        x = mr.input("x", mr.f32, [2])
    for operation in (lambda: x + 1, lambda: 1 - x, lambda: mr.maximum(x, 1)):
        with pytest.raises((mr.ProgramError, TypeError)):
            operation()
    with pytest.raises(mr.ProgramError, match="an open program"):
        x + 1
    assert capfd.readouterr().err == ""


def test_levels_of_inputs_that_no_run_could_feed_are_refused():
    with mr.Program():
        for lod, shape in ((-1, [None, 2]), (65, [None, 2]), (1, [])):
            with pytest.raises(mr.ArgumentError, match="input: expected"):
                mr.input("x", mr.f32, shape, lod=lod)
            with pytest.raises(mr.ArgumentError, match="input: expected"):
                mr.TensorArray.input("a", mr.f32, shape, lod=lod)


def test_attributes_that_an_op_does_not_have_are_refused():
    with mr.Program():
        x = mr.input("x", mr.f32, [2, 3])
        with pytest.raises(mr.ArgumentError, match="op softmax: expected the attributes axis, found 'dim'"):
            mr.call("softmax", x, dim=0)
        with pytest.raises(mr.ArgumentError, match="found 'keepdim': did you mean 'keepdims'"):
            mr.call("reduce", x, kind="sum", axes=[0], keepdim=True)
        with pytest.raises(mr.ArgumentError, match=r"op relu: expected the attributes \(none\), found 'axis'"):
            mr.call("relu", x, axis=0)
        assert mr.call("softmax", x, axis=0).shape == (2, 3)


def test_numbers_out_of_range_as_indices_are_refused_when_the_program_is_built():
    with mr.Program():
        x = mr.input("x", mr.f32, [3, None])
        for index in (3, -4, (Ellipsis, 5, 0)):
            with pytest.raises(mr.IndexError, match=r"expected an index in \[-3, 3\) of axis 0 of 'x'"):
                x[index]
        assert x[-3].shape == x[2].shape == (None,)


def test_a_value_of_another_type_is_refused_by_the_name_of_its_function_and_argument():
    with mr.Program("types"):
        x = mr.input("x", mr.f32, [None, 2], lod=1)
        weights = mr.layers.RnnWeights(np.zeros((2, 2), "f4"), np.zeros((2, 2), "f4"), np.zeros(2, "f4"))
        for call, words in (
            (lambda: mr.input("y", mr.f32, ["a"]), "input: shape: expected integers or None, found 'a'"),
            (lambda: x.reshape("a", 2), r"reshape: shape: expected integers, found \('a', 2\)"),
            (lambda: mr.Tensor([1.0]).reshape(1.5), "reshape: shape: expected integers, found"),
            (lambda: x.permute("a", 0), "permute: axes: expected integers, found"),
            (lambda: mr.sum(x, "a"), "axis: expected an integer, or a list of integers, found 'a'"),
            (lambda: mr.call("relu", x, axis=2**70), "call: attribute 'axis': expected integers that fit i64, found 1180591620717411303424"),
            (lambda: mr.Var(2**70), "expected an integer that fits i64"),
            (lambda: mr.layers.rnn(x, weights, activation=(1,)), r"layer: activation: expected a name, \(name, alpha\) or \(name, alpha, beta\), found 1"),
            (lambda: mr.layers.rnn(x, weights, activation=("elu", "a")), "layer: activation: expected a number as alpha, found 'a'"),
            (lambda: mr.layers.rnn(x, [1]), "layer: weights: expected the weights of a layer, or a list of those of several layers, found 1"),
            (lambda: mr.layers.unroll(lambda x, h: x, x, [2**70]), "unroll: states: expected a width that fits i64"),
        ):
            with pytest.raises(TypeError, match=words):
                call()
    program = mr.Program("sum")
    with program:
        mr.output("loss", mr.mean(mr.input("x", mr.f32, [None]) * mr.parameter("w", 1.0)))
    for call, words in (
        (lambda: mr.Trainer(program, mr.SGD(), learning_rate="fast"), "trainer: learning_rate: expected a number or a Schedule, found 'fast'"),
        (lambda: mr.Trainer(program, mr.SGD()).step({1: 2}), "trainer: expected the name of an input, found 1"),
        (lambda: mr.LiveModel(program, threads="two"), "live model: threads: expected an integer, found 'two'"),
        (lambda: mr.LiveModel(program, max_rows=-1), "live model: max_rows: expected an integer from 0 on, found -1"),
        (lambda: mr.LiveModel(program, states={"h": 1}), "live model: states: expected names of outputs by names of inputs, found {'h': 1}"),
        (lambda: mr.LiveModel(program, state_key="text"), "live model: state_key: expected bytes, found a str"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_an_empty_name_and_a_name_with_nul_are_refused(name):
    with mr.Program("names"):
        x = mr.input("x", mr.f32, [2])
        with pytest.raises(mr.ArgumentError, match="input: expected a name that is not empty and has no NUL"):
            mr.input(name, mr.f32, [2])
        with pytest.raises(mr.ArgumentError, match="output: expected a name that is not empty and has no NUL"):
            mr.output(name, x)
