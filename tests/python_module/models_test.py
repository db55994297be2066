# SPDX-License-Identifier: Apache-2.0
"""Model files, files of tensors, layers, and modules of PyTorch."""

import errno
import os
import pathlib
import re
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest

import millrace as mr
from programs import random_sequences


def test_tensors_are_saved_and_loaded(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.int64), "c": np.zeros((0, 4), np.float16)}
    for name in ("tensors.safetensors", "tensors.npz"):
        mr.save(tmp_path / name, tensors)
        loaded = mr.load(tmp_path / name)
        assert loaded.keys() == tensors.keys()
        for key, array in tensors.items():
            assert loaded[key].numpy().dtype == array.dtype and np.array_equal(loaded[key].numpy(), array)
    with np.load(tmp_path / "tensors.npz") as theirs:
        assert np.array_equal(theirs["a"], tensors["a"])
    np.save(tmp_path / "one.npy", tensors["a"])
    assert mr.load(str(tmp_path / "one.npy")).tolist() == tensors["a"].tolist()
    with pytest.raises(mr.ArgumentError, match="safetensors or .npz"):
        mr.save(tmp_path / "tensors.txt", tensors)
    program = mr.Program("twice")
    with program:
        mr.output("y", mr.input("x", mr.f32, [None]) * mr.parameter("two", [2.0]))
    mr.save(tmp_path / "twice.mr", program)
    assert mr.load(tmp_path / "twice.mr").run(x=[1, 2])["y"].tolist() == [2, 4]
    with pytest.raises(OSError) as raised:
        mr.load(tmp_path / "missing.safetensors")
    assert isinstance(raised.value, mr.IoError)
    (tmp_path / "broken.npz").write_bytes(b"nonsense")
    with pytest.raises(mr.ParseError):
        mr.load(tmp_path / "broken.npz")


def fluid_bytes(array, lengths=None):
    """As SerializeToStream of Fluid writes a LoDTensor, version 0."""
    made = struct.pack("<I", 0)
    if lengths is None:
        made += struct.pack("<Q", 0)
    else:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
        made += struct.pack("<Q", 1) + struct.pack("<Q", offsets.nbytes) + offsets.tobytes()
    description = bytes([0x08, 5]) + b"".join(bytes([0x10, extent]) for extent in array.shape)
    return made + struct.pack("<I", 0) + struct.pack("<i", len(description)) + description + array.tobytes()


def test_fluid_folders_and_files(tmp_path):
    w, rows = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32).reshape(3, 1)
    (tmp_path / "w_0").write_bytes(fluid_bytes(w))
    (tmp_path / "rows").write_bytes(fluid_bytes(rows, [2, 1]))
    (tmp_path / "__model__").write_bytes(b"the program, which is not read")
    loaded = mr.load(tmp_path)
    assert list(loaded) == ["rows", "w_0"] and np.array_equal(loaded["w_0"].numpy(), w) and loaded["rows"].lengths == [2, 1]
    (tmp_path / "combined").write_bytes(fluid_bytes(w) + fluid_bytes(rows))
    both = mr.load_fluid(tmp_path / "combined")
    assert [tensor.shape for tensor in both] == [(2, 3), (3, 1)]


def torch_outputs(torch, module, sequences, states=None):
    """Sequence by sequence: rows, and the last states stacked as PyTorch does."""
    rows, last = [], []
    with torch.no_grad():
        for sequence in sequences:
            x = torch.from_numpy(sequence)[:, None]
            y, state = module(x)
            rows.append(y[:, 0].numpy())
            last.append([s[:, 0].numpy() for s in (state if isinstance(state, tuple) else (state,))])
    return rows, last


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers, bidirectional, bias, extra", [(1, False, True, {}), (2, True, True, {}), (1, True, False, {}), (2, False, True, {"extra": True})])
def test_recurrent_modules_of_pytorch(kind, layers, bidirectional, bias, extra):
    torch = pytest.importorskip("torch")
    torch.manual_seed(layers)
    options = {}
    if extra and kind == "LSTM":
        options["proj_size"] = 5
    if extra and kind == "RNN":
        options["nonlinearity"] = "relu"
    module = getattr(torch.nn, kind)(6, 9, layers, bidirectional=bidirectional, bias=bias, **options).eval()
    random = np.random.default_rng(layers)
    sequences = [s for s in random_sequences(random, 6, count=7) if len(s)]
    rows, last = torch_outputs(torch, module, sequences)
    result = mr.from_torch(module).run(x=sequences)
    for ours, theirs in zip(result["y"], rows):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)
    names = ["h", "c"] if kind == "LSTM" else ["h"]
    for which, name in enumerate(names):
        np.testing.assert_allclose(result[name].numpy(), np.stack([state[which] for state in last], 1), atol=1e-5)
    dense = torch.randn(8, 3, 6)
    with torch.no_grad():
        y, _ = module(dense)
    np.testing.assert_allclose(mr.from_torch(module, ragged=False).run(x=dense)["y"].numpy(), y.numpy(), atol=1e-5)


