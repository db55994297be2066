// SPDX-License-Identifier: Apache-2.0
// The classes Tensor and LoDTensor.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <nanobind/stl/tuple.h>

#include "dlpack.h"
#include "values.h"

namespace millrace::python {
namespace {

// ---- The buffer protocol: NumPy sees the elements themselves ----

struct Exported {
  Tensor tensor;
  std::vector<Py_ssize_t> shape, strides;
};

const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "d";
    case DType::f32: return "f";
    case DType::f16: return "e";
    case DType::i64: return "q";
    case DType::i32: return "i";
    case DType::i8: return "b";
    case DType::u8: return "B";
    case DType::boolean: return "?";
    case DType::bf16: break;
  }
  return nullptr;
}

int get_buffer(PyObject* exporter, Py_buffer* buffer, int flags) noexcept {
  const auto refuse = [&](const char* why) {
    buffer->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, why);
    return -1;
  };
  try {
    const Tensor& tensor = *nb::inst_ptr<Tensor>(nb::handle(exporter));
    const char* format = format_of(tensor.dtype());
    if (format == nullptr) return refuse("tensor: the buffer protocol has no bf16: astype('f32') first, or DLPack");
    if (!tensor.host_accessible()) return refuse("tensor: expected memory of the host");
    if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE && tensor.is_read_only())
      return refuse("tensor: it is read-only, since its memory is shared: copy() may be written");
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !tensor.is_contiguous()) return refuse("tensor: expected contiguous elements");
    auto held = std::make_unique<Exported>(Exported{tensor, {}, {}});
    const auto size = static_cast<Py_ssize_t>(size_of(tensor.dtype()));
    for (int axis = 0; axis < tensor.rank(); ++axis) {
      held->shape.push_back(tensor.dim(axis));
      held->strides.push_back(tensor.strides().begin()[axis] * size);
    }
    buffer->buf = tensor.raw_mutable();
    buffer->len = static_cast<Py_ssize_t>(tensor.bytes());
    buffer->itemsize = size;
    buffer->readonly = tensor.is_read_only() ? 1 : 0;
    buffer->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
    buffer->ndim = tensor.rank();
    buffer->shape = held->shape.data();
    buffer->strides = held->strides.data();
    buffer->suboffsets = nullptr;
    buffer->internal = held.release();
    buffer->obj = exporter;
    Py_INCREF(exporter);
    return 0;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}

void release_buffer(PyObject*, Py_buffer* buffer) noexcept { delete static_cast<Exported*>(buffer->internal); }

PyType_Slot tensor_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)}, {0, nullptr}};

// ---- DLPack ----

dlpack::DataType dlpack_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  if (dtype == DType::boolean) return {dlpack::boolean, bits, 1};
  if (dtype == DType::bf16) return {dlpack::bfloat, bits, 1};
  if (is_floating(dtype)) return {dlpack::floating, bits, 1};
  return {dtype == DType::u8 ? dlpack::unsigned_integer : dlpack::integer, bits, 1};
}

/// One of the two structures, with what it keeps alive.
template <class Struct>
struct Lent {
  explicit Lent(const Tensor& of)
      : tensor(of), shape(of.dims().begin(), of.dims().end()), strides(of.strides().begin(), of.strides().end()) {
    managed.array = {tensor.raw_mutable(), {dlpack::cpu, 0}, tensor.rank(), dlpack_type(tensor.dtype()), shape.data(), strides.data(), 0};
    managed.context = this;
    managed.deleter = [](Struct* self) { delete static_cast<Lent*>(self->context); };
  }
  Tensor tensor;
  std::vector<std::int64_t> shape, strides;
  Struct managed{};
};

