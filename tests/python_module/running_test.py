# SPDX-License-Identifier: Apache-2.0
"""Runs: what is fed, what comes back, threads, asyncio, Ctrl-C, deadlines, forks, and the end of the interpreter."""

import asyncio
import copy
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import millrace as mr
from programs import case_25, counting

LONG = 10**12  # iterations that nobody waits for


def doubling(lod=0):
    program = mr.Program("doubling")
    with program:
        mr.output("y", mr.input("x", mr.f32, [None, 2], lod=lod) * 2)
    return program


def wait_for_nothing(seconds=30.0):
    end = time.monotonic() + seconds
    while mr.live_runs() and time.monotonic() < end:
        time.sleep(0.005)
    assert mr.live_runs() == 0


def test_results_are_a_mapping():
    result = doubling().run(x=[[1, 2]])
    assert list(result) == ["y"] and "y" in result and "z" not in result and len(result) == 1
    assert result["y"].tolist() == [[2, 4]] and [v.tolist() for v in result.values()] == [[[2, 4]]] and dict(result.items()).keys() == {"y"}
    with pytest.raises(IndexError, match="expected one of the outputs y, found 'z'"):
        result["z"]
    assert "y: f32[1, 2]" in repr(result)


def test_a_program_runs_as_it_is_now_however_often_it_ran_before():
    weight = np.array([[1.0], [0.1]], np.float32)
    program = mr.Program("growing")
    with program:
        x = mr.input("x", mr.f32, [None, 2])
        mr.output("y", mr.matmul(x, mr.parameter("W", weight)))
    rows = np.ones((3, 2), np.float32)
    twin = copy.copy(program)
    for _ in range(2):
        assert program.run(x=rows).keys() == ["y"] and mr.run(program, x=rows)["y"].tolist() == twin.run(x=rows)["y"].tolist()
        assert asyncio.run(program.run_async(x=rows))["y"].tolist() == twin.run(x=rows)["y"].tolist()
    with program:
        mr.output("z", program.var("y") * 2)
    assert program.run(x=rows)["z"].tolist() == (2 * program.run(x=rows)["y"].numpy()).tolist()
    before = program.run(x=rows)["y"].numpy()
    assert mr.narrow_weights(program, mr.bf16) == 1
    assert program.run(x=rows)["y"].tolist() == program.compile()(x=rows)["y"].tolist() != before.tolist()
    assert twin.run(x=rows).keys() == ["y"] and twin.run(x=rows)["y"].tolist() == before.tolist()


