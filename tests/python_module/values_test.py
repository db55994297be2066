# SPDX-License-Identifier: Apache-2.0
"""Tensors and LoDTensors: from and to NumPy and PyTorch, and their lifetime."""

import copy
import ctypes
import errno
import gc
import pickle
import sys
import weakref

import numpy as np
import pytest

import millrace as mr

DTYPES = [(mr.f64, np.float64), (mr.f32, np.float32), (mr.f16, np.float16), (mr.i64, np.int64), (mr.i32, np.int32), (mr.i8, np.int8), (mr.u8, np.uint8), (mr.bool_, np.bool_)]


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("ours, theirs", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (4, 3), (2, 1, 5)])
def test_numpy_round_trip_shares_the_memory(ours, theirs, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(theirs)
    tensor = mr.Tensor(array)
    assert tensor.dtype == ours and tensor.shape == shape and tensor.size == array.size and tensor.nbytes == array.nbytes
    back = tensor.numpy()
    assert back.dtype == theirs and back.shape == shape and np.array_equal(back, array)
    if array.size:
        assert address(back) == address(array)
        assert tensor.read_only and not back.flags.writeable
        with pytest.raises(ValueError):
            back[...] = 0
    assert np.array_equal(np.asarray(tensor.tolist(), dtype=theirs).reshape(shape), array)


def test_a_view_of_numpy_keeps_its_strides_and_what_cannot_be_shared_is_copied():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (array[:, ::2], array.T, array[1:3], array[::2, 1:]):
        tensor = mr.Tensor(view)
        assert address(tensor.numpy()) == address(view) and np.array_equal(tensor.numpy(), view)
    for view in (array[::-1], array[:, ::-2]):
        tensor = mr.Tensor(view)
        assert address(tensor.numpy()) != address(view) and np.array_equal(tensor.numpy(), view)
    unaligned = np.frombuffer(b"\0" + array.tobytes(), dtype=np.uint8)[1:].view(np.float32)
    if address(unaligned) % 4:
        assert np.array_equal(mr.Tensor(unaligned).numpy(), array.ravel())


def test_an_array_of_another_dtype_is_named():
    for array in (np.zeros(2, np.int16), np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.zeros(2, "U3"), np.zeros(2, "M8[s]"), np.zeros(2, object)):
        with pytest.raises(mr.DTypeError, match="expected elements of f64|exports no memory"):
            mr.Tensor(array)
    assert issubclass(mr.DTypeError, TypeError)


def test_lists_become_tensors():
    assert mr.Tensor([[1, 2], [3, 4]]).dtype == mr.i64
    assert mr.Tensor([[1, 2.5]]).dtype == mr.f32
    assert mr.Tensor([True, False]).dtype == mr.bool_
    assert mr.Tensor([1, 2], dtype="f64").tolist() == [1.0, 2.0]
    assert mr.Tensor([], dtype=mr.i64).shape == (0,)
    assert mr.Tensor(3).shape == () and mr.Tensor(3).item() == 3
    assert mr.Tensor([2**62 + 1]).tolist() == [2**62 + 1]
    assert mr.Tensor([np.zeros(3, np.float32), np.ones(3, np.float32)]).shape == (2, 3)
    for wrong in ([[1], [1, 2]], [[1], 2], [1, [2]], [np.zeros(2), np.zeros(3)]):
        with pytest.raises(mr.ShapeError):
            mr.Tensor(wrong)
    endless = []
    endless.append(endless)
    for wrong in (endless, np.zeros((1,) * 10)):
        with pytest.raises(mr.ShapeError, match="at most 9 axes"):
            mr.Tensor(wrong)
    with pytest.raises(mr.OverflowError):
        mr.Tensor([2**70])
    with pytest.raises(mr.ArgumentError, match="found a str"):
        mr.Tensor(["a"])
    with pytest.raises(mr.ArgumentError, match="found a NoneType"):
        mr.Tensor(None)


def test_dtypes_are_known_by_many_names():
    for name in (mr.f32, "f32", "float32", np.float32, np.dtype("float32"), float):
        assert mr.Tensor([1], dtype=name).dtype == mr.f32
    with pytest.raises(mr.DTypeError, match="int16"):
        mr.Tensor([1], dtype="int16")


def test_indexing_rows_copies_nothing_and_a_copy_may_be_written():
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensor = mr.Tensor(array)
    assert tensor[1].tolist() == [3, 4, 5] and tensor[-1].tolist() == [9, 10, 11]
    assert address(tensor[1:3].numpy()) == address(array[1:3])
    assert len(tensor) == 4 and [row.tolist() for row in tensor] == array.tolist()
    for index in (4, -5):
        with pytest.raises(IndexError, match="expected an index in"):
            tensor[index]
    own = tensor.copy()
    own.numpy()[0] = 7
    assert own[0].tolist() == [7, 7, 7] and array[0, 0] == 0
    assert tensor.reshape([2, 6]).shape == (2, 6) and tensor.reshape(2, -1).shape == (2, 6) and tensor.reshape(-1).shape == (12,)
    for index in ((1, 2), (slice(None), 1), (slice(1, 3), slice(0, 2)), (-1, slice(1, None)), ()):
        assert np.array_equal(tensor[index].numpy(), array[index]), index
    for index, error in [((0, 0, 0), IndexError), ("x", mr.ArgumentError), ((..., 0), mr.ArgumentError), (slice(None, None, 2), mr.ArgumentError)]:
        with pytest.raises(error):
            tensor[index]
    assert tensor.astype(mr.i32).tolist() == array.astype(int).tolist()


def test_one_element_is_a_condition_and_no_other_tensor_is():
    assert mr.Tensor([0.5]) and not mr.Tensor([0]) and not mr.Tensor(False) and mr.Tensor([[3]])
    for wrong in ([1, 2], []):
        with pytest.raises(ValueError, match="one element"):
            bool(mr.Tensor(wrong))
    with pytest.raises(TypeError, match="scalar"):
        list(mr.Tensor(1.0))


def test_memory_lives_as_long_as_either_side_holds_it():
    class Array(np.ndarray):
        pass

    array = np.arange(1000, dtype=np.float32).view(Array)
    gone = weakref.ref(array)
    tensor = mr.Tensor(array)
    part = tensor[10:20]
    del array, tensor
    gc.collect()
    assert gone() is not None and part.tolist() == list(range(10, 20))
    back = part.numpy()
    del part
    gc.collect()
    assert gone() is not None and back.tolist() == list(range(10, 20))
    del back
    gc.collect()
    assert gone() is None


def test_numbers_of_references_stay():
    array = np.arange(100, dtype=np.float32)
    before = sys.getrefcount(array)
    for _ in range(100):
        mr.Tensor(array).numpy()
        mr.Tensor(array).tolist()
        with pytest.raises(mr.LoDError):
            mr.LoDTensor(array, [1, 2])
    gc.collect()
    assert sys.getrefcount(array) == before


def test_torch_shares_the_memory_both_ways():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8):
        theirs = torch.arange(12).reshape(3, 4).to(dtype)
        ours = mr.Tensor(theirs)
        assert ours.shape == (3, 4) and ours.tolist() == theirs.tolist() and ours.read_only
        assert mr.Tensor(theirs.t()).tolist() == theirs.t().tolist()
        own = ours.copy()
        back = torch.from_dlpack(own)
        assert back.dtype == dtype and torch.equal(back, theirs)
        back[0, 0] = 5
        assert own[0].tolist()[0] == 5
        del own
        gc.collect()
        assert back[0, 0] == 5
    assert torch.from_dlpack(mr.Tensor(torch.ones(3))).tolist() == [1, 1, 1]  # a copy, where PyTorch does not ask for DLPack 1.0
    shared = torch.zeros(3)
    ours = mr.Tensor(shared)
    shared[1] = 4
    assert ours.tolist() == [0, 4, 0]
    weight = torch.nn.Parameter(torch.ones(3))
    assert mr.Tensor(weight).numpy().__array_interface__["data"][0] == weight.data_ptr()


