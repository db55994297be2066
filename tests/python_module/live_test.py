# SPDX-License-Identifier: Apache-2.0
"""Live models, sessions and programs; a server in one's own event loop, and its client."""

import asyncio
import contextlib
import contextvars
import gc
import os
import random
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import millrace as mr

HIDDEN, WIDTH = 5, 3


def recurrent(seed=1):
    """A GRU over sequences: rows [3] to rows [5]."""
    choose = np.random.default_rng(seed)
    weights = mr.layers.GruWeights(*[(choose.standard_normal(s) / 2).astype(np.float32) for s in ((WIDTH, 15), (HIDDEN, 15), (15,), (15,))])
    program = mr.Program("recurrent")
    with program:
        x = mr.input("x", mr.f32, [None, WIDTH], lod=1)
        mr.output("y", mr.layers.gru(x, weights).y)
    return program


def one_step():
    """A program of one step, whose state is `h`."""
    program = mr.Program("one step")
    with program:
        x, h = mr.input("x", mr.f32, [1, 2]), mr.input("h", mr.f32, [1, 2])
        new = h + x
        mr.output("h_next", new)
        mr.output("y", new * 2)
    return program


def sentences():
    """Two levels: sums of words in each sentence, and a sum over sentences that goes on."""
    program = mr.Program("sentences")
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=2)
        with mr.DynamicRNN() as outer:
            sentence = outer.step_input(x)
            with mr.DynamicRNN() as inner:
                word = inner.step_input(sentence)
                total = inner.memory(shape=[2])
                inner.update_memory(total, total + word)
                inner.output(total + word)
            whole = outer.memory(shape=[2])
            last = whole + inner.last(total)
            outer.update_memory(whole, last)
            outer.output(last)
        mr.output("y", outer())
    return program


def some_rows(choose, count):
    return choose.standard_normal((count, WIDTH)).astype(np.float32)


async def all_of(session, output="y"):
    return np.concatenate([rows[output].numpy() async for rows in session] or [np.zeros((0, HIDDEN), np.float32)])


def test_rows_as_they_arrive_give_the_bits_of_the_whole():
    program, choose = recurrent(), np.random.default_rng(2)
    x = some_rows(choose, 40)
    wanted = program.run(x=[x])["y"].rows.numpy()

    async def main():
        model = mr.LiveModel(program)
        assert model.inputs == {"x": "f32[3]"} and model.outputs == {"y": "f32[5]"} and model.levels == 1
        async with model.session("kitchen") as session:
            for piece in np.split(x, [1, 1, 7, 39]):
                await session.push(piece)
            assert await session.flush() == 40 and session.steps == 40
            await session.finish()
            made = await all_of(session)
            assert await session.next() is None
        assert made.tobytes() == wanted.tobytes()
        torch = pytest.importorskip("torch")
        async with model.session() as session:
            await session.push(torch.from_numpy(x[:20]))
            await session.push(x=mr.Tensor(x[20:39]))
            await session.push(x[39:].tolist())
            await session.finish()
            assert (await all_of(session)).tobytes() == wanted.tobytes()
        assert model.stats["rows"] == 80 and model.live_sessions == 0

    asyncio.run(main())


def test_a_producer_and_a_consumer_are_two_tasks():
    program, choose = recurrent(), np.random.default_rng(3)
    x = some_rows(choose, 3000)
    wanted = program.run(x=[x])["y"].rows.numpy()

    async def microphone():
        for at in range(0, len(x), 100):
            await asyncio.sleep(0)
            yield x[at : at + 100]

    async def main():
        model = mr.LiveModel(program, queued_in=1200, queued_out=2000)  # 100 rows wait
        async with model.session() as session:
            feeding = asyncio.ensure_future(session.feed(microphone()))
            assert (await all_of(session)).tobytes() == wanted.tobytes()
            await feeding
        async with model.session() as session:  # who takes nothing is not fed on
            feeding = asyncio.ensure_future(session.feed([x]))
            await asyncio.sleep(0.05)
            assert not feeding.done() and session.steps < 300
            assert (await all_of(session)).tobytes() == wanted.tobytes()
            await feeding

    asyncio.run(main())


