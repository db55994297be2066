# SPDX-License-Identifier: Apache-2.0
"""Graphs of ONNX whose statistics would leave f16, or cancel in f32, and places of Resize on exact ties, against numbers of NumPy."""
import numpy as np
import pytest

import millrace as mr

onnx = pytest.importorskip("onnx")
helper = onnx.helper

X = np.array([[[300, -301, 298, -305], [2, 1, 4, 3]]], "f2")  # squares of the first row are beyond f16
ONE, ZERO, TWO = np.ones(2, "f2"), np.zeros(2, "f2"), np.full(4, 2, "f2")


def run(op, inputs, outputs=1, opset=17, domain="", **attributes):
    names = [None if value is None else f"i{k}" for k, value in enumerate(inputs)]
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, [name or "" for name in names], results, domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape)) for n, v in zip(names, inputs) if n]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(name) for name in results])
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    made = mr.parse_onnx(helper.make_model(graph, opset_imports=imports).SerializeToString()).run({n: v for n, v in zip(names, inputs) if n})
    found = [np.asarray(made[name]) for name in results]
    return found[0] if outputs == 1 else found


def near(found, expected, dtype="f2"):
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=2**-9, atol=2**-12)


def normalised(x, axes, epsilon=1e-5):
    x = x.astype("f8")
    apart = x - x.mean(axes, keepdims=True)
    return apart / np.sqrt((apart**2).mean(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("opset", [18, 21])
def test_groups_of_f16(opset):
    near(run("GroupNormalization", [X, ONE, ZERO], opset=opset, num_groups=2), normalised(X, (2,)))


def test_instances_of_f16():
    near(run("InstanceNormalization", [X, ONE, ONE]), normalised(X, (2,)) + 1)


def test_batches_of_f16_in_training():
    y, mean, variance = run("BatchNormalization", [X, ONE, ZERO, ZERO, ZERO], 3, opset=15, training_mode=1, momentum=0.5)
    near(y, normalised(X, (0, 2)))
    near(mean, X.astype("f8").mean((0, 2)) / 2)
    near(variance[1:], X[0, 1:].astype("f8").var(1) / 2)
    assert np.isfinite(variance[0]) == (X[0, 0].astype("f8").var() / 2 < 65520)


def test_batches_whose_statistics_are_wider_than_their_rows():
    mean, variance = np.array([1, 2], "f4"), np.array([90000, 4], "f4")
    expected = (X.astype("f8") - mean[:, None]) / np.sqrt(variance[:, None].astype("f8") + 1e-5)
    near(run("BatchNormalization", [X, ONE, ZERO, mean, variance], opset=15), expected)


@pytest.mark.parametrize("op, opset", [("RMSNormalization", 23), ("SimplifiedLayerNormalization", 17)])
@pytest.mark.parametrize("scale", ["f2", "f4"])
def test_roots_of_mean_squares_of_f16(op, opset, scale):
    x = X.astype("f8")
    near(run(op, [X, TWO.astype(scale)], opset=opset), 2 * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), scale)


def test_a_sum_and_its_root_of_mean_squares():
    x = X.astype("f8")
    found = run("SkipSimplifiedLayerNormalization", [X, np.zeros_like(X), TWO], domain="com.microsoft")
    near(found, 2 * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12), "f2")


def test_statistics_of_layers_of_f16_are_f32():
    y, mean, inverse = run("LayerNormalization", [X, TWO], 3)
    x = X.astype("f8")
    near(y, 2 * normalised(X, (2,)))
    near(mean, x.mean(-1, keepdims=True), "f4")
    near(inverse, 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5), "f4")


def test_a_scale_of_a_layer_may_have_the_axes_in_front():
    x, scale, bias = np.array([[1, 2], [3, 5]], "f4"), np.array([[2], [3]], "f4"), np.array([7, 8], "f4")
    np.testing.assert_allclose(run("LayerNormalization", [x, scale]), normalised(x, (1,)) * scale, rtol=1e-5)
    np.testing.assert_allclose(run("LayerNormalization", [x, scale, bias]), normalised(x, (1,)) * scale + bias, rtol=1e-5)


def test_windows_of_f16():
    near(run("AveragePool", [np.full((1, 1, 3, 3), 30000, "f2")], kernel_shape=[3, 3]), np.full((1, 1, 1, 1), 30000))
    near(run("LpPool", [np.full((1, 1, 2, 2), 300, "f2")], opset=18, kernel_shape=[2, 2]), np.full((1, 1, 1, 1), 600))
    counts = np.array([2, 3, 2]).reshape(1, 3, 1, 1)
    near(run("LRN", [np.full((1, 3, 1, 1), 400, "f2")], size=3), 400 / (1 + 1e-4 / 3 * 160000 * counts) ** 0.75)


def test_a_variance_that_is_small_beside_its_mean():
    x = np.array([1000.1, 1000.2, 1000.3], "f4").reshape(1, 1, 1, 3)
    np.testing.assert_allclose(run("MeanVarianceNormalization", [x], opset=13), normalised(x, (3,), 0), rtol=1e-3, atol=1e-3)
    assert not run("MeanVarianceNormalization", [np.full((1, 1, 1, 3), 5.3, "f4")], opset=13).any()


def attention(q, k, v, scale, look):
    """`look` [S, T]: whether a query looks at a key; a query that looks at none gives zeros."""
    scores = np.where(look, (q.astype("f8") @ np.swapaxes(k, -1, -2)) * scale, -np.inf)
    powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300) @ v


@pytest.mark.parametrize("queries, keys", [(4, 4), (5, 2), (1, 33), (0, 3)])
def test_attention_with_scales_of_both_signs_and_queries_that_see_little(queries, keys):
    numbers = np.random.default_rng(queries)
    q, k, v = (numbers.standard_normal((2, 3, n, 8)).astype("f4") for n in (queries, keys, keys))
    causal = np.arange(keys) <= np.arange(queries)[:, None]
    mask = numbers.standard_normal((queries, keys)) > 0.5
    mask[:1] = False
    for scale in (0.3, -0.3):
        for look, inputs, attributes in (
            (True, [], {}),
            (causal, [], {"is_causal": 1}),
            (mask, [mask], {}),
            (mask & causal, [mask], {"is_causal": 1}),
        ):
            found = run("Attention", [q, k, v, *inputs], opset=23, scale=scale, **attributes)
            np.testing.assert_allclose(found, attention(q, k, v, scale, look), rtol=1e-4, atol=1e-5)


def resized(x, scale, **attributes):
    return run("Resize", [np.array(x, "f4").reshape(1, 1, 1, -1), None, np.array([1, 1, 1, scale], "f4")], opset=19, **attributes).ravel().tolist()


def test_places_on_ties():
    symmetric = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "nearest"}
    assert resized(range(3), 2.5, nearest_mode="floor", **symmetric)[3] == 1
    assert resized(range(6), 0.75, **symmetric) == [0, 2, 3, 4]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_one_output_of_pytorch_is_the_first_input(mode):
    assert resized([0, 1, 4, 9], 0.3, mode=mode, coordinate_transformation_mode="pytorch_half_pixel") == [0]