def test_a_sequential_of_pytorch_and_what_has_no_counterpart():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(nn.Embedding(20, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3, bias=False), nn.Softmax(-1)).eval()
    ids = [np.array([1, 5, 3]), np.array([], np.int64), np.array([19])]
    y = mr.from_torch(module).run(x=ids)["y"]
    for ours, theirs in zip(y, ids):
        with torch.no_grad():
            np.testing.assert_allclose(ours.numpy(), module(torch.from_numpy(theirs)).numpy(), atol=1e-6)
    with pytest.raises(mr.UnsupportedError, match="found Conv2d"):
        mr.from_torch(nn.Conv2d(1, 1, 1))
    with pytest.raises(mr.UnsupportedError, match="dropout"):
        mr.from_torch(nn.LSTM(2, 2, 2, dropout=0.5))
    with pytest.raises(mr.ArgumentError, match="opset_version"):
        mr.from_torch(nn.Linear(1, 1), opset_version=11)


def test_modules_that_do_not_compute_what_their_class_does_are_refused():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    class Twice(nn.LSTM):
        def forward(self, x, states=None):
            y, last = super().forward(x, states)
            return 2 * y, last

    class Scale(nn.Linear):
        def forward(self, x):
            return 10 * super().forward(x)

    replaced = nn.Linear(3, 3)
    replaced.forward = lambda x: x
    for module in (Residual(nn.Linear(3, 3)), Twice(3, 3), Scale(3, 3), nn.Sequential(nn.ReLU(), Scale(3, 3)), replaced):
        with pytest.raises(mr.UnsupportedError, match="found one of .* own: give example inputs"):
            mr.from_torch(module)
    hooked, watched = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))
    hooked.register_forward_hook(lambda module, x, y: 2 * y)
    watched.register_forward_pre_hook(lambda module, x: (2 * x[0],))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = nn.utils.weight_norm(nn.Linear(3, 3))
    for module in (hooked, watched, normed):
        with pytest.raises(mr.UnsupportedError, match="hooks of"):
            mr.from_torch(module)
    with pytest.raises(mr.UnsupportedError, match="max_norm, found 0.5"):
        mr.from_torch(nn.Embedding(5, 3, max_norm=0.5))
    with pytest.raises(mr.UnsupportedError, match=r"call module.eval\(\)"):
        mr.from_torch(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)))
    example = torch.randn(2, 3)
    scale = Scale(3, 3)
    program = mr.from_torch(scale, [example], input_names=["x"], output_names=["y"])
    with torch.no_grad():
        np.testing.assert_allclose(program.run(x=example)["y"].numpy(), scale(example).numpy(), atol=1e-5)


def test_derived_classes_and_parametrized_modules_of_pytorch():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Named(nn.Linear):
        purpose = "scores"

    x = torch.randn(4, 3)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval()
    for module in (Named(3, 3), normed, nn.Sequential(normed, Named(3, 2))):
        with torch.no_grad():
            np.testing.assert_allclose(mr.from_torch(module).run(x=[x])["y"].numpy(), module(x).numpy(), atol=1e-6)


def test_a_lone_example_is_one_input():
    torch = pytest.importorskip("torch")
    program = mr.from_torch(torch.nn.Flatten(), torch.zeros(1, 3), input_names=["x"], output_names=["y"])
    assert program.inputs == {"x": "f32[1, 3]"}


def test_activations_of_pytorch():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    x = torch.linspace(-8, 8, 33).reshape(11, 3)
    for kind in (nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.5), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Softsign(), nn.Hardtanh(-2, 3), nn.Tanh(), nn.Sigmoid(), nn.Identity(),
                 nn.CELU(2.0), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.LayerNorm(3, eps=0.1, elementwise_affine=False)):
        module = nn.Sequential(nn.Linear(3, 3), kind).eval()
        with torch.no_grad():
            np.testing.assert_allclose(mr.from_torch(module).run(x=[x])["y"].numpy(), module(x).numpy(), atol=1e-5, err_msg=str(kind))


