# SPDX-License-Identifier: Apache-2.0
"""`millrace run` gives what ONNX Runtime gives on recurrent networks: RNN, GRU and LSTM with random attributes, lengths and shapes, and, where
PyTorch is installed, what its exporter writes. f32 within 1e-5. Prints the seed; MILLRACE_SEED runs one."""
import io
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MILLRACE = os.path.join(os.environ.get("MILLRACE_BIN", "build/release/bin"), "millrace")
if not os.path.exists(MILLRACE):
    print(f"skipped: no {MILLRACE}")
    sys.exit(77)

TYPES = {np.dtype("f4"): TensorProto.FLOAT, np.dtype("i8"): TensorProto.INT64, np.dtype("i4"): TensorProto.INT32}
KINDS = {"RNN": (1, 1, 1), "GRU": (3, 1, 2), "LSTM": (4, 2, 3)}  # gates, states, functions
FUNCTIONS = {  # name -> (takes alpha, takes beta)
    "Sigmoid": (0, 0), "Tanh": (0, 0), "Relu": (0, 0), "Softsign": (0, 0), "Softplus": (0, 0), "Elu": (1, 0), "LeakyRelu": (1, 0),
    "ThresholdedRelu": (1, 0), "Affine": (1, 1), "ScaledTanh": (1, 1), "HardSigmoid": (1, 1),
}


def compare(title, model, inputs):
    """`model`: bytes; `inputs`: arrays by name."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        with open(path, "wb") as file:
            file.write(model)
        command = [MILLRACE, "run", path, "--output-dir", os.path.join(folder, "out")]
        for i, (key, value) in enumerate(inputs.items()):
            np.save(os.path.join(folder, f"{i}.npy"), value)
            command += ["--input", f"{key}={folder}/{i}.npy"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert made.returncode == 0, f"{title}: {made.stderr}"
        for name, expected in zip(names, session.run(names, inputs)):
            found = np.load(os.path.join(folder, "out", f"{name}.npy"))
            assert found.dtype == expected.dtype and found.shape == expected.shape, (title, name, found.dtype, found.shape, expected.dtype, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=f"{title}: {name}")


def functions(rng, count):
    """Random functions, with the numbers of those that have some. A growing one would leave nothing to compare."""
    names = [str(name) for name in rng.choice(list(FUNCTIONS), count)]
    attributes = {"activations": names}
    alphas = [float(rng.uniform(0.1, 0.9)) for name in names if FUNCTIONS[name][0]]
    betas = [float(rng.uniform(0.1, 0.9)) for name in names if FUNCTIONS[name][1]]
    if alphas:
        attributes["activation_alpha"] = alphas
    if betas:
        attributes["activation_beta"] = betas
    return attributes


def random_node(rng):
    """One recurrent node: its model and its inputs."""
    op = str(rng.choice(list(KINDS)))
    gates, states, per_direction = KINDS[op]
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    t, b, c, h = (int(rng.integers(1, limit)) for limit in (9, 6, 7, 11))
    attributes = {"hidden_size": h, "direction": direction}
    if rng.random() < 0.4:
        attributes.update(functions(rng, d * per_direction))
    if rng.random() < 0.3:
        attributes["clip"] = float(rng.uniform(0.2, 1))
    if op == "GRU" and rng.random() < 0.5:
        attributes["linear_before_reset"] = 1
    if op == "LSTM" and rng.random() < 0.3:
        attributes["input_forget"] = 1

    def floats(*shape, scale=0.5):
        return (rng.standard_normal(shape) * scale).astype("f4")

    values = {"X": floats(t, b, c, scale=1), "W": floats(d, gates * h, c), "R": floats(d, gates * h, h, scale=0.3)}
    if rng.random() < 0.7:
        values["B"] = floats(d, 2 * gates * h)
    if rng.random() < 0.6:
        values["lens"] = rng.integers(0, t + 1, b).astype("i4")
    if rng.random() < 0.6:
        values["h0"] = floats(d, b, h)
    if op == "LSTM" and rng.random() < 0.6:
        values["c0"] = floats(d, b, h)
    if op == "LSTM" and rng.random() < 0.4:
        values["P"] = floats(d, 3 * h)
    order = ["X", "W", "R", "B", "lens", "h0"] + (["c0", "P"] if op == "LSTM" else [])
    names = [name if name in values else "" for name in order]
    while names[-1] == "":
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 1 + states]
    wanted = [name if rng.random() < 0.8 else "" for name in outputs]
    if not any(wanted):
        wanted = outputs
    nodes = [helper.make_node(op, names, wanted, **attributes)]
    fed = {name: values[name] for name in ("X", "lens", "h0", "c0") if name in values}
    weights = [numpy_helper.from_array(value, name) for name, value in values.items() if name not in fed]
    infos = [helper.make_tensor_value_info(name, TYPES[value.dtype], [f"{name}{i}" if rng.random() < 0.5 else n for i, n in enumerate(value.shape)]) for name, value in fed.items()]
    graph = helper.make_graph(nodes, "graph", infos, [helper.make_empty_tensor_value_info(name) for name in wanted if name], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", int(rng.choice([7, 13, 14, 22])))], ir_version=8)
    return f"{nodes[0].op_type} {attributes} lens {values.get('lens')}", model.SerializeToString(), fed


def random_nodes(seed):
    rng = np.random.default_rng(seed)
    for _ in range(int(os.environ.get("MILLRACE_CASES", 25))):
        title, model, inputs = random_node(rng)
        compare(f"seed {seed}: {title}", model, inputs)


def main():
    seeds = [int(os.environ["MILLRACE_SEED"])] if "MILLRACE_SEED" in os.environ else range(1, 4)
    for seed in seeds:
        print(f"seed {seed}: random nodes", flush=True)
        random_nodes(seed)
    print("every output is within 1e-5 of ONNX Runtime's")


if __name__ == "__main__":
    main()