template <class Struct>
void drop_untaken(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<Struct*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

nb::object capsule(void* pointer, const char* name, PyCapsule_Destructor destructor) {
  PyObject* made = PyCapsule_New(pointer, name, destructor);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

/// `versioned`: with the flag that says that the memory may not be written. Without, a tensor that may not is refused.
nb::object to_dlpack(const Tensor& tensor, bool versioned, bool copied) {
  tensor.check_written();
  if (!tensor.host_accessible()) throw PlaceError("tensor: expected memory of the host, found " + tensor.place().to_string());
  if (versioned) {
    auto lent = std::make_unique<Lent<dlpack::Versioned>>(tensor);
    lent->managed.major = 1;
    lent->managed.minor = 0;
    lent->managed.flags = (tensor.is_read_only() ? dlpack::read_only : 0) | (copied ? dlpack::copied : 0);
    nb::object made =
        capsule(&lent->managed, "dltensor_versioned", [](PyObject* o) { drop_untaken<dlpack::Versioned>(o, "dltensor_versioned"); });
    (void)lent.release();
    return made;
  }
  if (tensor.is_read_only())
    throw nb::buffer_error(
        "tensor: it is read-only, since its memory is shared, and this importer does not ask for DLPack 1.0, which can say so: copy() may "
        "be handed over");
  auto lent = std::make_unique<Lent<dlpack::Managed>>(tensor);
  nb::object made = capsule(&lent->managed, "dltensor", [](PyObject* o) { drop_untaken<dlpack::Managed>(o, "dltensor"); });
  (void)lent.release();
  return made;
}

// ---- Elements ----

nb::object number(const Tensor& x, std::int64_t offset) {
  return visit_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) -> nb::object {
    const T value = static_cast<const T*>(x.raw())[offset];
    if constexpr (std::is_same_v<T, bool>)
      return nb::bool_(value);
    else if constexpr (std::is_integral_v<T>)
      return nb::int_(static_cast<std::int64_t>(value));
    else
      return nb::float_(convert_element<double>(value));
  });
}

nb::object nested(const Tensor& x, int axis, std::int64_t offset) {
  if (axis == x.rank()) return number(x, offset);
  nb::list made;
  for (std::int64_t i = 0; i < x.dim(axis); ++i) made.append(nested(x, axis + 1, offset + i * x.strides().begin()[axis]));
  return made;
}

nb::object to_list(const Tensor& x) {
  if (x.elements() > 0) x.check_written();
  return nested(x, 0, 0);
}

Tensor converted(const Tensor& x, DType dtype) {
  Tensor made(dtype, x.dims());
  visit_dtype(x.dtype(), [&]<class From>(std::type_identity<From>) {
    const std::vector<From> values = x.to_vector<From>();
    visit_dtype(dtype, [&]<class To>(std::type_identity<To>) {
      To* to = made.mutable_data<To>();
      for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert_element<To, From>(values[i]);
    });
  });
  return made;
}

nb::tuple shape_of(const DDim& dims) {
  nb::list made;
  for (const std::int64_t extent : dims) made.append(extent);
  return nb::tuple(made);
}

/// The elements as nested lists, of a long axis the ends.
std::string shown(const Tensor& x, int axis, std::int64_t offset) {
  constexpr std::int64_t ends = 3;
  if (axis == x.rank()) {
    const nb::object value = number(x, offset);
    if (is_floating(x.dtype()) && std::isnan(nb::cast<double>(value))) return "nan";  // without its sign
    return is_floating(x.dtype()) ? fmt::format("{:.6g}", nb::cast<double>(value)) : nb::cast<std::string>(nb::str(value));
  }
  std::string text = "[";
  for (std::int64_t i = 0; i < x.dim(axis); ++i) {
    if (i > 0) text += axis + 1 == x.rank() ? ", " : ",\n" + std::string(static_cast<std::size_t>(axis) + 1, ' ');
    if (x.dim(axis) > 2 * ends + 2 && i == ends) {
      text += "…";
      i = x.dim(axis) - ends - 1;
      continue;
    }
    text += shown(x, axis + 1, offset + i * x.strides().begin()[axis]);
  }
  return text + "]";
}