def test_threads_run_one_program_at_a_time_and_together():
    program, found = doubling(), []
    threads = [threading.Thread(target=lambda n=n: found.append(program.run(x=[[n, 0]])["y"].tolist()[0][0])) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == [2.0 * n for n in range(8)]


def test_arrays_of_integers_without_a_dtype_are_widened_to_that_of_their_input():
    program = mr.Program("widened")
    with program:
        mr.output("a", mr.identity(mr.input("x", mr.i32, [None])))
        mr.output("b", mr.identity(mr.input("y", mr.i64, [None])))
    compiled = program.compile()
    for narrow, wide in (("i2", "u4"), ("u2", "u8"), ("i2", "i2"), ("u2", "u2"), ("i4", "i8")):
        x, y = np.array([np.iinfo(narrow).min, 3, np.iinfo(narrow).max], narrow), np.array([0, 2**15 - 1, 7], wide)
        result = compiled(x=x[::-1], y=y)
        assert result["a"].dtype == mr.i32 and result["a"].tolist() == x[::-1].tolist()
        assert result["b"].dtype == mr.i64 and result["b"].tolist() == y.tolist()
    assert compiled(x=np.zeros(0, "u2"), y=np.array([2**32 - 1], "u4"))["b"].tolist() == [2**32 - 1]
    with pytest.raises(OverflowError, match="expected integers below 9223372036854775808, found 9223372036854775808"):
        compiled(x=[1], y=np.array([2**63], "u8"))
    for fed in (np.zeros(1, "u4"), np.zeros(1, "i8"), np.zeros(1, "f4")):
        with pytest.raises(mr.DTypeError):
            compiled(x=fed, y=[1])


def test_integers_of_dlpack_without_a_dtype_are_widened():
    torch = pytest.importorskip("torch", minversion="2.3")  # the first with unsigned integers of 16 bits
    program = mr.Program("widened")
    with program:
        mr.output("a", mr.identity(mr.input("x", mr.i32, [None, None])))
        mr.output("b", mr.identity(mr.input("y", mr.i64, [None])))
    compiled = program.compile()
    turned = torch.tensor([[1, -2, 3], [4, 5, -(2**15)]], dtype=torch.int16).T[1:]
    result = compiled(x=turned, y=torch.tensor([2**16 - 1, 0], dtype=torch.uint16))
    assert result["a"].dtype == mr.i32 and result["a"].tolist() == [[-2, 5], [3, -(2**15)]]
    assert result["b"].dtype == mr.i64 and result["b"].tolist() == [2**16 - 1, 0]
    for dtype in (torch.uint32, torch.uint64):
        assert compiled(x=turned, y=torch.tensor([2**32 - 1], dtype=dtype))["b"].tolist() == [2**32 - 1]
        with pytest.raises(mr.DTypeError):  # no i32 holds them
            compiled(x=torch.zeros(1, 1, dtype=dtype), y=[0])
    with pytest.raises(OverflowError, match="below 9223372036854775808"):
        compiled(x=turned, y=torch.tensor([2**64 - 1], dtype=torch.uint64))
    assert compiled(x=torch.zeros(0, 2, dtype=torch.int16), y=[0])["a"].shape == (0, 2)
    assert mr.Tensor(torch.tensor(7, dtype=torch.int16), dtype=mr.i64).item() == 7
    with pytest.raises(mr.DTypeError):
        mr.Tensor(torch.tensor([7], dtype=torch.int16))


def test_integers_without_a_dtype_are_widened_in_lists_in_sequences_and_as_lengths():
    program = mr.Program("widened")
    with program:
        mr.output("a", mr.identity(mr.input("x", mr.i32, [None], lod=1)))
        mr.output("b", mr.identity(mr.input("y", mr.i64, [None, 2], lod=1)))
        mr.output("c", mr.identity(mr.input("z", mr.f32, [None])))
    compiled = program.compile()
    one, two = np.array([-(2**15), 3], "i2"), np.array([[2**32 - 1, 0]], "u4")
    result = compiled(x=[one, [], one[:1]], y=(np.concatenate([two, two]), np.array([2], "u4")), z=[np.uint32(3), np.int16(-1), 0.5])
    assert result["a"].dtype == mr.i32 and result["a"].lengths == [2, 0, 1] and result["a"].rows.tolist() == [-(2**15), 3, -(2**15)]
    assert result["b"].dtype == mr.i64 and result["b"].lengths == [2] and result["b"].rows.tolist() == [[2**32 - 1, 0]] * 2
    assert result["c"].tolist() == [3, -1, 0.5]
    result = compiled(x=[[np.uint16(7)], [np.uint64(8), 9]], y=[two.astype("u8"), [np.array([1, 2], "u2"), [3, 4]]], z=[])
    assert result["a"].rows.tolist() == [7, 8, 9] and result["b"].rows.tolist() == [[2**32 - 1, 0], [1, 2], [3, 4]]
    for lengths in (np.array([1, 0, 1], "u8"), [np.uint16(1), np.int16(0), 1], [np.array([1, 0, 1], "i2")]):
        assert mr.LoDTensor(np.zeros((2, 2)), lengths).lengths == [1, 0, 1]
    y = two[:0]
    for wide in ("i2", "i4"):  # either is a sequence, or lengths
        with pytest.raises(mr.ArgumentError, match="which may be two sequences"):
            compiled(x=(one, np.array([1, 1], wide)), y=[y], z=[])
    assert compiled(x=(one, np.array([1, 1], "u4")), y=[y], z=[])["a"].lengths == [1, 1]  # no i32 holds a u4
    with pytest.raises(OverflowError, match="expected integers that fit i32, found 4294967295"):
        compiled(x=[[np.uint32(2**32 - 1)]], y=[y], z=[])
    for fed in ([np.zeros(1, "u4")], (np.zeros(1, "u4"), [1])):
        with pytest.raises(mr.DTypeError):
            compiled(x=fed, y=[y], z=[])
    for mixed in ([one], [np.zeros(1, "i4"), one], [one, np.zeros(1, "i4")]):
        with pytest.raises(mr.DTypeError):
            mr.ragged(mixed)
    assert mr.ragged([one], dtype=mr.i64).rows.tolist() == one.tolist()


def test_inputs_are_checked_and_the_messages_are_those_of_the_library():
    compiled = doubling().compile()
    for feeds, error, words in [
        ({}, mr.ArgumentError, "input 'x': expected f32[?, 2], found nothing"),
        ({"x": np.zeros((1, 3), np.float32)}, mr.ShapeError, "found f32[1, 3]"),
        ({"x": np.zeros((1, 2))}, mr.DTypeError, "found f64[1, 2]"),
        ({"x": mr.ragged([np.zeros((1, 2), np.float32)])}, mr.LoDError, "found f32[1, 2] lod=1"),
        ({"x": "text"}, mr.ArgumentError, "found a str"),
        ({"x": [[1, 2], [3]]}, mr.ShapeError, "(input 'x')"),
        ({"x": [[1, 2]], "z": 1}, mr.ArgumentError, "expected the inputs x of program 'doubling', found 'z'"),
    ]:
        with pytest.raises(error) as raised:
            compiled(**feeds)
        assert words in str(raised.value)
        with pytest.raises(error):
            compiled(feeds)
    with pytest.raises(mr.ArgumentError, match="twice"):
        compiled({"x": [[1, 2]]}, x=[[1, 2]])
    with pytest.raises(mr.ArgumentError, match="positional"):
        compiled([[1, 2]])
    for wrong in ({"threads": 0}, {"backend": "fast"}, {"deadline": 0}):
        with pytest.raises(mr.ArgumentError):
            doubling().compile(**wrong)


def test_lists_take_the_dtype_and_the_levels_of_the_input():
    assert doubling().run(x=[[1, 2], [3, 4]])["y"].tolist() == [[2, 4], [6, 8]]
    y = doubling(lod=1).run(x=[[[1, 2]], [], [[3, 4], [5, 6]]])["y"]
    assert y.lengths == [1, 0, 2] and y.tolist() == [[[2, 4]], [], [[6, 8], [10, 12]]]
    assert doubling(lod=1).run(x=[[], []])["y"].shape == (0, 2)
    assert doubling(lod=2).run(x=[[[[1, 2]]], []])["y"].lod == [[1, 0], [1]]


def test_outputs_share_no_memory_with_fed_arrays():
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [None]))
    compiled = program.compile()
    x = np.arange(4096, dtype=np.float32)
    y = compiled(x=x)["y"].numpy()
    assert not np.shares_memory(x, y) and np.array_equal(x, y)
    own = mr.Tensor(x).copy()  # elements that nobody else fills
    assert np.shares_memory(compiled(x=own)["y"].numpy(), own.numpy())
    torch = pytest.importorskip("torch")
    t = torch.arange(4096, dtype=torch.float32)
    y = compiled(x=t)["y"].numpy()
    t.zero_()
    assert np.array_equal(x, y)