def test_torch_gives_a_tensor_of_pytorch_without_a_copy():
    torch = pytest.importorskip("torch")
    own = mr.Tensor([[1.0, 2.0], [3.0, 4.0]]).copy()
    theirs = own.torch()
    assert isinstance(theirs, torch.Tensor) and theirs.data_ptr() == address(own.numpy()) and theirs.tolist() == own.tolist()
    assert mr.Tensor(torch.ones(2, dtype=torch.bfloat16)).copy().torch().dtype == torch.bfloat16
    rows = mr.ragged([[1.0, 2.0], [], [3.0]])
    assert rows.torch().tolist() == [1, 2, 3] and rows.torch().data_ptr() == address(rows.numpy())
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [None], lod=1) * 2)
    assert program.run(x=[[1.0], [2.0, 3.0]])["y"].torch().tolist() == [2, 4, 6]
    shared = np.ones(3, np.float32)
    theirs = mr.Tensor(shared).torch()  # a copy: PyTorch writes to what is read-only too
    theirs += 1
    assert theirs.tolist() == [2, 2, 2] and shared.tolist() == [1, 1, 1]


def test_an_exporter_without_strides_is_row_major():
    assert mr.Tensor((ctypes.c_float * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    assert mr.Tensor(((ctypes.c_int * 3) * 2)((1, 2, 3), (4, 5, 6))).tolist() == [[1, 2, 3], [4, 5, 6]]
    number = ctypes.c_double(4)
    assert mr.Tensor(number).tolist() == 4


def test_negated_views_of_pytorch_keep_their_signs():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, -2.0])
    assert mr.Tensor(torch._neg_view(x)).tolist() == [-1, 2]
    assert mr.Tensor(torch.complex(x, x).conj().imag).tolist() == [-1, 2]