def test_a_state_may_be_given_and_reset():
    async def main():
        model = mr.LiveModel(one_step(), states={"h": "h_next"})
        async with model.session(given={"h": [[1, 1]]}) as session:
            await session.push([[1, 2], [1, 2]])
            await session.reset()
            await session.push([[5, 5]])
            await session.finish()
            rows = [row async for made in session for row in made["y"].tolist()]
        assert rows == [[4, 6], [6, 10], [12, 12]]
        with pytest.raises(mr.ArgumentError, match="found 'z'"):
            async with model.session(given={"z": 1.0}):
                pass

    asyncio.run(main())


def test_constants_of_a_live_model_take_the_dtypes_of_its_inputs():
    program = mr.Program("scaled")
    with program:
        x, h, n = mr.input("x", mr.f32, [1, 2]), mr.input("h", mr.f32, [1, 2]), mr.input("n", mr.i64, [2])
        new = h + x * n.to(mr.f32)
        mr.output("h_next", new)
        mr.output("y", mr.identity(new))

    async def main():
        for n in ([2, 3], np.array([2, 3], "i2"), np.array([2, 3], "u8"), [np.uint32(2), 3]):
            async with mr.LiveModel(program, states={"h": "h_next"}, constants={"n": n}).session() as session:
                await session.push([[1, 1]])
                await session.finish()
                assert [row async for made in session for row in made["y"].tolist()] == [[2, 3]]
        with pytest.raises(mr.DTypeError, match="expected integers for i64, found 0.5"):
            mr.LiveModel(program, states={"h": "h_next"}, constants={"n": [2, 0.5]})

    asyncio.run(main())


