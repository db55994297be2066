# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/python.md and the examples, run as their readers do; and the types of the examples."""

import importlib.util
import inspect
import json
import os
import pathlib
import pydoc
import re
import runpy
import shutil
import subprocess
import sys
import venv

import pytest

import millrace as mr

HERE = pathlib.Path(__file__).parent
EXAMPLES = sorted((HERE.parent.parent / "apps/python/examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_guide():
    pytest.importorskip("torch")
    runpy.run_path(str(HERE / "guide.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples(example):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    made = subprocess.run([sys.executable, str(example)], env=env, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0 and made.stdout, made.stderr


def test_everything_public_has_a_docstring():
    without = []
    for module in (mr, mr.layers):
        for name in dir(module):
            value = getattr(module, name, None) if name != "torch" else None
            if name.startswith("_") or not callable(value) or type(value).__module__ == "__future__":
                continue
            if not (getattr(value, "__doc__", None) or "").strip():
                without.append(name)
    assert without == [], without


def test_methods_have_docstrings_and_help_shows_shapes():
    kinds = [mr.LiveModel, mr.LiveSession, mr.LiveProgram, mr.Server, mr.RemoteSession, mr.Trainer, mr.Optimizer, mr.Schedule]
    without = [f"{kind.__name__}.{name}" for kind in kinds for name in dir(kind) if not name.startswith("_") and not inspect.getdoc(getattr(kind, name))]
    assert set(without) <= {"Trainer.steps"}, without
    for what, words in [(mr.LiveModel, "states"), (mr.Trainer, "learning_rate"), (mr.softmax_cross_entropy_loss, "[rows, K]"), (mr.train, "on_epoch")]:
        assert words in pydoc.render_doc(what)


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed for this interpreter")
def test_pyright_accepts_the_examples(tmp_path):
    for example in EXAMPLES:
        shutil.copy(example, tmp_path)
    package = str(pathlib.Path(mr.__file__).parent.parent)
    # The stubs of NumPy 1.24 have members of partly unknown type.
    config = {"include": ["."], "extraPaths": [package], "typeCheckingMode": "strict", "pythonVersion": "3.11", "reportUnknownMemberType": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable]
    made = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed for this interpreter")
def test_pyright_knows_the_types_of_all_that_is_public(tmp_path):
    venv.create(tmp_path / "venv")  # pyright looks for the package by the `python` of PATH
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    folders = [spec.origin for spec in map(importlib.util.find_spec, ("millrace", "numpy", "torch")) if spec is not None and spec.origin is not None]
    (site / "packages.pth").write_text("\n".join(str(pathlib.Path(folder).parent.parent) for folder in folders))
    env = dict(os.environ, PATH=os.pathsep.join([str(tmp_path / "venv" / "bin"), os.environ["PATH"]]))
    command = [sys.executable, "-m", "pyright", "--verifytypes", "millrace", "--ignoreexternal"]
    made = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    score = re.search(r"Type completeness score: ([\d.]+)%", made.stdout)
    assert score is not None and float(score[1]) >= 99, made.stdout + made.stderr


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed for this interpreter")
def test_mypy_accepts_the_examples(tmp_path):
    methods = tmp_path / "methods.py"
    methods.write_text(
        "import millrace as mr\n\n\n"
        "def f(x: mr.Var) -> mr.Var:\n"
        "    y: mr.Var = x.relu().clamp(0, 6).transpose(0, 1).reshape(-1, 2).to('f64').sum(axis=[0, 1], keepdims=True).T\n"
        "    return mr.where(y > 0, y, 0).unsqueeze(0).maximum(0.5) + x.softmax().argmax(1)\n"
    )
    package = pathlib.Path(mr.__file__).parent.parent
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # mypy takes no package from there
    env["MYPYPATH"] = str(package)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir", str(tmp_path), str(methods), *map(str, EXAMPLES)]
    made = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert made.returncode == 0, made.stdout + made.stderr