def test_the_sign_of_a_nan_is_not_shown():
    text = repr(mr.Tensor(np.array([-np.nan, np.nan], np.float32)))
    assert "[nan, nan]" in text


def test_raised_errors_of_files_can_be_pickled(tmp_path):
    with pytest.raises(mr.FileNotFoundError) as raised:
        mr.load(tmp_path / "none.mr")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is mr.FileNotFoundError and str(again) == str(raised.value)
    assert (again.errno, again.strerror, again.filename) == (raised.value.errno, raised.value.strerror, raised.value.filename)
    assert again.errno == errno.ENOENT


def test_torch_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for value in (mr.Tensor([1.0]), mr.ragged([[1.0]])):
        with pytest.raises(ImportError, match="PyTorch is not installed.*pip install torch, or use numpy()"):
            value.torch()


def test_dlpack_takes_and_gives_what_pytorch_has():
    torch = pytest.importorskip("torch")
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    cases = {
        "bool": torch.tensor([True, False, True]), "bf16": torch.arange(6).to(torch.bfloat16), "scalar": torch.tensor(2.5), "nothing": torch.zeros(0, 3), "no width": torch.zeros(3, 0),
        "columns": whole[:, 1::2], "transposed": whole.t(), "offset": whole[2:], "expanded": torch.ones(1, 3).expand(4, 3), "grad": torch.ones(3, requires_grad=True),
    }  # fmt: skip
    for name, theirs in cases.items():
        ours = mr.Tensor(theirs)
        assert ours.shape == tuple(theirs.shape) and ours.read_only and ours.tolist() == theirs.tolist(), name
        if name != "bf16" and theirs.numel() > 0:
            assert address(ours.numpy()) == theirs.data_ptr(), name
        back = torch.from_dlpack(ours.astype("u8")).bool() if name == "bool" else torch.from_dlpack(ours.copy())  # PyTorch 1.13 takes no bools
        assert back.shape == theirs.shape and torch.equal(back, theirs.detach()), name
    shut = np.arange(3, dtype=np.float32)
    shut.flags.writeable = False
    assert mr.Tensor(shut).read_only and address(mr.Tensor(shut).numpy()) == address(shut) and not mr.Tensor(shut).numpy().flags.writeable
    back = np.arange(6, dtype=np.float32)[::-1]
    assert mr.Tensor(back).tolist() == back.tolist()  # a copy: elements that go backwards are no view here
    for device in ((2, 0), (1, 1), "x"):
        with pytest.raises(BufferError, match="expected the device"):
            mr.Tensor(back).__dlpack__(dl_device=device, max_version=(1, 0))
    mr.Tensor(back).__dlpack__(dl_device=(1, 0), max_version=(1, 0))
    with pytest.raises(mr.DTypeError, match="complex|bits"):
        mr.Tensor(torch.zeros(2, dtype=torch.complex64))