def test_a_state_that_has_a_value_in_the_model_stays_an_input_where_load_says_so(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, path = onnx.helper, tmp_path / "step.onnx"
    one = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2])
    nodes = [helper.make_node("Add", ["x", "h"], ["hn"]), helper.make_node("Neg", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "graph", [one("x"), one("h")], [one("y"), one("hn")],
                              [helper.make_tensor("h", onnx.TensorProto.FLOAT, [1, 2], [1, 2])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    assert mr.load(path).inputs.keys() == {"x"}
    program = mr.load(path, inputs={"h"})
    assert program.inputs.keys() == {"x", "h"}
    with pytest.raises(mr.ArgumentError, match="load: inputs go with an ONNX model"):
        mr.load(tmp_path / "step.mr", inputs={"h"})

    async def main():
        model = mr.LiveModel(program, states={"h": "hn"})
        async with model.session(given={"h": [[1, 2]]}) as session:
            await session.push([[1, 1], [5, 7]])
            await session.finish()
            assert [row async for made in session for row in made["y"].tolist()] == [[-1, -2], [-2, -3]]

    asyncio.run(main())


def test_inner_sequences_open_and_close():
    program = sentences()
    x = mr.ragged([[[[1, 2], [3, 4]], [], [[5, 6]]]], levels=2, dtype=mr.f32)
    wanted = program.run(x=x)["y"].rows.tolist()

    async def main():
        model = mr.LiveModel(program)
        assert model.levels == 2
        async with model.session() as session:
            await session.push([[[1, 2], [3, 4]], []])  # two inner sequences
            await session.open_level()
            await session.push([[5, 6]][:0] or np.zeros((0, 2), np.float32))
            await session.push(np.array([[5, 6]], np.float32))
            await session.close_level()
            await session.finish()
            rows = [row async for made in session for row in made.get("y", mr.Tensor(np.zeros((0, 2)))).tolist()]
        assert rows == wanted
        with pytest.raises(mr.LoDError):
            async with model.session() as session:
                await session.push(np.zeros((1, 2), np.float32))

    asyncio.run(main())


def test_many_sessions_in_one_call():
    program, choose = recurrent(), np.random.default_rng(4)
    whole = [some_rows(choose, n) for n in (9, 0, 4, 17)]
    wanted = [y.numpy() for y in program.run(x=whole)["y"]]

    async def main():
        model = mr.LiveModel(program)
        sessions = [model.session(f"number {i}") for i in range(4)]
        for session in sessions:
            await session.__aenter__()
        made = {session.id: [] for session in sessions}
        for at in range(3):
            cut = [np.array_split(x, 3)[at] for x in whole]
            await model.push(sessions, mr.ragged(cut) if at else cut)
        for session in sessions:
            await session.finish()
        ended = []
        while (batch := await model.next()) is not None:
            for id, rows in zip(batch.ids, batch.outputs["y"]):
                made[id].append(rows.numpy())
            ended += batch.ended
            assert not batch.failed
        assert sorted(ended) == sorted(made)
        for session, y in zip(sessions, wanted):
            assert np.concatenate(made[session.id] or [y[:0]]).tobytes() == y.tobytes()
        with pytest.raises(mr.ArgumentError, match="expected the number of a live session"):
            await model.push([10**6], [whole[0]])
        other = mr.LiveModel(program)
        async with other.session() as own, model.session("of another") as session:
            with pytest.raises(mr.ArgumentError, match="expected sessions of this model, found 'of another' of another"):
                await other.push([own, session], [whole[0], whole[0]])

    asyncio.run(main())


def test_errors_say_what_was_expected():
    program = recurrent()

    async def main():
        model = mr.LiveModel(program, sessions=1)
        async with model.session("kitchen") as session:
            for rows, error, words in [
                (np.zeros((1, 4), np.float32), mr.ShapeError, "session 1 'kitchen', input 'x'"),
                (np.zeros((1, 3)), mr.DTypeError, "expected f32, found f64"),
                ("text", mr.ArgumentError, "found a str"),
            ]:
                with pytest.raises(error, match=words):
                    await session.push(rows)
            with pytest.raises(mr.ArgumentError, match="expected rows of x, found 'z'"):
                await session.push(z=[[1, 2, 3]])
            with pytest.raises(OverflowError, match="expected at most 1 sessions"):
                async with model.session():
                    pass
            await session.finish()
            with pytest.raises(mr.ClosedError, match="the session is finished"):
                await session.push([[1, 2, 3]])
        with pytest.raises(mr.ArgumentError, match="expected an open one"):
            await model.session().push([[1, 2, 3]])
        reverse = mr.from_torch(pytest.importorskip("torch").nn.GRU(3, 4, bidirectional=True).eval())
        with pytest.raises(NotImplementedError):
            mr.LiveModel(reverse)

    asyncio.run(main())


def calls_of(session):
    calls = [session.flush, session.reset, session.save, session.finish, session.open_level, session.close_level]
    calls.append(lambda: session.push(np.zeros((1, 3), np.float32)))
    return calls + [session.fork] if isinstance(session, mr.LiveSession) else calls


@pytest.mark.parametrize("where", ["here", "server"])
def test_a_session_that_is_over_says_why(where):
    async def expect(session, error, words):
        for call in calls_of(session):
            with pytest.raises(error, match=words):
                await asyncio.wait_for(call(), 30)

    async def main():
        model = mr.LiveModel(recurrent())
        async with mr.Server(recurrent()) as server:
            start = model.session if where == "here" else lambda: mr.connect(server.url)
            unopened = start()
            await expect(unopened, mr.ArgumentError, "expected an open")
            with pytest.raises(mr.ArgumentError, match="expected an open"):
                await asyncio.wait_for(unopened.next(), 30)
            async with start() as session:
                await session.push([[1, 2, 3]])
                await session.finish()
                await expect(session, mr.ClosedError, "the session is finished")
                assert len(await all_of(session)) == 1
            await expect(session, mr.ClosedError, "the session is closed")
            assert await session.next() is None
            async with start() as session:
                session.cancel()
                await expect(session, mr.CancelledError, "was cancelled")
                with pytest.raises(mr.CancelledError, match="was cancelled"):
                    await session.next()
            await expect(session, mr.ClosedError, "the session is closed")
            with pytest.raises(mr.ClosedError, match="the session is closed"):
                await session.next()
            if where == "here":
                with pytest.raises(mr.ClosedError, match="the session is closed"):
                    await model.push([session], [np.zeros((1, 3), np.float32)])
            async with start() as session:
                waiting = asyncio.ensure_future(session.next())
                await asyncio.sleep(0.01)
            with pytest.raises(mr.CancelledError):  # it began before the session was closed
                await waiting

    asyncio.run(main())


def test_a_live_program_that_is_over_says_why():
    async def main():
        async with mr.LiveProgram(backwards(), factor=1.0) as live:
            await live.push("x", [1.0, 2.0])
            live.finish()
            with pytest.raises(mr.ClosedError, match="the program is finished"):
                await live.push("x", [1.0, 2.0])
        with pytest.raises(mr.ClosedError, match="the program is closed"):
            await live.push("x", [1.0, 2.0])
        async with mr.LiveProgram(backwards(), factor=1.0) as live:
            live.cancel()
            with pytest.raises(mr.CancelledError, match="the program was cancelled"):
                await live.push("x", [1.0, 2.0])

    asyncio.run(main())


def test_a_step_that_fails_ends_its_session_alone():
    program = mr.Program("lookup")
    with program:
        ids = mr.input("ids", mr.i64, [None], lod=1)
        mr.output("y", mr.layers.embedding(ids, np.eye(3, dtype=np.float32)))

    async def main():
        model = mr.LiveModel(program)
        async with model.session() as bad, model.session() as good:
            await bad.push([1, 7])
            await good.push([2])
            with pytest.raises(mr.LiveError) as raised:
                while True:
                    assert await bad.next() is not None
            assert raised.value.session == bad.id and raised.value.step in (0, 1) and isinstance(raised.value, mr.Error)
            await good.flush()
            assert (await good.next())["y"].tolist() == [[0, 0, 1]]

    asyncio.run(main())


def test_a_next_that_was_cancelled_loses_nothing():
    program, choose = recurrent(), np.random.default_rng(5)
    x = some_rows(choose, 300)
    wanted = program.run(x=[x])["y"].rows.numpy()

    async def main():
        model, made = mr.LiveModel(program), []
        async with model.session() as session:
            feeding = asyncio.ensure_future(session.feed(x[at : at + 1] for at in range(300)))
            while True:
                try:
                    rows = await asyncio.wait_for(session.next(), random.choice([0.00001, 0.0005, 5]))
                except asyncio.TimeoutError:
                    continue
                if rows is None:
                    break
                made.append(rows["y"].numpy())
            await feeding
        assert np.concatenate(made).tobytes() == wanted.tobytes()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_sessions_cancelled_at_random(seed):
    choose, numbers = random.Random(seed), np.random.default_rng(seed)
    program = recurrent()
    x = some_rows(numbers, 64)
    wanted = program.run(x=[x])["y"].rows.numpy()
    references = sys.getrefcount(x)

    # Sessions of three kinds: one is left alone, one is cancelled after a random time, and one while its source is at a
    # random chunk. The speed of the machine decides only how those of the second kind end.
    async def one(model, cancelled_at):
        async def source():
            for at in range(0, 64, 8):
                if at == cancelled_at:
                    task.cancel()
                    await asyncio.Event().wait()
                yield x[at : at + 8]

        task = asyncio.current_task()
        async with model.session() as session:
            feeding = asyncio.ensure_future(session.feed(source()))
            try:
                made = await all_of(session)
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])
            assert made.tobytes() == wanted.tobytes()

    async def main():
        model = mr.LiveModel(program, queued_in=200, queued_out=300)
        tasks = {"left": [], "by time": [], "by chunk": []}
        for _ in range(1000):
            kind = choose.choice(list(tasks))
            task = asyncio.ensure_future(one(model, choose.randrange(0, 64, 8) if kind == "by chunk" else None))
            tasks[kind].append(task)
            if kind == "by time":
                asyncio.get_running_loop().call_later(choose.random() * 0.1, task.cancel)
            if choose.random() < 0.2:
                await asyncio.sleep(0)
        for kind, of_kind in tasks.items():
            assert len(of_kind) > 200
            for made in await asyncio.gather(*of_kind, return_exceptions=True):
                cancelled = isinstance(made, asyncio.CancelledError)
                assert made is None or cancelled, made
                assert kind == "by time" or cancelled == (kind == "by chunk")
        assert model.live_sessions == 0

    asyncio.run(main())
    gc.collect()
    assert mr.live_runs() == 0 and sys.getrefcount(x) == references


def test_several_tasks_wait_for_one_session_and_a_cancelled_one_takes_nothing():
    async def main():
        async with mr.LiveModel(recurrent()).session() as session:
            first, second, third = (asyncio.create_task(session.next()) for _ in range(3))
            await asyncio.sleep(0.005)
            assert first.cancel("enough")
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await first
            await session.push(np.ones((2, WIDTH), np.float32))
            rows = (await second)["y"]
            assert len(rows) in (1, 2) and (len(rows) == 1 or not third.done())
            # A task that is cancelled behind its wake-up, before it runs: the results stay for the next one.
            third.cancel()
            await asyncio.wait([third])
            seen = len(rows) + (0 if third.cancelled() else len(third.result()["y"]))
            waiting = asyncio.create_task(session.next())
            await asyncio.sleep(0.005)
            await session.push(np.ones((1, WIDTH), np.float32))
            await session.flush()
            waiting.cancel()
            await asyncio.wait([waiting])
            seen += 0 if waiting.cancelled() else len(waiting.result()["y"])
            await session.finish()
            assert seen + sum([len(made["y"]) async for made in session]) == 3

    asyncio.run(main())


def test_a_task_keeps_its_context_while_it_waits():
    name = contextvars.ContextVar("name")

    async def one(model, number):
        name.set(number)
        async with model.session() as session:
            for _ in range(5):
                await session.push(np.ones((1, WIDTH), np.float32))
                assert len((await session.next())["y"]) == 1 and name.get() == number
                assert asyncio.current_task().get_name() == f"task {number}"

    async def main():
        model = mr.LiveModel(recurrent())
        await asyncio.gather(*(asyncio.create_task(one(model, n), name=f"task {n}") for n in range(20)))

    asyncio.run(main())


def test_an_exception_that_ends_the_event_loop_leaves_the_other_tasks_their_results():
    model, made = mr.LiveModel(recurrent()), []

    async def one(number):
        async with model.session() as session:
            await session.push(np.ones((1, WIDTH), np.float32))
            await session.next()
            if number == 3:
                raise KeyboardInterrupt
            await session.push(np.ones((1, WIDTH), np.float32))
            made.append(len((await session.next())["y"]))

    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(one(n)) for n in range(8)]
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.gather(*tasks))
    loop.run_until_complete(asyncio.wait([task for n, task in enumerate(tasks) if n != 3]))
    loop.close()
    assert made == [1] * 7 and isinstance(tasks[3].exception(), KeyboardInterrupt)