std::string elements_shown(const Tensor& x) {
  if (!x.host_accessible() || (x.elements() > 0 && !x.storage()->written())) return "";
  return ":\n" + shown(x, 0, 0);
}

std::int64_t checked_index(std::int64_t index, std::int64_t size, const char* what) {
  if (index < -size || index >= size)
    throw IndexError(fmt::format("{}: expected an index in [{}, {}), found {}", what, -size, size, index));
  return index < 0 ? index + size : index;
}

/// One axis cut by a number, and gone, or by a slice of elements side by side.
Tensor cut(const Tensor& x, int& axis, nb::handle index) {
  if (axis >= x.rank())
    throw IndexError(fmt::format("tensor: expected at most as many indices as axes, found one more, of {}", x.to_string()));
  if (index.ptr() == Py_Ellipsis || index.is_none() || PyBool_Check(index.ptr()) != 0 ||
      (PySlice_Check(index.ptr()) == 0 && PyIndex_Check(index.ptr()) == 0) || is_array_of_indices(index))
    throw ArgumentError(fmt::format("tensor: expected numbers and slices as indices, found a {}: numpy() has the others",
                                    nb::cast<std::string>(nb::str(index.type().attr("__name__")))));
  if (PySlice_Check(index.ptr()) == 0) return x.select(axis, checked_index(index_from(index), x.dim(axis), "tensor"));
  Py_ssize_t begin = 0, end = 0, stride = 0;
  if (PySlice_Unpack(index.ptr(), &begin, &end, &stride) != 0) throw nb::python_error();
  PySlice_AdjustIndices(x.dim(axis), &begin, &end, stride);
  if (stride != 1)
    throw ArgumentError(fmt::format("tensor: expected elements side by side, found a slice with the stride {}: use numpy()", stride));
  return x.slice(axis++, begin, std::max(begin, end));
}

Tensor element(const Tensor& x, nb::handle index) {
  int axis = 0;
  if (PyTuple_Check(index.ptr()) == 0) return cut(x, axis, index);
  Tensor made = x;
  for (const nb::handle one : nb::borrow<nb::tuple>(index)) made = cut(made, axis, one);
  return made;
}

bool truth(const Tensor& x) {
  if (x.elements() != 1)
    throw ArgumentError(fmt::format("tensor: expected one element as a condition, found {}: numpy() has any() and all()", x.to_string()));
  return nb::cast<double>(nb::float_(number(x, 0))) != 0;
}

nb::object numpy_of(nb::handle self) { return nb::module_::import_("numpy").attr("asarray")(self); }

// ---- LoDTensor ----

std::vector<LoD::Level> lengths_of(const LoD& lod) {
  std::vector<LoD::Level> levels;
  for (int level = 0; level < lod.depth(); ++level) levels.push_back(lod.lengths(level));
  return levels;
}

nb::object sequences_as_lists(const LoDTensor& x) {
  if (x.lod().empty()) return to_list(x.tensor());
  nb::list made;
  for (const LoDTensor& sequence : x.peel()) made.append(sequences_as_lists(sequence));
  return made;
}

/// Lengths of one level: a list of integers, or an array of them.
bool is_level(nb::handle x) {
  return nb::isinstance<nb::list>(x) || nb::isinstance<nb::tuple>(x) || (exports_memory(x) && tensor_from(x, DType::i64).rank() == 1);
}
LoD::Level level_from(nb::handle x) {
  const Tensor lengths = is_list(x) ? tensor_from(x) : tensor_from(x, DType::i64);
  if (lengths.rank() != 1 || (is_floating(lengths.dtype()) && lengths.elements() > 0))
    throw LoDError(fmt::format("LoDTensor: expected integers as the lengths of a level, found {}", lengths.to_string()));
  return converted(lengths, DType::i64).to_vector<std::int64_t>();
}