def test_torch_memory_is_freed_by_whoever_lets_go_last():
    torch = pytest.importorskip("torch")

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def round_trip():
        ours = mr.Tensor(torch.ones(1 << 18))
        theirs = torch.from_dlpack(ours.copy())
        ours.__dlpack__(max_version=(1, 0))  # a capsule that nobody takes
        return theirs[0]

    for _ in range(20):
        round_trip()
    before = resident()
    for _ in range(300):
        round_trip()
    assert resident() - before < 64 << 20  # 300 rounds touch 600 MiB


def test_a_capsule_of_dlpack_1_says_that_memory_is_read_only():
    import ctypes

    tensor = mr.Tensor(np.arange(3, dtype=np.float32))
    with pytest.raises(BufferError, match="DLPack 1.0"):
        tensor.__dlpack__(copy=False)
    assert '"dltensor"' in repr(tensor.__dlpack__())  # a copy: an older importer cannot be told
    capsule = tensor.__dlpack__(max_version=(1, 0))
    assert 'dltensor_versioned' in repr(capsule)
    assert tensor.__dlpack_device__() == (1, 0)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = pointer(capsule, b"dltensor_versioned")
    major, minor = (ctypes.c_uint32 * 2).from_address(at)
    flags = ctypes.c_uint64.from_address(at + 24).value
    assert (major, minor) == (1, 0) and flags & 1


def test_ragged_sequences():
    x = mr.ragged([[1, 2, 3], [4], []])
    assert x.lod == [[3, 1, 0]] and x.lengths == [3, 1, 0] and x.offsets == [0, 3, 4, 4] and x.dtype == mr.i64 and x.shape == (4,)
    assert x.tolist() == [[1, 2, 3], [4], []] and len(x) == 3 and x[1].tolist() == [4] and [s.tolist() for s in x] == x.tolist()
    x = mr.ragged([[[1.0, 2.0]], [], [[3, 4], [5, 6]]])
    assert x.dtype == mr.f32 and x.shape == (3, 2) and x.lengths == [1, 0, 2]
    a, b = np.ones((2, 3), np.float64), np.zeros((0, 3), np.float64)
    x = mr.ragged([a, b, a])
    assert x.dtype == mr.f64 and x.lengths == [2, 0, 2] and x.shape == (4, 3)
    x = mr.ragged([[[1, 2], [3]], [], [[4, 5, 6]]], levels=2)
    assert x.lod == [[2, 0, 1], [2, 1, 3]] and x.levels == 2 and x.tolist() == [[[1, 2], [3]], [], [[4, 5, 6]]]
    assert x[0].lod == [[2, 1]] and x[0][1].tolist() == [3]
    assert mr.ragged([]).lod == [[]] and mr.ragged([[], []], dtype=mr.i64).dtype == mr.i64
    with pytest.raises(mr.ShapeError, match="sequence 1"):
        mr.ragged([np.zeros((1, 2)), np.zeros((1, 3))])
    with pytest.raises(mr.DTypeError, match="sequence 1"):
        mr.ragged([np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int32)])
    with pytest.raises(mr.LoDError):
        mr.ragged([1, 2])
    with pytest.raises(mr.LoDError):
        mr.ragged([[1]], levels=3)
    for levels in (0, 65):
        with pytest.raises(mr.ArgumentError):
            mr.ragged([[1]], levels=levels)


def test_lod_tensors_over_rows_that_are_there():
    rows = np.arange(6, dtype=np.float32).reshape(6, 1)
    for lengths in ([2, 1, 3, 0], [[2, 1, 3, 0]], "[[2,1,3,0]]"):
        x = mr.LoDTensor(rows, lengths)
        assert x.lengths == [2, 1, 3, 0] and address(x.numpy()) == address(rows) and address(x.rows.numpy()) == address(rows)
        assert address(x[2].numpy()) == address(rows[3:])
    x = mr.LoDTensor(rows, [[2, 1], [3, 1, 2]])
    assert x.lod == [[2, 1], [3, 1, 2]] and x.offsets == [0, 3, 4, 6]
    with pytest.raises(mr.LoDError, match="6"):
        mr.LoDTensor(rows, [2, 1])
    assert issubclass(mr.LoDError, ValueError) and issubclass(mr.LoDError, mr.Error)
    assert np.asarray(mr.LoDTensor(rows, [4, 2])).shape == (6, 1)  # its rows, as numpy() gives them