def test_a_session_of_another_event_loop_says_so():
    model = mr.LiveModel(recurrent())

    async def begin():
        return await model.session().__aenter__()

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(begin())
    with pytest.raises(RuntimeError, match="different loop"):
        asyncio.run(session.next())
    session.cancel()
    loop.close()


def test_a_task_that_waits_goes_with_its_event_loop():
    model, tasks = mr.LiveModel(recurrent()), []

    async def one():
        async with model.session() as session:
            await session.next()

    async def main():
        task = asyncio.get_running_loop().create_task(one())
        await asyncio.sleep(0.01)
        gc.collect()
        tasks.append(weakref.ref(task))
        assert not task.done()  # the event loop holds it, and nobody else

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(main())
    gc.collect()
    assert tasks[0]() is not None
    loop.close()
    del loop
    gc.collect()
    assert tasks[0]() is None and model.live_sessions == 0


def test_a_model_that_goes_ends_its_sessions():
    async def main():
        model = mr.LiveModel(recurrent())
        session = model.session()
        await session.__aenter__()
        waiting = asyncio.ensure_future(session.next())
        await asyncio.sleep(0.01)
        session.cancel()
        with pytest.raises(mr.CancelledError):
            await waiting
        # A loop that ends with an operation under way is no harm.
        other = await model.session().__aenter__()
        asyncio.ensure_future(other.next())
        await asyncio.sleep(0.01)

    asyncio.run(main())
    gc.collect()
    assert mr.live_runs() == 0


