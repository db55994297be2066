# SPDX-License-Identifier: Apache-2.0
"""Writes the stubs of millrace._core: stubs.py FOLDER-OF-NANOBIND FOLDER-OF-THE-PACKAGE."""

import importlib.util
import pathlib
import re
import sys

ALIASES = '''
Number: typing.TypeAlias = bool | int | float
DTypeLike: typing.TypeAlias = DType | str | type | typing.Any
TensorLike: typing.TypeAlias = "Tensor | Number | typing.Sequence[typing.Any] | typing.Any"
VarLike: typing.TypeAlias = "Var | TensorLike"
'''


def widen(line: str) -> str:
    """Arguments of type Var, Tensor and Sequence of them take what becomes one; results stay as they are."""
    match = re.match(r"(\s*def \w+\()(.*)(\) -> .*)$", line)
    if match is None:
        return line
    head, arguments, result = match.groups()
    arguments = re.sub(r"(?<![\w.'])Var(?![\w.])", "VarLike", arguments)
    arguments = re.sub(r"(?<![\w.'])Tensor(?![\w.])", "TensorLike", arguments)
    return head + arguments + result


def polish(text: str, main: bool) -> str:
    lines = [widen(line) for line in text.split("\n")]
    made = []
    for line in lines:
        if re.match(r"\s*def __(eq|ne)__\(", line):
            line += "  # type: ignore[override]"
        made.append(line)
    text = "\n".join(made)
    names = [name for name in ("Var", "Tensor", "VarLike", "TensorLike", "DTypeLike") if re.search(rf"\b{name}\b", text)]
    imports = {"typing": "import typing", "collections.abc": "import collections.abc", "os": "import os", "numpy.typing": "import numpy.typing"}
    text = re.sub(r"^(import (typing|collections|collections\.abc|os|numpy|numpy\.typing)|from typing import .*|from \. import .*|import millrace.*)\n", "", text, flags=re.M)
    text = re.sub(r"(?<![\w.])millrace\._core\.(layers\.)?", "", text)
    text = re.sub(r"(?<![\w.])(Sequence|Mapping|Callable|Iterator)\[", r"collections.abc.\1[", text)
    text = re.sub(r"(?<![\w.])(Any|overload)\b", r"typing.\1", text)
    head = "\n".join(imports.values()) + "\n"
    if main:
        return head + ALIASES + text + "\nfrom . import layers as layers\n"
    return head + "from . import " + ", ".join(names) + "\n\n" + text


def main() -> None:
    nanobind, package = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location("stubgen", next(p for p in (nanobind / "src/stubgen.py", nanobind / "stubgen.py") if p.exists()))
    stubgen = importlib.util.module_from_spec(spec)
    sys.modules["stubgen"] = stubgen
    spec.loader.exec_module(stubgen)
    sys.path.insert(0, str(package.parent))
    # Not by `import millrace`: the package's own files need not be there yet.
    found = next(package.glob("_core.*so"))
    spec = importlib.util.spec_from_file_location("millrace._core", found)
    core = importlib.util.module_from_spec(spec)
    sys.modules["millrace._core"] = core
    spec.loader.exec_module(core)
    (package / "_core").mkdir(exist_ok=True)
    for module, name in ((core, "__init__"), (core.layers, "layers")):
        generator = stubgen.StubGen(module)
        generator.put(module)
        (package / "_core" / f"{name}.pyi").write_text(polish(generator.get(), module is core))


if __name__ == "__main__":
    main()