@pytest.mark.parametrize("what", ["identity", "reshape", "slice", "split", "drop_lod", "lod_reset", "loop", "array", "async"])
def test_outputs_keep_their_values_when_a_fed_array_is_filled_again(what):
    ragged = what in ("drop_lod", "lod_reset")
    program = mr.Program(what)
    with program:
        x = mr.TensorArray.input("x", mr.f32, [6, 4]) if what == "array" else mr.input("x", mr.f32, [None, 4], lod=int(ragged))
        made = {
            "identity": lambda: mr.identity(x),
            "reshape": lambda: x.reshape(-1),
            "slice": lambda: x[1:3],
            "split": lambda: mr.split(x, 0, [2, 4])[1],
            "drop_lod": lambda: mr.drop_lod(x),
            "lod_reset": lambda: mr.lod_reset(x, [3, 3]),
            "loop": lambda: mr.while_loop(lambda i, v: i < 0, lambda i, v: (i + 1, v * 2), [0, x])[1],
            "array": lambda: x.read(0),
            "async": lambda: x,
        }[what]()
        mr.output("y", made)
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    fed = [array] if what == "array" else mr.LoDTensor(array, [2, 4]) if ragged else array
    result = asyncio.run(program.run_async(x=fed)) if what == "async" else program.run(x=fed)
    y = result["y"].numpy()
    before = y.copy()
    assert before.size > 0
    array[:] = 7
    assert np.array_equal(y, before) and np.array_equal(result["y"].numpy(), before)