def test_a_model_is_used_in_one_event_loop_after_another():
    model = mr.LiveModel(recurrent())

    async def once():
        async with model.session() as session:
            waiting, left = asyncio.ensure_future(model.next()), asyncio.ensure_future(model.next())
            await asyncio.sleep(0.005)
            await model.push([session], [np.ones((2, WIDTH), np.float32)])
            batch = await waiting
            left.cancel()
            return batch.outputs["y"].lengths

    for _ in range(3):
        lengths = asyncio.run(once())
        assert lengths in ([2], [1])


def test_rows_that_wait_for_the_queue_are_not_copied_and_results_share_their_memory():
    rows, width = 1 << 14, 1 << 10  # 64 MiB, of which the queue holds 256 KiB
    program = mr.Program("first column")
    with program:
        x = mr.input("x", mr.f32, [None, width], lod=1)
        mr.output("y", x[:, :1] * 2.0)
    x = np.zeros((rows, width), np.float32)
    x[:, 0] = np.arange(rows)
    alive = weakref.ref(x)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    async def main(x):
        model, made = mr.LiveModel(program), []
        async with model.session() as session:
            await session.push(x[:100])
            await session.flush()
            made.append((await session.next())["y"])
            before = resident()
            pushing = asyncio.ensure_future(session.push(x[100:]))
            del x
            rows_seen, highest = 100, 0
            while rows_seen < rows:
                made.append((await session.next())["y"])
                rows_seen += len(made[-1])
                highest = max(highest, resident() - before)
            await pushing
            assert highest < 16 << 20, highest
        for one in made:
            assert np.shares_memory(one.numpy(), one.numpy())
        assert np.concatenate([one.numpy() for one in made])[:, 0].tolist() == [2 * n for n in range(rows)]

    def run():
        nonlocal x
        given, x = x, None
        return main(given)

    asyncio.run(run())
    gc.collect()
    assert alive() is None