nb::object sequence_at(const LoDTensor& x, std::int64_t index) {
  const std::int64_t at = checked_index(index, x.lod().sequences(0), "sequences");
  const LoDTensor one = x.slice(0, at, at + 1);
  const LoD inner = one.lod().erase_outermost();
  return object_from(LoDTensor(one.tensor(), inner));
}

using TensorState = std::tuple<std::string, std::vector<std::int64_t>, nb::bytes>;

TensorState state_of_tensor(const Tensor& x) {
  const Tensor own = x.is_contiguous() ? x : copy_of(x);
  return {std::string(name_of(x.dtype())), {x.dims().begin(), x.dims().end()}, nb::bytes(own.raw(), static_cast<std::size_t>(own.bytes()))};
}
void set_state_of_tensor(Tensor& self, const TensorState& state) {
  const auto& [dtype, shape, elements] = state;
  Tensor made(dtype_from(nb::cast(dtype)), make_ddim(shape));
  if (static_cast<std::size_t>(made.bytes()) != elements.size())
    throw ShapeError(fmt::format("tensor: expected {} bytes for {}, found {}", made.bytes(), made.to_string(), elements.size()));
  if (made.bytes() > 0) std::memcpy(made.raw_mutable(), elements.data(), elements.size());
  made.storage()->mark_written();
  new (&self) Tensor(std::move(made));
}

nb::object torch_of(nb::handle tensor) {
  nb::object torch;
  try {
    torch = nb::module_::import_("torch");
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
    nb::raise_from(error, PyExc_ImportError,
                   "tensor.torch: PyTorch is not installed for this interpreter: pip install torch, or use numpy()");
  }
  const auto& x = nb::cast<const Tensor&>(tensor);  // PyTorch writes to memory that DLPack calls read-only
  return torch.attr("from_dlpack")(x.is_read_only() ? nb::cast(copy_of(x)) : nb::borrow(tensor));
}