def test_a_step_program_with_a_buffer_that_is_filled_again():
    program = mr.Program("delay line")
    with program:
        x, h = mr.input("x", mr.f32, [2]), mr.input("h", mr.f32, [2])
        mr.output("y", x + h)
        mr.output("h", x)
    compiled, buffer, h, made = program.compile(), np.zeros(2, np.float32), np.zeros(2, np.float32), []
    for i in range(4):
        buffer[:] = i
        result = compiled(x=buffer, h=h)
        made.append(result["y"].tolist())
        h = result["h"]
    assert made == [[0, 0], [1, 1], [3, 3], [5, 5]]


def test_slots_of_an_array_are_checked_against_their_type():
    program = mr.Program()
    with program:
        a = mr.TensorArray.input("a", mr.f32, [2])
        mr.output("y", a.read(0) + np.zeros(2, np.float32))
    assert program.run(a=[[1, 2]])["y"].tolist() == [1, 2]
    for fed, error in (([[5]], mr.ShapeError), ([5], mr.ShapeError), ([[1, 2], [1, 2, 3]], mr.ShapeError), ([np.ones(2)], mr.DTypeError), ([None], mr.ArgumentError)):
        with pytest.raises(error, match=r"input 'a\[\d\]': expected f32\[2\]"):
            program.run(a=fed)


def test_packed_sequences_and_rows_with_their_lengths():
    torch = pytest.importorskip("torch")
    program, ids = mr.Program("rows"), mr.Program("ids")
    with program:
        mr.output("y", mr.input("x", mr.f32, [None, 3], lod=1) * 1)
    with ids:
        mr.output("y", mr.input("x", mr.i64, [None], lod=1) + 0)
    sequences = [torch.randn(count, 3) for count in (2, 5, 1)]
    expected = program.run(x=sequences)["y"]
    for packed in (torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False), torch.nn.utils.rnn.pack_sequence([sequences[i] for i in (1, 0, 2)])):
        made = program.run(x=packed)["y"]
        order = [0, 1, 2] if packed.unsorted_indices is not None else [1, 0, 2]
        assert made.lengths == [(2, 5, 1)[i] for i in order]
        assert [made[i].tolist() for i in range(3)] == [expected[i].tolist() for i in order]
        assert mr.ragged(packed).tolist() == made.tolist()
    rows, lengths = torch.cat(sequences), [2, 5, 1]
    for pair in ((rows, lengths), (rows, torch.tensor(lengths)), (rows.numpy(), np.array(lengths)), mr.torch.Ragged(rows, lengths)):
        assert program.run(x=pair)["y"].tolist() == expected.tolist()
    assert program.run(x=(sequences[0], sequences[1]))["y"].lengths == [2, 5]  # two sequences
    assert program.run(x=(sequences[0], []))["y"].lengths == [2, 0]
    with pytest.raises(mr.LoDError):
        program.run(x=(rows, [2, 5]))
    a, b = torch.tensor([1, 2, 3]), torch.tensor([2, 1])
    with pytest.raises(mr.ArgumentError, match="may be two sequences, or rows and lengths"):
        ids.run(x=(a, b))
    assert ids.run(x=[a, b])["y"].lengths == [3, 2] and ids.run(x=mr.LoDTensor(a, [2, 1]))["y"].lengths == [2, 1]
    assert ids.run(x=torch.nn.utils.rnn.pack_sequence([b, a], enforce_sorted=False))["y"].tolist() == [[2, 1], [1, 2, 3]]
    dense = mr.Program()
    with dense:
        mr.output("y", mr.input("x", mr.f32, [None, 3]))
    with pytest.raises(mr.ArgumentError, match="found a PackedSequence"):
        dense.run(x=torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))