def test_an_array_may_be_filled_again_once_it_was_pushed():
    program, choose = recurrent(), np.random.default_rng(7)
    x = some_rows(choose, 60)
    wanted = program.run(x=[x])["y"].rows.numpy()

    async def main():
        async with mr.LiveModel(program).session() as session:
            buffer = np.empty((20, WIDTH), np.float32)
            for at in range(0, 60, 20):
                buffer[:] = x[at : at + 20]
                await session.push(buffer)
            buffer[:] = np.nan
            await session.finish()
            assert (await all_of(session)).tobytes() == wanted.tobytes()

    asyncio.run(main())


def test_one_row_without_an_axis_is_refused_by_a_message_that_helps():
    async def main():
        async with mr.LiveModel(recurrent()).session() as session:
            with pytest.raises(mr.ShapeError, match=r"found f32\[3\].*one row is rows\[None\]"):
                await session.push(np.ones(WIDTH, np.float32))

    asyncio.run(main())


def test_rows_without_their_axis_of_one_element_are_refused_by_a_message_that_helps():
    program = mr.Program("rows of [1, 3]")
    with program:
        mr.output("y", mr.tanh(mr.input("x", mr.f32, [None, 1, 3], lod=1)))

    async def main():
        async with mr.LiveModel(program).session() as session:
            with pytest.raises(mr.ShapeError, match=r"found f32\[5, 3\] on cpu: an axis of one element lacks, as numpy\.expand_dims\(rows, 1\)"):
                await session.push(np.ones((5, 3), np.float32))
            with pytest.raises(mr.ShapeError, match=r"found f32\[1, 3\] on cpu: one row is rows\[None\]"):
                await session.push(np.ones((1, 3), np.float32))
            with pytest.raises(mr.ShapeError, match=r"found f32\[5, 4\] on cpu$"):
                await session.push(np.ones((5, 4), np.float32))

    asyncio.run(main())