void bind_tensor(nb::module_& m) {
  nb::class_<Tensor>(
      m, "Tensor", nb::type_slots(tensor_slots),
      "Elements of one dtype with extents `shape`, on the host. It shares the memory of the array that it is made from, and NumPy and\n"
      "PyTorch share its own: nothing is copied, and memory lives as long as either side holds it. Memory that is shared with\n"
      "somebody who relies on it (an array that was taken in, a weight, a slot of a TensorArray) is read-only from this side.\n\n"
      "    mr.Tensor([[1, 2], [3, 4]], dtype=mr.f32)      # from lists\n"
      "    mr.Tensor(numpy_array), mr.Tensor(torch_tensor)\n"
      "    tensor.numpy(), torch.from_dlpack(tensor)")
      .def(
          "__init__",
          [](Tensor* self, nb::object data, nb::object dtype, bool copy) {
            const std::optional<DType> wanted = dtype.is_none() ? std::nullopt : std::optional<DType>(dtype_from(dtype));
            Tensor made = tensor_from(data, wanted);
            if (wanted && made.dtype() != *wanted)
              made = converted(made, *wanted);
            else if (copy)
              made = copy_of(made);
            new (self) Tensor(std::move(made));
          },
          "data"_a.none(), "dtype"_a = nb::none(), "copy"_a = false,
          nb::sig("def __init__(self, data: TensorLike, dtype: DTypeLike | None = None, copy: bool = False) -> None"),
          "`data`: numbers, nested lists, an array with the buffer protocol or DLPack. Lists give f32, i64 or bool unless `dtype` is said; "
          "an array of\n"
          "another dtype is converted, which copies.")
      .def_prop_ro("dtype", &Tensor::dtype)
      .def_prop_ro(
          "shape", [](const Tensor& x) { return shape_of(x.dims()); }, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "strides", [](const Tensor& x) { return shape_of(x.strides()); }, nb::sig("def strides(self) -> tuple[int, ...]"), "In elements.")
      .def_prop_ro("ndim", &Tensor::rank)
      .def_prop_ro("size", &Tensor::elements, "Number of elements.")
      .def_prop_ro("nbytes", &Tensor::bytes)
      .def_prop_ro(
          "place", [](const Tensor& x) { return x.place().to_string(); }, "Where the elements are: 'cpu'.")
      .def_prop_ro("read_only", &Tensor::is_read_only)
      .def("numpy", &numpy_of, nb::sig("def numpy(self) -> ArrayOfNumPy"),
           "The elements as a NumPy array, without a copy; it is read-only when the tensor is. bf16, which NumPy lacks: astype('f32') "
           "first.")
      .def("torch", &torch_of, nb::sig("def torch(self) -> typing.Any"),
           "The elements as a tensor of PyTorch, which is imported now; without a copy, unless the tensor is read-only: PyTorch would "
           "write to "
           "its memory.")
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) -> nb::object {
            const auto& x = nb::cast<const Tensor&>(self);
            if (format_of(x.dtype()) == nullptr) throw DTypeError("tensor: NumPy has no bf16: astype('f32') first");
            nb::object array = nb::module_::import_("numpy").attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())));
            if (!dtype.is_none()) array = array.attr("astype")(dtype);
            return !copy.is_none() && nb::cast<bool>(copy) ? nb::object(array.attr("copy")()) : array;
          },
          "dtype"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> ArrayOfNumPy"))
      .def(
          "__dlpack__",
          [](const Tensor& x, nb::handle, nb::handle max_version, nb::handle dl_device, nb::handle copy) {
            if (!dl_device.is_none() && !dl_device.equal(nb::make_tuple(1, 0)))
              throw nb::buffer_error(
                  fmt::format("tensor: expected the device (1, 0), the CPU, found {}", nb::repr(dl_device).c_str()).c_str());
            const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
            const std::optional<bool> wants_copy = copy.is_none() ? std::nullopt : std::optional(nb::cast<bool>(copy));
            // An importer that cannot be told of read-only memory gets elements of its own, as the protocol allows.
            const bool copies = wants_copy.value_or(!versioned && x.is_read_only());
            return to_dlpack(copies ? copy_of(x) : x, versioned, copies);
          },
          nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(), "copy"_a = nb::none(),
          "For `from_dlpack` of PyTorch, JAX and NumPy. Importers that know DLPack 1.0 are told of read-only memory; others get a copy of "
          "it, or, "
          "with copy=False, a BufferError.")
      .def(
          "__dlpack_device__", [](const Tensor&) { return nb::make_tuple(int{dlpack::cpu}, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("tolist", &to_list, nb::sig("def tolist(self) -> typing.Any"), "Nested lists of numbers; of a scalar the number.")
      .def(
          "item", [](const Tensor& x) { return number(x.elements() == 1 ? x : (x.item(), x), 0); },
          nb::sig("def item(self) -> bool | int | float"), "The value of a tensor with one element. ShapeError otherwise.")
      .def("__float__", [](const Tensor& x) { return x.item(); })
      .def("__int__", [](const Tensor& x) { return x.item_int(); })
      .def("__len__",
           [](const Tensor& x) {
             if (x.rank() == 0) throw DTypeError("tensor: a scalar has no length");
             return x.dim(0);
           })
      .def(
          "__iter__",
          [](const Tensor& x) {
            if (x.rank() == 0) throw DTypeError("tensor: a scalar has no rows to iterate over");
            nb::list made;
            for (std::int64_t i = 0; i < x.dim(0); ++i) made.append(x.select(0, i));
            return nb::iter(made);
          },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Tensor]"))
      .def("__bool__", &truth, "Of one element: whether it is not zero.")
      .def("__getitem__", &element, "index"_a, nb::sig("def __getitem__(self, index: int | Slice | tuple[int | Slice, ...]) -> Tensor"),
           "Numbers, and slices of elements side by side, for each axis: views.")
      .def("copy", &copy_of, "One's own elements, row-major; they may be written.")
      .def(
          "astype", [](const Tensor& x, nb::handle dtype) { return converted(x, dtype_from(dtype)); }, "dtype"_a,
          nb::sig("def astype(self, dtype: DTypeLike) -> Tensor"), "A copy of another dtype.")
      .def(
          "reshape", [](const Tensor& x, nb::args shape) { return x.reshape(make_ddim(extents_from(shape, "reshape: shape"))); }, "shape"_a,
          nb::sig("def reshape(self, *shape: int | collections.abc.Sequence[int]) -> Tensor"), "A view with other extents; one may be -1.")
      .def("__getstate__", &state_of_tensor, "For pickle and copy: dtype, shape, elements.")
      .def("__setstate__", &set_state_of_tensor)
      .def("__repr__", [](const Tensor& x) { return "Tensor " + x.to_string() + elements_shown(x); });
  nb::implicitly_convertible<TensorLike, Tensor>();
}

void bind_lod_tensor(nb::module_& m) {
  nb::class_<LoDTensor>(
      m, "LoDTensor",
      "Rows and the sequences they belong to, without padding: sequences of rows, sequences of sequences, and so on. `lod` holds the\n"
      "lengths of each level, outermost first: [[2, 1], [3, 1, 2]] are two sequences, of two and one sub-sequences, of three, one and two\n"
      "rows. Sequences may be empty. `x[i]` is the outermost sequence i; `len(x)` their number.")
      .def(
          "__init__", [](LoDTensor* self, nb::object rows, nb::object lengths) { new (self) LoDTensor(lod_tensor_from(rows, lengths)); },
          "rows"_a, "lengths"_a,
          nb::sig("def __init__(self, rows: TensorLike, lengths: str | collections.abc.Sequence[int] | "
                  "collections.abc.Sequence[collections.abc.Sequence[int]] | typing.Any) -> None"),
          "`rows`: [rows, ...]; `lengths`: one level, [2, 1, 3], or an array of integers; several, [[2, 1], [3, 1, 2]]; or their text. "
          "LoDError when they do not "
          "describe\n"
          "exactly the rows.")
      .def_prop_ro(
          "rows", [](const LoDTensor& x) { return x.tensor(); }, "All rows, [rows, ...], in one Tensor; no copy.")
      .def_prop_ro(
          "lod", [](const LoDTensor& x) { return lengths_of(x.lod()); }, "Lengths of each level, outermost first.")
      .def_prop_ro(
          "lengths", [](const LoDTensor& x) { return x.lod().lengths(x.lod().depth() - 1); },
          "Lengths of the innermost sequences, in rows.")
      .def_prop_ro(
          "offsets",
          [](const LoDTensor& x) {
            const auto offsets = x.lod().offsets(x.lod().depth() - 1);
            return std::vector<std::int64_t>(offsets.begin(), offsets.end());
          },
          "Where the innermost sequences begin, and behind them the number of rows.")
      .def_prop_ro("levels", [](const LoDTensor& x) { return x.lod().depth(); })
      .def_prop_ro("dtype", &LoDTensor::dtype)
      .def_prop_ro(
          "shape", [](const LoDTensor& x) { return shape_of(x.dims()); }, nb::sig("def shape(self) -> tuple[int, ...]"), "Of the rows.")
      .def(
          "numpy", [](const LoDTensor& x) { return numpy_of(nb::cast(x.tensor())); }, nb::sig("def numpy(self) -> ArrayOfNumPy"),
          "The rows as a NumPy array, without a copy.")
      .def(
          "torch", [](const LoDTensor& x) { return torch_of(nb::cast(x.tensor())); }, nb::sig("def torch(self) -> typing.Any"),
          "The rows as a tensor of PyTorch: `rows.torch()`. `lengths` says whose they are.")
      .def(
          "__array__",
          [](const LoDTensor& x, nb::handle dtype, nb::handle copy) { return nb::cast(x.tensor()).attr("__array__")(dtype, copy); },
          "dtype"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> ArrayOfNumPy"), "The same: np.asarray(x).")
      .def("tolist", &sequences_as_lists, nb::sig("def tolist(self) -> typing.Any"), "Lists of lists: levels, then rows.")
      .def("__len__", [](const LoDTensor& x) { return x.lod().empty() ? x.rows() : x.lod().sequences(0); })
      .def("__getitem__", &sequence_at, "index"_a, nb::sig("def __getitem__(self, index: int) -> typing.Any"),
           "Outermost sequence `index`: a Tensor of its rows, or with more levels a LoDTensor; a view.")
      .def(
          "__iter__",
          [](const LoDTensor& x) {
            nb::list made;
            for (const LoDTensor& sequence : x.peel()) made.append(object_from(sequence));
            return nb::iter(made);
          },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[typing.Any]"))
      .def(
          "__getstate__", [](const LoDTensor& x) { return std::pair(x.tensor(), lengths_of(x.lod())); }, "For pickle and copy: rows, lod.")
      .def("__setstate__",
           [](LoDTensor& self, const std::pair<Tensor, std::vector<LoD::Level>>& state) {
             new (&self) LoDTensor(state.first, state.second.empty() ? LoD() : LoD::from_lengths(state.second));
           })
      .def("__repr__", [](const LoDTensor& x) { return "LoDTensor " + x.to_string() + elements_shown(x.tensor()); });
  m.def(
      "ragged",
      [](nb::handle sequences, int levels, nb::handle dtype) {
        return ragged_from(sequences, levels, dtype.is_none() ? std::nullopt : std::optional<DType>(dtype_from(dtype)));
      },
      "sequences"_a, "levels"_a = 1, "dtype"_a = nb::none(),
      nb::sig("def ragged(sequences: collections.abc.Iterable[typing.Any], levels: int = 1, dtype: DTypeLike | None = None) -> LoDTensor"),
      "Sequences of different lengths as a LoDTensor. Each is an array [rows, ...] or a list of rows; with `levels` 2 a list of such, and "
      "so on.\n\n"
      "    mr.ragged([[1, 2, 3], [4], []])                 # i64 rows, 3 + 1 + 0 of them\n"
      "    mr.ragged([a, b])                               # arrays [n, C] and [m, C]\n"
      "    mr.ragged([[[1.0], [2.0]], [[3.0]]])            # f32 rows of one element");
}

}  // namespace

LoDTensor lod_tensor_from(nb::handle rows, nb::handle lengths) {
  const Tensor tensor = tensor_from(rows);
  if (nb::isinstance<nb::str>(lengths)) return LoDTensor(tensor, LoD::parse(nb::cast<std::string>(lengths)));
  std::vector<LoD::Level> levels;
  const bool one_array = exports_memory(lengths);
  bool nested_lists = !one_array && nb::len(lengths) > 0;
  if (nested_lists)
    for (const nb::handle level : lengths) nested_lists = nested_lists && is_level(level);
  if (nested_lists)
    for (const nb::handle level : lengths) levels.push_back(level_from(level));
  else
    levels.push_back(level_from(lengths));
  return LoDTensor(tensor, LoD::from_lengths(levels));
}

void bind_values(nb::module_& m) {
  nb::enum_<DType>(m, "DType", "The element types.")
      .value("f64", DType::f64)
      .value("f32", DType::f32)
      .value("f16", DType::f16)
      .value("bf16", DType::bf16)
      .value("i64", DType::i64)
      .value("i32", DType::i32)
      .value("i8", DType::i8)
      .value("u8", DType::u8)
      .value("bool", DType::boolean)
      .def_prop_ro("itemsize", [](DType dtype) { return size_of(dtype); }, "Bytes of one element.");
  bind_tensor(m);
  bind_lod_tensor(m);
}

}  // namespace millrace::python