def test_a_result_outlives_what_made_it():
    program = doubling(lod=1)
    y = program.compile(threads=2)(x=[np.ones((1000, 2), np.float32)])["y"][0].numpy()
    del program
    gc.collect()
    assert y.shape == (1000, 2) and (y == 2).all()


def test_results_do_not_depend_on_threads_and_backends():
    rng = np.random.default_rng(1)
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 32], lod=1)
        weights = mr.layers.LstmWeights(rng.standard_normal((32, 256)).astype(np.float32) / 8, rng.standard_normal((64, 256)).astype(np.float32) / 8)
        mr.output("y", mr.layers.lstm(x, weights).y)
    x = [rng.standard_normal((n, 32)).astype(np.float32) for n in (5, 0, 40, 17)]
    made = [program.compile(threads=threads, backend=backend)(x=x)["y"].numpy().tobytes() for threads in (1, 2, 3) for backend in ("auto", "interpreted")]
    assert len(set(made)) == 1


def test_a_loop_that_filters_is_one_op_unless_a_backend_is_named():
    rng = np.random.default_rng(2)
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2, 4])
        w = mr.parameter("w", rng.standard_normal(8).astype(np.float32))

        def cell(row, states):
            weighted = mr.concat([states[0], row], 1) * w
            return mr.slice(weighted, 1, 0, 4) + mr.slice(weighted, 1, 4, 8), [row]

        y, (last,) = mr.layers.unroll(cell, x, [4])
        mr.output("y", y)
        mr.output("last", last)
    x = rng.standard_normal((5, 2, 4)).astype(np.float32)
    made = {backend: program.compile(backend=backend)(x=x) for backend in ("auto", "interpreted", "fused")}
    assert [made[backend].iterations for backend in made] == [0, 5, 5]
    assert [made[backend].fused_loops for backend in made] == [0, 0, 1]
    assert len({made[backend]["y"].numpy().tobytes() + made[backend]["last"].numpy().tobytes() for backend in made}) == 1