def test_sessions_leak_nothing():
    x = np.zeros((50, WIDTH), np.float32)

    async def some(times):
        model = mr.LiveModel(recurrent())
        for _ in range(times):
            async with model.session(given={}) as session:
                await session.push(x)
                await session.push(mr.Tensor(x))
                with pytest.raises(mr.ShapeError):
                    await session.push(x[:, :2])
                await session.flush()
                await session.next()
        batch = model.session()
        async with batch:
            for _ in range(times):
                await model.push([batch], [x])
                await model.next()

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    asyncio.run(some(100))
    before, references = resident(), sys.getrefcount(x)
    for _ in range(5):
        asyncio.run(some(200))
    assert resident() - before < 8 << 20 and sys.getrefcount(x) == references


@pytest.mark.parametrize("program", ["recurrent", "server"])
def test_the_interpreter_may_end_while_sessions_live(program):
    script = {
        "recurrent": "model = mr.LiveModel(recurrent()); s = model.session(); await s.__aenter__(); t = asyncio.ensure_future(s.next())",
        "server": "s = mr.Server(recurrent()); c = mr.connect(s.url); await c.__aenter__(); t = asyncio.ensure_future(c.next())",
    }[program]
    code = f"""
import asyncio, millrace as mr
from live_test import recurrent
kept = []
async def main():
    {script}
    kept.append(s)
    await asyncio.sleep(0.02)
    print(mr.live_runs())
asyncio.run(main())
"""
    made = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)), capture_output=True, text=True, timeout=120)
    assert made.returncode == 0 and made.stdout.strip().isdigit(), made.stderr
    assert "Traceback" not in made.stderr, made.stderr


def test_a_child_process_makes_its_model_again():
    model = mr.LiveModel(recurrent())

    async def use(of):
        async with of.session() as session:
            await session.push([[1, 2, 3]])
            await session.finish()
            return len(await all_of(session))

    assert asyncio.run(use(model)) == 1
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                asyncio.run(use(model))
            except mr.UnsupportedError as error:
                code = 0 if "forked" in str(error) and asyncio.run(use(mr.LiveModel(recurrent()))) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- Any program ----


def backwards():
    """Sums of all slots so far, from the newest to the oldest: no recurrence."""
    program = mr.Program("backwards")
    with program:
        x = mr.TensorArray.input("x", mr.f32, [2])
        sums = mr.TensorArray.input("sums", mr.f32, [2])
        factor = mr.input("factor", mr.f32, [])
        i, total = mr.Var(0), mr.constant(np.zeros(2, np.float32))
        loop = mr.while_loop([i, total])
        with loop.frame():
            loop.break_if(~x.has(i))
            total.update(total + x.read(i) * factor)
            sums.write(i, total)
            i += 1
        mr.output("total", total)
    return program


def test_any_program_over_slots_that_arrive():
    async def main():
        async with mr.LiveProgram(backwards(), factor=2.0) as live:
            await live.push("x", [1.0, 2.0])
            assert (await live.next("sums")).tolist() == [2, 4]
            waiting = asyncio.ensure_future(live.next("sums"))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await live.push("x", np.array([10, 20], np.float32))
            live.finish()
            assert [slot.tolist() async for slot in live.slots("sums")] == [[22, 44]]
            assert (await live.result())["total"].tolist() == [22, 44]
            with pytest.raises(mr.ArgumentError, match="found 'z'"):
                await live.push("z", [1.0, 2.0])
        async with mr.LiveProgram(backwards(), factor=1.0) as live:
            for slot, error in (([5.0], mr.ShapeError), ([1.0, 2.0, 3.0], mr.ShapeError), (np.ones(2), mr.DTypeError)):
                with pytest.raises(error, match=r"expected f32\[2\]"):
                    await live.push("x", slot)
            await live.push("x", [1.0, 2.0])  # what was refused has changed nothing
            assert (await live.next("sums")).tolist() == [1, 2]
        live = mr.LiveProgram(backwards(), factor=1.0, window=2)
        waiting = asyncio.ensure_future(live.result())
        await asyncio.sleep(0.01)
        live.cancel()
        with pytest.raises(mr.CancelledError):
            await waiting

    asyncio.run(main())
    gc.collect()
    assert mr.live_runs() == 0


