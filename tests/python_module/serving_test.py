# SPDX-License-Identifier: Apache-2.0
"""Servers as tasks of an event loop: their ends, errors and threads; TLS, tokens, admission; states that go from one server to another."""

import asyncio
import errno
import gc
import os
import random
import socket
import subprocess
import time

import numpy as np
import pytest

import millrace as mr
from live_test import WIDTH, all_of, one_step, recurrent, some_rows

TOKEN, OTHER = "a-token-of-many-characters", "another-token-of-characters"


def threads():
    """Names of this process's threads, by number."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                found[task] = file.read().strip()
        except FileNotFoundError:
            pass
    return found


def expect_no_thread_beside(before):
    """The network's thread ends by itself, a moment behind the last server and connection."""
    end = time.monotonic() + 60
    while set(threads()) - set(before) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert set(threads()) - set(before) == set(), threads()


@pytest.fixture(scope="module", autouse=True)
def the_threads_of_runs_are_there():
    """The threads of the module stay. A test counts others."""
    asyncio.run(recurrent().run_async(x=[np.zeros((1, WIDTH), np.float32)]))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) for 127.0.0.1, and its own authority."""
    folder = tmp_path_factory.mktemp("tls")
    names = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=test"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1", "-out", names[0], "-keyout", names[1]], check=True, capture_output=True)
    return names


async def ask(url, x, **access):
    async with mr.connect(url, **access) as session:
        await session.push(x)
        await session.finish()
        return await all_of(session)


def url_of(server, scheme):
    return f"{scheme}://127.0.0.1:{server.port}" + ("/stream" if scheme.startswith("ws") else "")


# ---- Tasks ----


def test_several_models_are_served_at_once_and_no_thread_is_left():
    before = threads()
    programs = [recurrent(seed) for seed in range(4)]
    x = some_rows(np.random.default_rng(1), 20)

    async def main():
        servers = {}
        tasks = [asyncio.create_task(mr.serve(program, started=lambda server, i=i: servers.__setitem__(i, server))) for i, program in enumerate(programs)]
        while len(servers) < len(tasks):
            await asyncio.sleep(0)
        made = await asyncio.gather(*(ask(servers[i].url, x) for i in range(4) for _ in range(3)))
        for i, y in enumerate(made):
            assert y.tobytes() == programs[i // 3].run(x=[x])["y"].numpy().tobytes()
        assert servers[2].inputs == {"x": "f32[3]"} and servers[2].outputs == {"y": "f32[5]"} and servers[2].levels == 1
        for task in tasks:
            task.cancel()
        assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*tasks, return_exceptions=True))
        assert [servers[i].live_sessions for i in range(4)] == [0] * 4 and servers[0].stats["rows"] == 60  # as they were at the end
        with pytest.raises(OSError):
            await ask(servers[1].url, x)

    asyncio.run(main())
    expect_no_thread_beside(before)


def test_the_errors_of_a_server_are_those_of_its_task():
    async def main():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(OSError) as raised:
                await asyncio.create_task(mr.serve(recurrent(), port=taken.getsockname()[1]))
            assert isinstance(raised.value, mr.IoError)
        for options, words in [
            ({"port": 70000}, "65535"),
            ({"threads": 0}, "1 to 1024 threads"),
            ({"threads": 1025}, "1 to 1024 threads"),
            ({"backend": "fast"}, "found 'fast'"),
            ({"idle": 0.0}, "idleness"),
            ({"limits": {"rows": 1}}, "one of the limits sessions_per_address, chunks_in"),
            ({"limits": {"handshake": 0}}, "'handshake'"),
            ({"capacity": "much"}, "'measure'"),
            ({"tls_cert": "cert.pem"}, "together"),
            ({"tokens": []}, "expected one or more"),
            ({"tokens": ["short"]}, "found 5 characters"),
            ({"tokens": TOKEN}, "a list of tokens"),
            ({"address": "0.0.0.0"}, "others can reach it"),
            ({"address": "0.0.0.0", "tokens": [TOKEN]}, "others can reach it"),
            ({"state_key": b"short"}, "32"),
        ]:
            with pytest.raises(mr.ArgumentError, match=words) as raised:
                await asyncio.create_task(mr.serve(recurrent(), **options))
            assert TOKEN not in str(raised.value)
        with pytest.raises(TypeError):
            await asyncio.create_task(mr.serve(recurrent(), token=[TOKEN]))
        with pytest.raises(mr.UnsupportedError, match="from its end"):
            program = mr.Program()
            with program:
                x = mr.input("x", mr.f32, [None, 2], lod=1)
                weights = mr.layers.RnnWeights(*[np.zeros(s, np.float32) for s in ((2, 2), (2, 2))])
                mr.output("y", mr.layers.rnn(x, weights, direction="reverse").y)
            await mr.serve(program)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_servers_and_clients_that_are_cancelled_at_any_time_leave_nothing(seed):
    before, choose = threads(), random.Random(seed)
    program, x = recurrent(), some_rows(np.random.default_rng(seed), 30)

    async def main():
        async def life():
            servers = []
            serving = asyncio.create_task(mr.serve(program, started=servers.append))
            await asyncio.sleep(0)
            clients = [asyncio.create_task(ask(servers[0].url, x)) for _ in range(choose.randrange(4))] if servers else []
            for task in choose.sample([serving, *clients], len(clients) + 1):
                await asyncio.sleep(choose.choice([0, 0.001, 0.01]))
                task.cancel()
            for made in await asyncio.gather(serving, *clients, return_exceptions=True):
                assert isinstance(made, (np.ndarray, asyncio.CancelledError, mr.ProtocolError, OSError)), repr(made)
            assert serving.cancelled()

        await asyncio.gather(*(life() for _ in range(12)))

    asyncio.run(main())
    expect_no_thread_beside(before)


def test_a_server_that_is_dropped_closes():
    before = threads()

    async def main():
        server = mr.Server(recurrent())
        async with mr.connect(server.url) as session:
            await session.push([[1, 2, 3]])
            await session.flush()
            del server
            gc.collect()
            with pytest.raises((mr.ProtocolError, OSError)):
                while await session.next() is not None:
                    pass

    asyncio.run(main())
    expect_no_thread_beside(before)


def test_a_connection_attempt_is_cancelled():
    before = threads()

    async def main():
        with socket.socket() as silent:  # takes connections, and says nothing
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            attempt = asyncio.ensure_future(mr.connect(f"ws://127.0.0.1:{silent.getsockname()[1]}/stream").__aenter__())
            await asyncio.sleep(0.02)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt

    begin = time.monotonic()
    asyncio.run(main())
    expect_no_thread_beside(before)
    assert time.monotonic() - begin < 50


def test_a_server_of_several_models_gives_each_its_own():
    programs, x = {"first": recurrent(1), "second": recurrent(2)}, some_rows(np.random.default_rng(3), 20)
    step, states, narrow = one_step(), {"h": "h_next"}, np.ones((7, 2), np.float32)

    async def main():
        models = {**programs, "step": mr.Served(step, states=states)}
        async with mr.Server(models) as server:
            assert server.models == ["first", "second", "step"]
            got = {name: await ask(server.url, x, model=name) for name in programs}
            got[""] = await ask(server.url, x)
            got["by address"] = await ask(server.url.replace("tcp://", "ws://") + "/second", x)
            with pytest.raises(mr.ProtocolError, match="expected first, second, step, found 'third'") as refused:
                await ask(server.url, x, model="third")
            assert refused.value.code == "unknown_model"
            several = await ask(server.url, narrow, model="step")
        async with mr.Server(step, states=states) as alone:
            assert np.array_equal(several, await ask(alone.url, narrow, model="default"))
        return got

    got = asyncio.run(main())
    for name, made in got.items():
        whole = programs["second" if name in ("second", "by address") else "first"].run(x=[x])["y"]
        assert np.array_equal(made, whole.rows.numpy()), name
    for wrong, why in (({}, "expected a model, found none"), ({"now": programs["first"]}, "found .now.")):
        with pytest.raises(mr.ArgumentError, match=why):
            mr.Server(wrong)
    with pytest.raises(mr.ArgumentError, match="of each model in its Served"):
        mr.Server(programs, states=states)


def test_a_child_process_makes_its_server_again():
    async def serve(server):
        async with server:
            return (await ask(server.url, np.ones((2, WIDTH), np.float32))).shape

    server = mr.Server(recurrent())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                server.stats
            except mr.UnsupportedError as error:
                code = 0 if "forked" in str(error) and asyncio.run(serve(mr.Server(recurrent()))) == (2, 5) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(serve(server)) == (2, 5)


# ---- Access ----


@pytest.mark.parametrize("scheme", ["tcps", "wss"])
def test_tls_and_tokens(scheme, certificate):
    program, x = recurrent(), some_rows(np.random.default_rng(2), 9)
    wanted = program.run(x=[x])["y"].numpy()

    async def main():
        async with mr.Server(program, tls_cert=certificate[0], tls_key=certificate[1], tokens=[OTHER, TOKEN]) as server:
            url = url_of(server, scheme)
            assert server.url.startswith("tcps://")
            assert (await ask(url, x, token=TOKEN, tls_ca=certificate[0])).tobytes() == wanted.tobytes()
            assert (await ask(url, x, token=OTHER, insecure=True)).tobytes() == wanted.tobytes()
            with pytest.raises(OSError, match="certificate"):
                await ask(url, x, token=TOKEN)  # the system's authorities know nothing of it
            for token in ("", TOKEN + "x"):
                with pytest.raises((mr.ProtocolError, OSError)) as raised:
                    await ask(url, x, token=token, tls_ca=certificate[0])
                assert TOKEN not in str(raised.value)
            with pytest.raises(OSError):
                await ask(url_of(server, scheme[:-1]), x, token=TOKEN)
            with pytest.raises(mr.ArgumentError):
                await ask(url, x, token="short", tls_ca=certificate[0])
            with pytest.raises(mr.ArgumentError, match="tls_ca"):
                await ask(url_of(server, "tcp"), x, tls_ca=certificate[0])
            with pytest.raises(OSError):
                await ask(url, x, tls_ca=certificate[0] + ".none")
        with pytest.raises(OSError):
            mr.Server(program, tls_cert=certificate[0], tls_key=certificate[1] + ".none")
        with pytest.raises(mr.ParseError):
            mr.Server(program, tls_cert=certificate[1], tls_key=certificate[1])

    asyncio.run(main())


def test_tokens_of_a_file_are_read_again(tmp_path):
    file, x = tmp_path / "tokens", np.ones((1, WIDTH), np.float32)
    file.write_text(TOKEN + "\n")

    async def main():
        async with mr.Server(recurrent(), token_file=file) as server:
            await ask(server.url, x, token=TOKEN)
            file.write_text(OTHER + "\n")
            server.reload()
            with pytest.raises(mr.ProtocolError) as raised:
                await ask(server.url, x, token=TOKEN)
            assert raised.value.code == "refused"
            file.write_text("short\n")
            with pytest.raises(mr.ParseError):
                server.reload()
            await ask(server.url, x, token=OTHER)  # those in force stay

    asyncio.run(main())
    with pytest.raises(mr.ArgumentError, match="both"):
        mr.Server(recurrent(), token_file=file, tokens=[TOKEN])


def test_others_may_connect_where_it_is_said():
    async def main():
        async with mr.Server(recurrent(), address="0.0.0.0", insecure=True) as server:
            assert server.address == "0.0.0.0"
            await ask(url_of(server, "tcp"), np.ones((1, WIDTH), np.float32))

    asyncio.run(main())


def test_admission_refuses_beyond_the_capacity():
    async def main():
        async with mr.Server(recurrent(), capacity=10, session_rate=8) as server:
            async with mr.connect(server.url) as session:
                await session.flush()
                assert server.load["capacity"] == 10 and server.load["asked"] > 0
                with pytest.raises(mr.ProtocolError) as raised:
                    await ask(server.url, np.ones((1, WIDTH), np.float32))
                assert raised.value.code == "overload" and raised.value.retry_after_ms > 0
        async with mr.Server(recurrent(), capacity="measure") as server:
            assert server.load["capacity"] > 0
        async with mr.Server(recurrent(), limits={"sessions_per_address": 1}) as server:
            async with mr.connect(server.url) as session:
                await session.flush()
                with pytest.raises(mr.ProtocolError):
                    await ask(server.url, np.ones((1, WIDTH), np.float32))

    asyncio.run(main())


# ---- States ----


def test_a_state_goes_from_session_to_session_and_from_server_to_server():
    program, x, key = recurrent(), some_rows(np.random.default_rng(3), 12), os.urandom(32)
    wanted = program.run(x=[x])["y"].numpy()

    async def rest(session, x):
        await session.push(x)
        await session.finish()
        return await all_of(session)

    async def main():
        model, other = mr.LiveModel(program, state_key=key), mr.LiveModel(program, state_key=key)
        async with model.session() as session:
            await session.push(x[:5])
            state = await session.save()
            assert isinstance(state, bytes)
            async with await session.fork() as forked:
                assert (await rest(forked, x[5:])).tobytes() == wanted[5:].tobytes()
            assert (await rest(session, x[5:])).tobytes() == wanted.tobytes()
        async with other.session(state=state) as session:
            assert (await rest(session, x[5:])).tobytes() == wanted[5:].tobytes()
        with pytest.raises(mr.SavedStateError):
            async with mr.LiveModel(program).session(state=state):  # another key
                pass
        with pytest.raises(mr.ArgumentError):
            async with other.session(state=state, given={"h": 1.0}):
                pass
        async with mr.Server(program, state_key=key) as first, mr.Server(program, state_key=key) as second:
            async with mr.connect(first.url, state=state) as session:
                await session.push(x[5:8])
                assert (await session.next())["y"].shape[0] > 0
                saved = await session.save()
            async with mr.connect(second.url, state=saved) as session:
                assert (await rest(session, x[8:])).tobytes() == wanted[8:].tobytes()
            with pytest.raises(mr.ProtocolError) as raised:
                await ask(first.url, x, state=saved[:-1] + bytes([saved[-1] ^ 1]))
            assert raised.value.code == "bad_state"
            with pytest.raises(mr.SavedStateError, match="found no bytes"):
                async with mr.connect(first.url, state=b""):
                    pass
        with pytest.raises(mr.SavedStateError, match="found no bytes"):
            async with other.session(state=b""):
                pass
        for wrong in (5, "a text"):
            with pytest.raises(mr.ArgumentError, match=f"expected the bytes that `save` gave, or None, found a {type(wrong).__name__}"):
                async with other.session(state=wrong):
                    pass

    asyncio.run(main())


def test_a_server_that_goes_away_gives_the_state():
    program, x, key = recurrent(), some_rows(np.random.default_rng(4), 6), os.urandom(32)
    wanted = program.run(x=[x])["y"].numpy()

    async def main():
        made = []
        async with mr.Server(program, state_key=key) as server:
            async with mr.connect(server.url) as session:
                await session.push(x[:4])
                await session.flush()
                server.drain()
                with pytest.raises(mr.ProtocolError) as raised:
                    while (rows := await session.next()) is not None:
                        made.append(rows["y"].numpy())
        assert raised.value.code == "draining" and raised.value.state
        async with mr.LiveModel(program, state_key=key).session(state=raised.value.state) as session:
            await session.push(x[4:])
            await session.finish()
            made.append(await all_of(session))
        assert np.concatenate(made).tobytes() == wanted.tobytes()

    asyncio.run(main())


def test_rows_of_several_inputs_and_large_ones_go_over_the_network():
    program = mr.Program("two inputs")
    with program:
        a, b = mr.input("a", mr.f32, [None, 3], lod=1), mr.input("b", mr.f32, [None, 2000], lod=1)
        mr.output("a2", a * 2.0)
        mr.output("b2", b + 1.0)
    choose = np.random.default_rng(5)
    a, b = choose.standard_normal((90, 3)).astype(np.float32), choose.standard_normal((90, 2000)).astype(np.float32)

    async def main():
        async with mr.Server(program) as server:
            async with mr.connect(server.url) as session:

                async def feed():
                    for at in range(0, 90, 30):
                        await session.push(a=a[at : at + 30], b=b[at : at + 30])
                    await session.push(a=a[:0], b=b[:0])
                    await session.finish()

                feeding = asyncio.ensure_future(feed())
                made = [rows async for rows in session]
                await feeding
        for name, wanted in (("a2", a * 2), ("b2", b + 1)):
            assert np.concatenate([rows[name].numpy() for rows in made]).tobytes() == wanted.tobytes()
        model = mr.LiveModel(one_step(), states={"h": "h_next"})
        assert model.inputs == {"x": "f32[2]"}

    asyncio.run(main())


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_refused_connection_is_an_error_of_the_system_too(scheme):
    async def main():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))  # taken, and nobody listens
            with pytest.raises(ConnectionRefusedError) as raised:
                async with mr.connect(f"{scheme}://127.0.0.1:{free.getsockname()[1]}"):
                    pass
        assert isinstance(raised.value, mr.IoError) and isinstance(raised.value, mr.ConnectionRefusedError)
        assert raised.value.errno == errno.ECONNREFUSED and "Connection refused" in str(raised.value)

    asyncio.run(main())
