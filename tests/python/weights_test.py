# SPDX-License-Identifier: Apache-2.0
"""apps/convert/weights.py: what it makes of weights of PyTorch and Keras has the bits of this library's own conversions, and gives what
plain NumPy in float64 gives on the source's layout; torch itself and h5py are asked where they are installed. Prints the seed."""
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "..", "apps", "convert", "weights.py")
spec = importlib.util.spec_from_file_location("weights", SCRIPT)
weights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(weights)

C, H, T, N = 3, 4, 5, 2
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def walk(kind, x, a, r, b, hidden, project=None, reset="after"):
    """One direction: x [T, N, C]; a(x) [N, G, H] and r(h) are the parts before the gates, each in the order of PyTorch."""
    h, c, rows = np.zeros((N, hidden if project is None else project.shape[1])), np.zeros((N, hidden)), []
    for row in x:
        p, q = a(row), r(h)
        if kind == "rnn":
            h = np.tanh(p[:, 0] + q[:, 0])
        elif kind == "lstm":
            i, f, g, o = ((p + q)[:, k] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            h = h if project is None else h @ project
        else:
            gate, z = sigmoid(p[:, 0] + q[:, 0]), sigmoid(p[:, 1] + q[:, 1])
            n = np.tanh(p[:, 2] + (gate * q[:, 2] if reset == "after" else b(gate * h)))
            h = z * h + (1 - z) * n
        rows.append(h)
    return np.stack(rows)


def both_ways(run, x, directions):
    y = [run(0, x)]
    if directions == 2:
        y.append(run(1, x[::-1])[::-1])
    return np.concatenate(y, axis=2)


def torch_state(rng, kind, levels, directions, bias, projection):
    state, g, width = {}, GATES[kind], C
    out = projection or H
    draw = lambda *shape: (rng.standard_normal(shape) * 0.5).astype("f4")
    for level in range(levels):
        for direction in range(directions):
            suffix = f"l{level}" + ("_reverse" if direction else "")
            state[f"net.weight_ih_{suffix}"], state[f"net.weight_hh_{suffix}"] = draw(g * H, width), draw(g * H, out)
            if bias:
                state[f"net.bias_ih_{suffix}"], state[f"net.bias_hh_{suffix}"] = draw(g * H), draw(g * H)
            if projection:
                state[f"net.weight_hr_{suffix}"] = draw(projection, H)
        width = out * directions
    return state


def torch_reference(kind, state, x, levels, directions):
    x = x.astype("f8")
    for level in range(levels):

        def run(direction, over):
            part = lambda name: state[f"net.{name}_l{level}" + ("_reverse" if direction else "")].astype("f8") if f"net.{name}_l{level}" + ("_reverse" if direction else "") in state else None
            split = lambda w, bias: lambda v: (v @ w.T + (0 if bias is None else bias)).reshape(N, -1, H)
            hr = part("weight_hr")
            return walk(kind, over, split(part("weight_ih"), part("bias_ih")), split(part("weight_hh"), part("bias_hh")), None, H, None if hr is None else hr.T)

        x = both_ways(run, x, directions)
    return x


def convert(source, output):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert weights.main([source, output]) == 0, source
    assert "layer net: " in said.getvalue(), said.getvalue()


def save(folder, name, tensors, words):
    weights.write_safetensors(os.path.join(folder, name + ".safetensors"), tensors, {key: str(value) for key, value in words.items()})


def torch_case(rng, folder, scratch, name, kind, levels=1, directions=1, bias=True, projection=0):
    state = torch_state(rng, kind, levels, directions, bias, projection)
    source, output = os.path.join(scratch, name + ".safetensors"), os.path.join(scratch, name + ".out.safetensors")
    weights.write_safetensors(source, state, {})
    convert(source, output)
    x = rng.standard_normal((T, N, C)).astype("f4")
    want = torch_reference(kind, state, x, levels, directions)
    tensors = {"x": x, "want": want.astype("f4"), **weights.read_safetensors(output)}
    for key, value in state.items():
        part, suffix = key[len("net.") :].rsplit("_l", 1)
        tensors[f"raw.{part}.{int(suffix[0]) * directions + suffix.endswith('reverse')}"] = value
    save(folder, name, tensors, {"kind": kind, "source": "torch", "directions": directions, "reset": "after"})
    try:
        import torch
    except ImportError:
        return
    net = getattr(torch.nn, kind.upper())(C, H, num_layers=levels, bidirectional=directions == 2, bias=bias, **({"proj_size": projection} if projection else {}))
    net.load_state_dict({key[len("net.") :]: torch.from_numpy(value) for key, value in state.items()})
    with torch.no_grad():
        np.testing.assert_allclose(net(torch.from_numpy(x))[0].numpy(), want, rtol=1e-5, atol=1e-5, err_msg=name)
    pickled, again = os.path.join(scratch, name + ".pt"), os.path.join(scratch, name + ".again.safetensors")
    torch.save({"state_dict": {key: torch.from_numpy(value) for key, value in state.items()}}, pickled)
    convert(pickled, again)
    assert open(again, "rb").read() == open(output, "rb").read(), name


def keras_case(rng, folder, scratch, name, kind, directions=1, bias=True, reset="after", numbered=False):
    g = GATES[kind]
    draw = lambda *shape: (rng.standard_normal(shape) * 0.5).astype("f4")
    rows = (2, g * H) if kind == "gru" and reset == "after" else (g * H,)
    cells = [[draw(C, g * H), draw(H, g * H)] + ([draw(*rows)] if bias else []) for _ in range(directions)]
    parts = ["kernel", "recurrent_kernel", "bias"]
    tree, tensors = {}, {}
    for k, cell in enumerate(cells):
        way = ("backward_layer" if k else "forward_layer") + "/" if directions == 2 else ""
        for i, value in enumerate(cell):
            tree[f"layers/net/{way}cell/vars/{i}" if numbered else f"net/{way.replace('layer', 'net')}{kind}_cell/{parts[i]}:0"] = value
            tensors[f"raw.{parts[i]}.{k}"] = value
    made, notes = weights.from_keras(tree)
    x = rng.standard_normal((T, N, C)).astype("f4")

    def run(direction, over):
        kernel, recurrent, *rest = (part.astype("f8") for part in cells[direction])
        both = rest[0].reshape(-1, g * H) if rest else np.zeros((1, g * H))
        order = [1, 0, 2] if kind == "gru" else list(range(g))  # Keras' GRU stands z r h
        split = lambda w, b: lambda v: (v @ w + b).reshape(N, g, H)[:, order]
        second = both[1] if len(both) == 2 else 0
        return walk(kind, over, split(kernel, both[0]), split(recurrent, second), lambda h: (h @ recurrent)[:, 2 * H :], H, None, reset)

    tensors.update(made, x=x, want=both_ways(run, x.astype("f8"), directions).astype("f4"))
    save(folder, name, tensors, {"kind": kind, "source": "keras", "directions": directions, "reset": reset})
    assert "layer net" in notes and (kind != "gru" or reset in notes["layer net"]), notes
    try:
        import h5py
    except ImportError:
        return
    path = os.path.join(scratch, name + ".weights.h5")
    with h5py.File(path, "w") as file:
        for key, value in tree.items():
            file[key] = value
    again, _ = weights.convert(path)
    assert again.keys() == made.keys() and all(np.array_equal(again[key], made[key]) for key in made), name


def other_layers():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype("f4")
    state = {"words.weight": draw(9, 3), "out.weight": draw(2, 4), "out.bias": draw(2), "bare.weight": draw(2, 4), "conv.weight": draw(5, 3, 2), "norm.weight": draw(4), "norm.bias": draw(4), "scale": draw(1)}
    try:
        weights.from_torch(state)
        raise AssertionError("expected a refusal")
    except weights.Refused as error:
        assert "words" in str(error) and "bare" in str(error) and "out" not in str(error).replace("without", ""), error
    made, _ = weights.from_torch(state, linear=["bare"], embedding=["words"])
    assert np.array_equal(made["words_table"], state["words.weight"]) and np.array_equal(made["out_weight"], state["out.weight"].T)
    assert np.array_equal(made["bare_weight"], state["bare.weight"].T) and np.array_equal(made["out_bias"], state["out.bias"])
    assert np.array_equal(made["conv_weight"], state["conv.weight"].transpose(2, 1, 0)) and np.array_equal(made["scale"], state["scale"])
    assert np.array_equal(made["norm_scale"], state["norm.weight"]) and np.array_equal(made["norm_bias"], state["norm.bias"])
    assert len(made) == len(state)


def refusals(scratch):
    def refusal(*arguments):
        done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
        assert done.stderr.count("\n") == 1 or done.returncode == 2, done.stderr
        return done.returncode, done.stderr

    output = os.path.join(scratch, "out.safetensors")
    for name, content in (("x.safetensors", b"no"), ("x.pt", b"no pickle"), ("x.txt", b"")):
        path = os.path.join(scratch, name)
        with open(path, "wb") as file:
            file.write(content)
        code, text = refusal(path, output)
        assert code == 1 and name in text, (code, text)
    assert refusal(os.path.join(scratch, "nothing.safetensors"), output)[0] == 1
    assert refusal()[0] == 2
    assert not os.path.exists(output)


def main():
    oracle.need(oracle.TEST_RUNTIME)
    other_layers()
    for seed in oracle.seeds((1, 2)):
        print(f"seed {seed}", flush=True)
        rng = np.random.default_rng(seed)
        with oracle.vectors_folder("converted") as folder, tempfile.TemporaryDirectory() as scratch:
            refusals(scratch)
            for kind in GATES:
                torch_case(rng, folder, scratch, f"torch_{kind}", kind)
                torch_case(rng, folder, scratch, f"torch_{kind}_stack", kind, levels=2, directions=2, bias=kind != "rnn")
                keras_case(rng, folder, scratch, f"keras_{kind}", kind)
                keras_case(rng, folder, scratch, f"keras_{kind}_both", kind, directions=2, numbered=True, bias=kind != "lstm")
            torch_case(rng, folder, scratch, "torch_lstm_projection", "lstm", levels=2, directions=2, projection=2)
            keras_case(rng, folder, scratch, "keras_gru_before", "gru", reset="before")
            run = subprocess.run([oracle.TEST_RUNTIME, "--test-case=weights that the script converted*"], env={**os.environ, "MILLRACE_CONVERTED_WEIGHTS": folder}, capture_output=True, text=True, timeout=200)
            print(run.stdout, run.stderr)
            assert run.returncode == 0 and "skipped:" not in run.stdout


if __name__ == "__main__":
    main()