def test_many_threads_run_one_program():
    compiled, errors = case_25().compile(), []
    feeds = {"x": mr.LoDTensor(np.arange(1, 7, dtype=np.float32).reshape(6, 1), [2, 1, 3, 0]), "boot": np.array([[0.1], [0.2], [0.3], [0.4]], np.float32)}
    wanted = compiled(feeds)["y"].tolist()

    def run():
        for _ in range(50):
            if compiled(feeds)["y"].tolist() != wanted:
                errors.append("differs")

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_other_threads_of_python_go_on_while_a_program_runs():
    compiled, counted, stop = counting().compile(backend="interpreted"), [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    compiled(limit=100_000)
    went_on = counted[0] - before
    stop.set()
    thread.join()
    assert went_on > 5


def test_a_deadline_ends_a_run():
    with pytest.raises(TimeoutError) as raised:
        counting().compile(deadline=0.05, backend="interpreted")(limit=LONG)
    assert isinstance(raised.value, mr.DeadlineError)
    wait_for_nothing()


def test_ctrl_c_stops_a_run():
    compiled = counting().compile(backend="interpreted")
    for delay in (0.0, 0.01, 0.1):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            compiled(limit=LONG)
        timer.join()
        assert time.monotonic() - begin < 20
        wait_for_nothing()
    assert compiled(limit=3)["i"].item() == 3


def test_a_signal_that_raises_nothing_lets_a_run_go_on():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert counting().compile(backend="interpreted")(limit=100_000)["i"].item() == 100_000
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [1]


# ---- asyncio ----


def test_run_async_gives_the_same_and_lets_the_loop_go_on():
    async def main():
        compiled = counting().compile()
        many = await asyncio.gather(*(compiled.run_async(limit=n) for n in range(50)))
        assert [r["i"].item() for r in many] == list(range(50))
        assert (await doubling().run_async({"x": [[1, 2]]}))["y"].tolist() == [[2, 4]]
        with pytest.raises(mr.ArgumentError, match="found nothing"):
            await compiled.run_async()
        long = asyncio.ensure_future(counting().compile(backend="interpreted").run_async(limit=LONG))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long

    asyncio.run(main())
    wait_for_nothing()


def test_errors_of_a_run_are_those_of_the_awaiting_task():
    program = mr.Program()
    with program:
        mr.output("y", mr.gather(mr.input("x", mr.f32, [None]), mr.cond(mr.Var(True), lambda: mr.Var(5), lambda: mr.Var(0))))

    async def main():
        with pytest.raises(IndexError) as raised:
            await program.run_async(x=[1.0])
        assert isinstance(raised.value, mr.IndexError)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(counting().compile(backend="interpreted").run_async(limit=LONG), 0.02)
        with pytest.raises(mr.DeadlineError):
            await counting().compile(backend="interpreted", deadline=0.02).run_async(limit=LONG)

    asyncio.run(main())
    wait_for_nothing()


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_runs_cancelled_at_random(seed):
    choose = random.Random(seed)
    compiled = counting().compile(backend="interpreted")
    outcomes = {"ended": 0, "cancelled": 0}
    array = np.full((), 300, np.int64)
    references = sys.getrefcount(array)

    async def one():
        limit = array if choose.random() < 0.5 else LONG
        task = asyncio.ensure_future(compiled.run_async(limit=limit))
        if limit is LONG or choose.random() < 0.5:
            await asyncio.sleep(choose.choice([0, 0, 0.0005, 0.003]))
            task.cancel()
        try:
            assert (await task)["i"].item() == 300
            outcomes["ended"] += 1
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1

    async def main():
        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(35)))

    asyncio.run(main())
    wait_for_nothing()
    gc.collect()
    assert sum(outcomes.values()) == 350 and outcomes["ended"] > 20 and outcomes["cancelled"] > 100, (seed, outcomes)
    assert sys.getrefcount(array) == references


def test_a_loop_that_is_closed_with_a_run_under_way_is_no_harm():
    loop = asyncio.new_event_loop()
    task = loop.create_task(counting().compile(backend="interpreted").run_async(limit=20_000))
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    wait_for_nothing()


def test_runs_leak_nothing():
    compiled, compiled_loop = doubling().compile(), case_25().compile()
    x = np.zeros((512, 2), np.float32)
    feeds = {"x": mr.LoDTensor(np.zeros((300, 1), np.float32), [100, 200]), "boot": np.zeros((2, 1), np.float32)}

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def some(times):
        for _ in range(times):
            compiled(x=x)["y"].numpy()
            compiled_loop(feeds)["y"].tolist()
            with pytest.raises(mr.DTypeError):
                compiled(x=np.zeros((512, 2)))

    some(300)
    before, references = resident(), sys.getrefcount(x)
    some(1500)
    assert resident() - before < 8 << 20
    assert sys.getrefcount(x) == references