def test_a_module_that_is_refused_is_named_with_its_settings():
    nn = pytest.importorskip("torch").nn
    for kind, named in ((nn.Softmax(dim=1), r"Softmax\(dim=1\)"), (nn.LayerNorm((2, 3)), r"LayerNorm\(\(2, 3\)"), (nn.GLU(), r"GLU\(dim=-1\)")):
        with pytest.raises(mr.UnsupportedError, match="a softmax with dim -1, or a Sequential of them, found " + named):
            mr.from_torch(nn.Sequential(nn.Linear(3, 3), kind))


def test_an_exported_module_of_pytorch():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.onnx")

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.gru, self.out = torch.nn.Conv1d(4, 8, 3, padding=1), torch.nn.GRU(8, 8, batch_first=True), torch.nn.Linear(8, 2)

        def forward(self, x):
            y, _ = self.gru(torch.relu(self.conv(x)).transpose(1, 2))
            return self.out(y).softmax(-1)

    module, x = Detector().eval(), torch.randn(2, 4, 10)
    try:
        program = mr.from_torch(module, [x], input_names=["x"], output_names=["y"], opset_version=13)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"this PyTorch exports nothing: {error}")
    with torch.no_grad():
        np.testing.assert_allclose(program.run(x=x)["y"].numpy(), module(x).numpy(), atol=1e-5)


def test_layers_with_states_of_the_callers():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.GRU(3, 4).eval()
    program = mr.Program()
    with program:
        x, h0 = mr.input("x", mr.f32, [None, 3], lod=1), mr.input("h0", mr.f32, [None, 4])
        weights = mr.layers.gru_from_pytorch(*(p.detach() for p in (module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0)))
        made = mr.layers.gru(x, weights, h=h0)
        mr.output("y", made.y)
        mr.output("h", made.h[0])
    sequences, states = [np.random.default_rng(i).standard_normal((i + 1, 3)).astype(np.float32) for i in range(4)], torch.randn(4, 4)
    result = program.run(x=sequences, h0=states)
    for i, sequence in enumerate(sequences):
        with torch.no_grad():
            y, h = module(torch.from_numpy(sequence)[:, None], states[i][None, None])
        np.testing.assert_allclose(result["y"][i].numpy(), y[:, 0].numpy(), atol=1e-6)
        np.testing.assert_allclose(result["h"][i].numpy(), h[0, 0].numpy(), atol=1e-6)
    for wrong in ({"direction": "backwards"}, {"reset": "never"}, {"keeps": "all"}):
        with mr.Program():
            with pytest.raises(mr.ArgumentError):
                mr.layers.gru(mr.input("x", mr.f32, [None, 3], lod=1), weights, **wrong)


def test_a_loaded_program_is_built_upon(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(4)
    net, x, target = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)), torch.randn(5, 3), torch.randn(5, 2)
    mr.export_onnx(mr.from_torch(net, [x], input_names=["x"], output_names=["y"]), tmp_path / "net.onnx")
    program, other = mr.load(tmp_path / "net.onnx"), mr.Program("other")
    with program:
        mr.output("loss", mr.mean_squared_error(program.var("y"), mr.input("target", mr.f32, [None, 2])))
        mr.output("sums", mr.sum(program.var("x"), [1]))
        weight = next(name for name, value in program.parameters.items() if value.shape == (4, 2) or value.shape == (2, 4))
        mr.output("weight", program.var(weight))
        with pytest.raises(mr.KeyError, match="expected one of y, loss, sums, weight, x, target, or a weight, found 'z'"):
            program.var("z")
        with other, pytest.raises(mr.ProgramError, match="expected `with` of program '.*', found that of 'other'"):
            program.var("y")
    with pytest.raises(mr.ProgramError):
        program.var("y")
    names = mr.append_backward(program, "loss", with_respect_to=["x"])
    made = program.run(x=x, target=target)
    x.requires_grad_()
    loss = torch.nn.functional.mse_loss(net(x), target)
    loss.backward()
    np.testing.assert_allclose(made["loss"].numpy(), loss.item(), rtol=1e-5)
    np.testing.assert_allclose(made[names["x"]].numpy(), x.grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(made["sums"].numpy(), x.detach().sum(1).numpy(), atol=1e-5)
    np.testing.assert_array_equal(made["weight"].numpy(), program.parameters[weight].numpy())


def test_onnx_there_and_back(tmp_path):
    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 3], lod=1)
        mr.output("y", mr.layers.rnn(x, mr.layers.RnnWeights(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32) / 2)).y)
    try:
        mr.export_onnx(program, tmp_path / "rnn.onnx")
    except mr.UnsupportedError as error:
        pytest.skip(str(error))
    rows = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    again = mr.load(tmp_path / "rnn.onnx")
    assert isinstance(again, mr.Program)
    np.testing.assert_allclose(again.run(x=rows)["y"].numpy(), program.run(x=[rows])["y"].numpy(), atol=1e-6)
    assert mr.parse_onnx((tmp_path / "rnn.onnx").read_bytes()).inputs.keys() == {"x"}
    with pytest.raises(mr.ParseError):
        mr.parse_onnx(b"nonsense")