def test_printing_shows_type_and_elements():
    assert repr(mr.Tensor([[1, 2], [3, 4]])) == "Tensor i64[2, 2] on cpu:\n[[1, 2],\n [3, 4]]"
    assert repr(mr.Tensor(2.5)) == "Tensor f32[] on cpu:\n2.5"
    text = repr(mr.Tensor(np.zeros((1000, 1000), np.float32)))
    assert "f32[1000, 1000]" in text and "…" in text and len(text) < 1000
    assert repr(mr.ragged([[1], [2, 3]])).startswith("LoDTensor i64[3] on cpu with [[1,2]]:")


def test_bf16_has_no_array_of_numpy():
    tensor = mr.Tensor([1, 2], dtype=mr.bf16)
    with pytest.raises(mr.DTypeError, match="astype"):
        tensor.numpy()
    assert tensor.astype(mr.f32).numpy().tolist() == [1, 2]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shared = np.array([1, 2.5], dtype=ml_dtypes.bfloat16)
    assert mr.Tensor(shared).dtype == mr.bf16 and mr.Tensor(shared).tolist() == [1, 2.5]


# ---- JAX ----


def test_arrays_of_jax_go_in_and_out_without_a_copy():
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(6, dtype=np.float32).reshape(2, 3)
    assert mr.Tensor(x).numpy().__array_interface__["data"][0] == x.unsafe_buffer_pointer()
    own = mr.Tensor(np.ones((64, 64), np.float32)).copy()
    back = jax.numpy.from_dlpack(own)
    assert back.unsafe_buffer_pointer() == own.numpy().__array_interface__["data"][0] and float(back.sum()) == 4096
    narrow = mr.Tensor(jax.numpy.ones((2, 2), jax.numpy.bfloat16))
    assert narrow.dtype == mr.bf16 and jax.numpy.from_dlpack(narrow.copy()).dtype == jax.numpy.bfloat16
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [None, 3], lod=1) * 2)
    made = program.run(x=[x, x[:1]])["y"]
    assert made.lengths == [2, 1] and jax.numpy.from_dlpack(made.rows).tolist() == [[0, 2, 4], [6, 8, 10], [0, 2, 4]]