# ---- Processes ----


def python(script, leak_warnings=True, **options):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    if leak_warnings:
        env["MILLRACE_LEAK_WARNINGS"] = "1"
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=env, capture_output=True, text=True, timeout=120, **options)


def test_a_child_process_compiles_again():
    program = counting()
    compiled = program.compile()
    assert compiled(limit=2)["i"].item() == 2 and program.run(limit=3)["i"].item() == 3
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                compiled(limit=2)
            except mr.UnsupportedError as error:
                code = 0 if "forked" in str(error) and program.run(limit=4)["i"].item() == 4 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compiled(limit=2)["i"].item() == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_process_runs_and_ends_where_its_parent_forked_beside_a_run(threads):
    made = python(
        f"""
        import os, sys, threading, time
        import numpy as np, millrace as mr
        program = mr.Program("loop")
        with program:
            x, u = mr.input("x", mr.f32, [None, 8], lod=1), mr.parameter("u", np.eye(8, dtype="f4") / 2)
            with mr.DynamicRNN() as rnn:
                x_t, h = rnn.step_input(x), rnn.memory(shape=[8])
                state = mr.tanh(h @ u + x_t)
                rnn.update_memory(h, state)
                rnn.output(state)
            mr.output("y", rnn())
        few, many = (mr.LoDTensor(np.zeros((rows, 8), "f4"), [rows]) for rows in (20, 200_000))
        compiled = program.compile(threads={threads})
        compiled(x=few)
        threading.Thread(target=lambda: compiled(x=many)).start()
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            program.compile(threads=2)(x=few)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert made.returncode == 0 and made.stdout == "0\n", made.stdout + made.stderr


def test_threads_are_bounded_as_those_of_the_command():
    program = doubling(lod=1)
    with program:
        mr.output("loss", mr.mean(mr.parameter("w", [[1.0]])))
    for threads in (0, -1, 1025, 10**6):
        for call in (
            lambda: program.compile(threads=threads),
            lambda: mr.Trainer(program, mr.SGD(), threads=threads),
            lambda: mr.LiveModel(doubling(lod=1), threads=threads),
        ):
            with pytest.raises(mr.ArgumentError, match=f"expected 1 to 1024 threads, found {threads}"):
                call()


def test_the_interpreter_may_end_with_runs_under_way():
    made = python(
        """
        import asyncio, millrace as mr
        from programs import counting
        async def main():
            tasks = [asyncio.ensure_future(counting().compile(backend="interpreted").run_async(limit=10**12)) for _ in range(8)]
            await asyncio.sleep(0.05)
            print(mr.live_runs())
        asyncio.run(main())
        """
    )
    assert made.returncode == 0 and made.stdout == "8\n", made.stderr
    assert "leak" not in made.stderr, made.stderr


def test_a_subinterpreter_is_refused():
    pytest.importorskip("_xxsubinterpreters")
    made = python(  # a process of its own: PyTorch's checks of the GIL do not know subinterpreters
        """
        import sys, _xxsubinterpreters as interpreters
        import millrace as mr
        other = interpreters.create()
        try:
            interpreters.run_string(other, f"import sys; sys.path[:] = {sys.path!r}; import millrace")
        except Exception as error:
            print(error)
        print(mr.Tensor([1.0]).tolist())
        """
    )
    assert made.returncode == 0 and "found a subinterpreter" in made.stdout and made.stdout.endswith("[1.0]\n"), made.stdout + made.stderr


def test_import_brings_nothing_heavy_and_is_quick():
    made = python("import sys; import millrace; print([m for m in ('numpy', 'torch', 'asyncio') if m in sys.modules])")
    assert made.stdout == "[]\n", made.stderr
    # The processor's time, of which a busy machine takes nothing away.
    best = min(float(python("import time; t = time.process_time(); import millrace; print(time.process_time() - t)").stdout) for _ in range(7))
    assert best < 0.050, best


@pytest.mark.parametrize("again", [False, True])
def test_a_child_process_ends_beside_what_its_parent_compiled(again):
    script = f"""
import os, sys
import millrace as mr
program = mr.Program()
with program:
    mr.output("y", mr.input("x", mr.f32, [None, 2]) * 2)
compiled = program.compile(threads=2)
compiled(x=[[1, 2]])
if os.fork() == 0:
    if {again}:
        assert program.compile(threads=2)(x=[[1, 2]])["y"].tolist() == [[2, 4]]
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_misspelled_input_is_named_with_the_inputs_that_there_are():
    program = mr.Program("two")
    with program:
        rows, length = mr.input("rows", mr.f32, [None]), mr.input("length", mr.f32, [])
        mr.output("product", rows * length)
        mr.output("loss", mr.sum(rows * length * mr.parameter("weight", 1.0)))
    words = "expected the inputs rows, length of program 'two', found 'lenght': did you mean 'length'"
    fed = {"rows": [1.0], "lenght": 2.0}
    for call in (lambda: program.run(**fed), lambda: program.run(fed), lambda: program.compile()(**fed), lambda: asyncio.run(program.run_async(**fed))):
        with pytest.raises(mr.ArgumentError, match=words):
            call()
    with pytest.raises(mr.ArgumentError, match=words):
        mr.Trainer(program, mr.SGD(), learning_rate=0.1).step(**fed)
    with pytest.raises(mr.ArgumentError, match="found 'Rows': did you mean 'rows'"):
        program.run(Rows=[1.0], length=1.0)
    with pytest.raises(mr.ArgumentError, match="expected the inputs rows, length of program 'two', found 'z'$"):
        program.run(z=1)
    with pytest.raises(mr.ArgumentError, match="input 'length': expected f32.., found nothing"):
        program.run(rows=[1.0])
    with pytest.raises(KeyError, match="expected one of the outputs product, loss, found 'prodcut': did you mean 'product'"):
        program.run(rows=[1.0], length=1.0)["prodcut"]


@pytest.mark.parametrize("work", ["loop", "short loop", "straight", "short straight", "asyncio", "training", "session"])
def test_daemon_threads_in_the_middle_of_their_work_are_quiet_at_the_exit(work):
    script = """
        import asyncio, sys, threading, time
        import numpy as np
        import millrace as mr
        from programs import counting
        work = 'WORK'
        program = mr.Program()
        with program:
            x = mr.input("x", mr.f32, [None, 64])
            mr.output("loss", mr.mean((x @ mr.parameter("w", np.ones((64, 64), np.float32) / 64)).tanh()))
        straight, loop, x = program.compile(), counting().compile(), np.ones((4096 if work == "straight" else 1, 64), np.float32)
        async def tasks():
            while True:
                await loop.run_async(limit=1000)
        async def session():
            rows = mr.Program()
            with rows:
                mr.output("y", mr.input("x", mr.f32, [None, 3], lod=1) * 2)
            async with mr.LiveModel(rows).session() as session:
                while True:
                    await session.push(np.ones((1, 3), np.float32))
                    await session.next()
        trainer = mr.Trainer(program, mr.SGD(), learning_rate=0.1) if work == "training" else None
        calls = {
            "loop": lambda: loop(limit=10**12),
            "short loop": lambda: loop(limit=2),
            "asyncio": lambda: asyncio.run(tasks()),
            "training": lambda: trainer.step(x=x),
            "session": lambda: asyncio.run(session()),
        }
        begun = threading.Semaphore(0)
        def run():
            begun.release()
            while True:
                calls.get(work, lambda: straight(x=x))()
        for _ in range(1 if work == "training" else 4):
            threading.Thread(target=run, daemon=True).start()
            begun.acquire()
        time.sleep(0.05)
    """
    for _ in range(5):
        made = python(script.replace("WORK", work), leak_warnings=False)
        assert made.returncode == 0 and made.stderr == "", made.stderr
