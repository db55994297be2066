# SPDX-License-Identifier: Apache-2.0
"""The node tests of the `onnx` package: each is imported and run. A test passes, or the model is refused by an error that names the reason. No test may give
other numbers. docs/onnx_nodes.md lists what is refused.

    onnx_nodes_test.py [--write] [WORD...]    prints the tests whose names hold one of the words, and why they do not pass; writes the page
"""
import pathlib
import re
import sys
import warnings

import numpy as np
import pytest

import millrace as mr

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")
numpy_helper = onnx.numpy_helper

VERSION = "1.23.2"  # generators of another version make other tests
LEAST = 1774        # of 1,884: fewer is a regression
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "onnx_nodes.md"

# The generator of these draws random numbers that no other implementation draws, or reads pictures that libraries decode differently.
RANDOM = ("test_bernoulli", "test_training_dropout")


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
        return sorted(collect_testcases(None), key=lambda case: case.name)


# ---- values: a dtype that millrace lacks goes in as the one that holds its numbers, which is how the importer declares it

WIDER = {"uint16": "int32", "int16": "int32", "uint32": "int64", "uint64": "int64", "int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}

# Two units in the last place: the generators round f16 and bf16 after each operation, millrace at the end of an op. The runner of the package allows as much.
ROUNDING = {"bfloat16": 2**-6, "float16": 2**-9}


def widened(array):
    name = array.dtype.name
    if name in WIDER:
        return array.astype(WIDER[name])
    if name.startswith("float") and name not in ("float16", "float32", "float64"):
        return array.astype("float32")
    return array


def fed(value):
    if value is None:
        return None
    if isinstance(value, list):
        return [fed(each) for each in value]
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    array = np.asarray(value)
    if array.dtype.kind in "OSUc":
        raise mr.UnsupportedError(f"elements of {'complex numbers' if array.dtype.kind == 'c' else 'strings'}")
    array = np.ascontiguousarray(widened(array)).reshape(array.shape)
    if array.dtype.name == "bfloat16":
        return mr.Tensor(array.astype("float32")).astype("bf16")
    return mr.Tensor(array)


def given(value):
    """An output as NumPy's array; bf16 becomes its f32."""
    if isinstance(value, list):
        return [given(each) for each in value]
    return None if value is None else value.astype("f32").numpy() if value.dtype == mr.bf16 else value.numpy()


def differs(found, expected, rtol, atol):
    """Why `found` is not `expected`, or None."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"expected {len(expected)} elements, found {found}"
        return next((why for pair in zip(found, expected) if (why := differs(*pair, rtol, atol))), None)
    if expected is None or found is None:
        return None if found is expected else f"expected {expected}, found {found}"
    if isinstance(expected, onnx.TensorProto):
        expected = numpy_helper.to_array(expected)
    expected = np.asarray(expected)
    roomy = ROUNDING.get(expected.dtype.name, 0)
    expected = widened(expected)
    if expected.dtype.name == "bfloat16":
        expected = expected.astype("float32")
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"expected {expected.dtype}{list(expected.shape)}, found {found.dtype}{list(found.shape)}"
    try:
        np.testing.assert_allclose(found, expected, rtol=max(rtol, roomy), atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


# ---- one test

REFUSED, WRONG, PASSED = "refused", "wrong", "passed"


def outcome(case):
    """(REFUSED, reason), (WRONG, reason) or (PASSED, "")."""
    if case.model is None:
        return REFUSED, "no model"
    graph = case.model.graph
    try:
        program = mr.parse_onnx(case.model.SerializeToString(), "model")
        compiled = program.compile(threads=1)
    except mr.Error as error:
        return REFUSED, str(error)
    for inputs, outputs in case.data_sets:
        try:
            feeds = {info.name: fed(value) for info, value in zip(graph.input, inputs)}
            made = compiled(feeds)
        except mr.Error as error:
            return REFUSED, "in the run: " + str(error)
        for info, expected in zip(graph.output, outputs):
            why = differs(given(made[info.name]), expected, case.rtol, case.atol)
            if why is not None:
                return WRONG, f"{info.name}: {why}"
    return PASSED, ""


def judged(words=()):
    return {case.name: (case, *outcome(case)) for case in cases() if not words or any(word in case.name for word in words)}


# ---- the page

def reason_of(text):
    """The reason in an error, without the names and extents of one model."""
    text = re.sub(r"^(in the run: )?model: (node \S+ \(([^)]*)\): )?", r"\3: ", text).lstrip(": ")
    missing = re.match(r"expected ops that this library has, found \d+ that it has not: (.*)", text)
    if missing:
        return "no op " + ", ".join(sorted(re.findall(r"'([^']*)' \(nodes?", missing[1])))
    text = re.sub(r" \(op .*|, found \w+\[.*| on cpu", "", text)
    return re.sub(r"found '[^']*' of", "found one of", re.sub(r"input '[^']*'", "an input", text))


def page(found):
    refused = {}
    for name, (case, what, why) in found.items():
        if what == REFUSED:
            refused.setdefault(reason_of(why), []).append(name)
    total, passed = len(found), sum(what == PASSED for _, what, _ in found.values())
    drawn = sum(what == WRONG and name.startswith(RANDOM) for name, (_, what, _) in found.items())
    lines = [
        "# ONNX node tests",
        "",
        f"The node tests of the `onnx` package {VERSION} (`onnx.backend.test.case.node`), run by `tests/python_module/onnx_nodes_test.py`, which writes this page",
        f"(`--write`). Of {total:,} tests {passed:,} pass, none gives other numbers but {drawn} that draw random ones, and {total - passed - drawn:,} are refused by an error that says why:",
        "",
        "| tests | refused because of | for instance |",
        "|---|---|---|",
    ]
    for reason, names in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {len(names)} | {reason.replace('|', chr(92) + '|')[:200]} | `{min(names)}` |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def found():
    if onnx.__version__ != VERSION:
        pytest.skip(f"expected onnx {VERSION}, found {onnx.__version__}")
    return judged()


def test_no_node_test_gives_other_numbers(found):
    assert [(name, why) for name, (_, what, why) in found.items() if what == WRONG and not name.startswith(RANDOM)] == []


def test_as_many_node_tests_pass_as_before(found):
    assert sum(what == PASSED for _, what, _ in found.values()) >= LEAST


def test_the_page_lists_what_is_refused(found):
    assert PAGE.read_text() == page(found), "run tests/python_module/onnx_nodes_test.py --write"


def with_defaults(model):
    """The model, whose one node also says the default of each attribute that it leaves out; None where there is no such attribute."""
    node = model.graph.node[0]
    versions = {each.domain: each.version for each in model.opset_import}
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, versions.get("ai.onnx", 0)), node.domain)
    except onnx.defs.SchemaError:
        return None
    said = {attribute.name for attribute in node.attribute}
    defaults = [each.default_value for name, each in schema.attributes.items() if name not in said and each.default_value.type]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node[0].attribute.extend(defaults)
    return made if defaults else None


def refusal(model):
    try:
        mr.parse_onnx(model.SerializeToString(), "model")
    except mr.Error as error:
        return str(error)
    return None


def test_an_attribute_that_says_its_default_is_no_reason_to_refuse_a_node():
    if onnx.__version__ != VERSION:
        pytest.skip(f"expected onnx {VERSION}, found {onnx.__version__}")
    refused, tried = [], 0
    for case in cases():
        model = with_defaults(case.model) if case.model is not None and len(case.model.graph.node) == 1 else None
        if model is None or refusal(case.model) is not None:
            continue
        tried += 1
        if (why := refusal(model)) is not None:
            refused.append((case.name, why))
    assert refused == []
    assert tried > 100


def test_a_graph_that_says_nothing_of_shapes_is_imported_or_refused():
    for case in cases():
        inputs = range(len(case.model.graph.input))
        for bare in [{i} for i in inputs] + [set(inputs)]:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            for i in bare:
                if model.graph.input[i].type.HasField("tensor_type"):
                    model.graph.input[i].type.tensor_type.ClearField("shape")
            try:
                mr.parse_onnx(model.SerializeToString(), "model")
            except mr.Error as error:
                assert "\n" not in str(error), (case.name, bare)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--write"]
    results = judged(words)
    for name, (_, what, why) in results.items():
        if what != PASSED:
            print(what, name, why)
    counts = {kind: sum(what == kind for _, what, _ in results.values()) for kind in (PASSED, REFUSED, WRONG)}
    print(counts)
    if "--write" in sys.argv and not words:
        PAGE.write_text(page(results))