@pytest.mark.parametrize("array", [np.ones((2, 3), "f4"), np.zeros((0, 3), "f2"), np.array(True), np.arange(12).reshape(3, 4).T, np.array(3, "u1")])
def test_tensors_are_copied_and_pickled(array):
    tensor = mr.Tensor(array)
    for again in (copy.copy(tensor), copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert (again.dtype, again.shape, again.tolist()) == (tensor.dtype, tensor.shape, array.tolist())
        assert not again.read_only
    bf16 = mr.Tensor([1.5, 2]).astype("bf16")
    assert pickle.loads(pickle.dumps(bf16)).tolist() == [1.5, 2]


def test_sequences_are_copied_and_pickled():
    nested = mr.LoDTensor(np.arange(12, dtype="f4").reshape(6, 2), [[2, 0, 1], [3, 1, 2]])
    for again in (copy.deepcopy(nested), pickle.loads(pickle.dumps(nested))):
        assert (again.lod, again.tolist()) == (nested.lod, nested.tolist())


def test_a_state_that_no_tensor_gave_is_refused():
    for state, error in ((("f32", (2, 2), b"abc"), mr.ShapeError), (("f31", (1,), b""), mr.DTypeError), (("f32", (-1,), b""), mr.ShapeError)):
        with pytest.raises(error):
            mr.Tensor.__new__(mr.Tensor).__setstate__(state)


def test_numbers_that_a_dtype_does_not_hold_are_refused():
    assert mr.Tensor([1.0, -2.0], mr.i8).tolist() == [1, -2]
    assert mr.Tensor([1.0, 0.0], mr.bool_).tolist() == [True, False]
    for numbers, dtype in (([1.9], mr.i64), ([float("nan")], mr.i32), ([0.7, 1], mr.u8), ([0.5], mr.bool_), ([float("nan")], mr.bool_)):
        with pytest.raises(mr.DTypeError, match="expected integers"):
            mr.Tensor(numbers, dtype)
    for numbers, dtype in (([300], mr.u8), ([-1], mr.u8), ([1e20], mr.i64), ([2**31], mr.i32), ([float("inf")], mr.i64), ([2], mr.bool_), ([-1.0], mr.bool_)):
        with pytest.raises(OverflowError, match="fit"):
            mr.Tensor(numbers, dtype)


def test_a_number_beyond_the_largest_of_a_floating_dtype_is_refused_and_written_infinity_stays():
    for numbers, dtype in (([1e300], mr.f32), ([70000], mr.f16), ([-70000.0], mr.f16), ([1e39], mr.bf16), ([[0.0], [2**63 - 1]], mr.f16)):
        with pytest.raises(mr.OverflowError, match=f"expected numbers that fit {dtype.name}, found"):
            mr.Tensor(numbers, dtype)
    with pytest.raises(mr.OverflowError, match="fit f32"):
        mr.Tensor([1e300])  # f32 is the dtype of floats
    assert mr.ragged([np.zeros(1), [1e300]]).tolist() == [[0], [1e300]]  # f64, as the array says
    program = mr.Program()
    with program:
        mr.output("y", mr.input("x", mr.f32, [None]) * 2.0)
        with pytest.raises(mr.OverflowError, match="fit f32"):
            mr.constant(1.0) * 1e300
    with pytest.raises(mr.OverflowError, match="fit f32, found 1e.300 .input 'x'."):
        program.run(x=[1e300])
    for dtype in (mr.f64, mr.f32, mr.f16, mr.bf16):
        infinite, negative, nan = mr.Tensor([float("inf"), float("-inf"), float("nan")], dtype).tolist()
        assert infinite == float("inf") and negative == float("-inf") and nan != nan
    assert mr.Tensor([1e300], mr.f64).tolist() == [1e300] and mr.Tensor([65504], mr.f16).tolist() == [65504]
    assert mr.Tensor([65519.0], mr.f16).tolist() == [65504] and mr.Tensor([1e-300], mr.f32).tolist() == [0]  # the nearest


def test_a_number_of_numpy_keeps_its_dtype_and_a_float_of_python_is_f32():
    class Metres(float):
        pass

    for number, dtype in ((np.float64(0.1), mr.f64), (np.float32(0.1), mr.f32), (np.float16(0.1), mr.f16), (np.array([0.1, 0.3]).mean(), mr.f64), (0.1, mr.f32), (Metres(0.1), mr.f32)):
        assert mr.Tensor(number).dtype == dtype
        program = mr.Program()
        with program:
            assert mr.Var(number).dtype == mr.constant(number).dtype == mr.parameter("w", number).dtype == dtype
            mr.output("y", mr.constant(number))
            mr.output("stacked", mr.stack([number, number]))
        assert program.run()["y"].item() == mr.Tensor(number).item()
        assert program.run()["stacked"].dtype == dtype
    assert mr.Tensor(np.float64(0.1)).item() == 0.1
    assert mr.Tensor(np.float64(0.1), dtype="f32").dtype == mr.Tensor([np.float64(0.1)]).dtype == mr.f32
    optimizer = mr.SGD()
    assert optimizer.update({"b": np.array([1.0, 2.0]).sum()}, {"b": np.array(1.0)}, 0.1)["b"].item() == 3.0 - 0.1
    program = mr.Program()
    with program:  # beside a Var and as a fed value it takes the dtype that is there
        x = mr.input("x", mr.f32, [])
        for made in (x * np.float64(2), np.float64(2) * x, mr.maximum(x, np.float64(0)), mr.where(x > np.float64(0), x, np.float64(1)), x.clamp(np.float64(0), np.float64(1))):
            assert made.dtype == mr.f32
        mr.output("y", x + np.float64(0.5))
    assert program.run(x=np.float64(1))["y"].item() == 1.5


def test_an_array_as_an_index_of_a_tensor_is_refused_and_numbers_of_numpy_are_taken():
    tensor = mr.Tensor([[1, 2], [3, 4]])
    assert tensor[np.int64(1), np.array(0)].item() == 3
    for index in (np.array([0]), (slice(None), np.array([0, 1]))):
        with pytest.raises(mr.ArgumentError, match="numpy"):
            tensor[index]
    with pytest.raises(TypeError):
        tensor[np.array([0, 1]) :]

    class Wrong:
        def __index__(self):
            raise RuntimeError("no number")

    with pytest.raises(RuntimeError, match="no number"):
        tensor[Wrong()]