def uses_of_files(path):
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [2]) * mr.parameter("w", np.ones(2, np.float32)))
    return {
        "load": [lambda: mr.load(path / "a.npz"), lambda: mr.load_program(path / "a.mr"), lambda: mr.load_fluid(path / "a")],
        "save": [
            lambda: mr.save(path / "a.npz", {"a": np.ones(2)}),
            lambda: mr.save(path / "a.safetensors", {}),
            lambda: program.save(path / "a.mr"),
            lambda: mr.export_onnx(program, path / "a.onnx"),
        ],
    }


@pytest.mark.parametrize("use", ["load", "save"])
def test_a_file_or_a_folder_that_is_absent_is_an_error_of_the_system_too(tmp_path, use):
    for call in uses_of_files(tmp_path / "absent")[use]:
        with pytest.raises(FileNotFoundError) as raised:
            call()
        error = raised.value
        assert isinstance(error, mr.FileNotFoundError) and isinstance(error, mr.IoError) and isinstance(error, mr.Error)
        assert error.errno == errno.ENOENT and error.strerror == os.strerror(errno.ENOENT) and error.filename.startswith(str(tmp_path / "absent/a"))
        assert "No such file or directory" in str(error) and str(tmp_path) in str(error)


def test_a_folder_that_may_not_be_written_is_a_permission_error(tmp_path):
    script = """
import errno, os, sys
import numpy as np
import millrace as mr
sys.path.insert(0, os.environ["TESTS"])
from models_test import pathlib, uses_of_files
if os.getuid() == 0:
    os.setuid(65534)  # root may write everywhere
for use in ("save", "load"):
    for call in uses_of_files(pathlib.Path(sys.argv[1]))[use]:
        try:
            call()
        except PermissionError as error:
            assert isinstance(error, mr.PermissionError) and isinstance(error, mr.IoError), type(error)
            assert error.errno == errno.EACCES and error.filename.startswith(sys.argv[1]), (error.errno, error.filename)
        else:
            raise AssertionError(call)
print("refused")
"""
    folder = tmp_path / "shut"
    folder.mkdir()
    folder.chmod(0)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), TESTS=os.path.dirname(__file__))
    made = subprocess.run([sys.executable, "-c", script, str(folder)], env=environment, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0 and made.stdout == "refused\n", made.stdout + made.stderr


def test_dense_modules_take_one_rank_and_name_it():
    nn = pytest.importorskip("torch").nn
    recurrent = nn.LSTM(3, 4).eval()
    for module, dtype, whole, words in [
        (recurrent, np.float32, (5, 2, 3), "f32[?, ?, 3]"),
        (nn.GRU(3, 4, batch_first=True).eval(), np.float32, (2, 5, 3), "f32[?, ?, 3]"),
        (nn.Linear(3, 2), np.float32, (5, 2, 3), "f32[?, ?, 3]"),
        (nn.Embedding(7, 3), np.int64, (5, 2), "i64[?, ?]"),
        (nn.ReLU(), np.float32, (5, 2, 3), "f32[?, ?, ?]"),
    ]:
        program = mr.from_torch(module, ragged=False)
        x = np.zeros(whole, dtype)
        assert program.inputs["x"] == words and program.run(x=x)["y"].shape[:2] == whole[:2]
        for other in (x[0], x[None]):
            found = f"{words[:3]}[{', '.join(map(str, other.shape))}]"
            with pytest.raises(mr.ShapeError, match=re.escape(f"input 'x': expected {words}, found {found}")):
                program.run(x=other)
    assert "rank 3" in mr.from_torch.__doc__