@pytest.mark.parametrize("where", ["here", "server"])
@pytest.mark.parametrize("kind", ["source", "asynchronous source", "rows"])
def test_the_reader_hears_of_an_error_of_a_feed(where, kind):
    def source():
        yield np.ones((2, WIDTH), np.float32)
        if kind == "rows":
            yield np.ones((2, WIDTH + 1), np.float32)
        raise OSError("unplugged")

    async def asynchronously():
        for rows in source():
            yield rows

    async def main():
        expected = mr.ShapeError if kind == "rows" else OSError
        async with contextlib.AsyncExitStack() as stack:
            if where == "here":
                session = await stack.enter_async_context(mr.LiveModel(recurrent()).session("kitchen"))
            else:
                server = await stack.enter_async_context(mr.Server(recurrent()))
                session = await stack.enter_async_context(mr.connect(server.url))
            feeding = asyncio.create_task(session.feed(asynchronously() if kind == "asynchronous source" else source()))
            with pytest.raises(mr.CancelledError, match=f"feed ended with {'ShapeError' if kind == 'rows' else 'OSError: unplugged'}"):
                async for _ in session:
                    pass
            with pytest.raises(expected):
                await feeding

    asyncio.run(asyncio.wait_for(main(), 60))


# ---- Over a network ----


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_server_in_ones_own_event_loop_and_its_client(scheme):
    program, choose = recurrent(), np.random.default_rng(6)
    whole = [some_rows(choose, n) for n in (200, 1, 0, 33)]
    wanted = [y.numpy() for y in program.run(x=whole)["y"]]

    async def one(url, x):
        async with mr.connect(url, name="kitchen") as session:
            assert session.inputs == {"x": "f32[3]"} and session.outputs == {"y": "f32[5]"}
            feeding = asyncio.ensure_future(session.feed(np.array_split(x, 5)))
            made = await all_of(session)
            await feeding
            return made

    async def main():
        async with mr.Server(program) as server:
            url = server.url if scheme == "tcp" else f"ws://127.0.0.1:{server.port}/stream"
            for y, made in zip(wanted, await asyncio.gather(*(one(url, x) for x in whole))):
                assert made.tobytes() == y.tobytes()
            async with mr.connect(url) as session:
                await session.push(whole[0][:3])
                assert await session.flush() == 3
                await session.reset()
                with pytest.raises(mr.ShapeError, match="input 'x'"):
                    await session.push(np.zeros((1, 4), np.float32))
                await session.push(whole[0][:2])
                await session.finish()
                assert (await all_of(session)).tobytes() == np.concatenate([wanted[0][:3], wanted[0][:2]]).tobytes()
            with pytest.raises(mr.ProtocolError) as raised:
                async with mr.connect(url, outputs=["z"]):
                    pass
            assert raised.value.code == "bad_input" and isinstance(raised.value, ConnectionError)
            assert server.stats["rows"] == 239
        with pytest.raises(OSError, match="connect to"):
            async with mr.connect(url):
                pass

    asyncio.run(main())


def test_serve_is_a_task_that_is_cancelled():
    async def main():
        servers = []
        task = asyncio.create_task(mr.serve(recurrent(), started=servers.append, sessions=1))
        while not servers:
            await asyncio.sleep(0.001)
        url = servers[0].url
        async with mr.connect(url) as session:
            await session.push([[1, 2, 3]])
            await session.flush()
            assert (await session.next())["y"].shape == (1, 5)
            with pytest.raises(mr.ProtocolError) as raised:
                async with mr.connect(url):
                    pass
            assert raised.value.code == "overload" and raised.value.retry_after_ms > 0
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(mr.ProtocolError) as raised:
                while await session.next() is not None:
                    pass
            assert raised.value.code == "draining"

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_session():
    async def main():
        async with mr.Server(recurrent()) as server:
            async with mr.connect(server.url) as session:
                await session.push([[1, 2, 3]])
                await session.flush()
                assert server.live_sessions == 1
            end = time.monotonic() + 10
            while server.live_sessions and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert server.live_sessions == 0

    asyncio.run(main())
    gc.collect()
    assert mr.live_runs() == 0
