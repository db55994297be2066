# SPDX-License-Identifier: Apache-2.0
"""Writes the stubs of millrace._core: stubs.py FOLDER-OF-NANOBIND FOLDER-OF-THE-PACKAGE."""

import importlib.util
import pathlib
import re
import sys
import types

ALIASES = '''
ArrayOfNumPy: typing.TypeAlias = numpy.ndarray[typing.Any, typing.Any]
Slice: typing.TypeAlias = builtins.slice
Number: typing.TypeAlias = bool | int | float
DTypeLike: typing.TypeAlias = DType | str | type | typing.Any
TensorLike: typing.TypeAlias = "Tensor | Number | typing.Sequence[typing.Any] | typing.Any"
VarLike: typing.TypeAlias = "Var | TensorLike"
'''


def widen(line: str) -> str:
    """Arguments of type Var and Tensor take what becomes one; results stay as they are. A signature that was written by hand names these already."""
    match = re.match(r"(\s*def \w+\()(.*)(\) -> .*)$", line)
    if match is None or re.search(r"(Var|Tensor|DType)Like", line):
        return line
    head, arguments, result = match.groups()
    arguments = re.sub(r"(?<![\w.'])Var(?![\w.])", "VarLike", arguments)
    arguments = re.sub(r"(?<![\w.'])Tensor(?![\w.])", "TensorLike", arguments)
    return head + arguments + result


ATTRIBUTES = {"DeadlockError": "    waiters: list[tuple[str, str]]\n", "ProtocolError": "    code: str\n    retry_after_ms: int | None\n    state: bytes | None\n", "LiveError": "    session: int\n    step: int\n"}


def exceptions(core: types.ModuleType) -> str:
    """The classes of errors, which belong to `millrace`."""
    made = []
    found = [kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in sorted(found, key=lambda kind: (len(kind.__mro__) > len(core.Error.__mro__), kind.__name__)):
        bases = ", ".join(base.__name__ if issubclass(base, core.Error) else f"builtins.{base.__name__}" for base in kind.__bases__)
        body = ATTRIBUTES.get(kind.__name__, "")
        made.append(f'class {kind.__name__}({bases}):\n    """{kind.__doc__}"""\n{body}')
    return "\n".join(made)


def polish(text: str, core: types.ModuleType, main: bool) -> str:
    text = re.sub(r"^from millrace import \([^)]*\)\n", "", text, flags=re.M)
    text = re.sub(r"^(from millrace import .*|from millrace\._core import .*|import millrace.*)\n", "", text, flags=re.M)
    text = re.sub(r"(?<![\w.])millrace\._core\.(layers\.)?", "", text)
    text = re.sub(r"os\.PathLike(?!\[)", "os.PathLike[str]", text)
    text = re.sub(r"(?<=: )dict(?=[,)])", "dict[str, typing.Any]", text)
    lines = [widen(line) for line in text.split("\n")]
    text = "\n".join(line + "  # type: ignore[override]" if re.match(r"\s*def __(eq|ne)__\(", line) else line for line in lines)
    head = "import builtins\nimport collections.abc\nimport os\nimport typing\n\nimport numpy\n\n"
    if main:
        return head + ALIASES + "\n" + exceptions(core) + "\n" + text + "\nfrom . import layers\n"
    return head + "from . import DTypeLike, Tensor, TensorLike, Var, VarLike\n\n" + text


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
        generator = stubgen.StubGen(module, include_private=True)
        generator.put(module)
        (package / "_core" / f"{name}.pyi").write_text(polish(generator.get(), core, module is core))


if __name__ == "__main__":
    main()
