// SPDX-License-Identifier: Apache-2.0
// The memory of other libraries as tensors: the buffer protocol (NumPy) and DLPack (PyTorch, JAX).
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "borrowed.h"
#include "dlpack.h"
#include "gil.h"
#include "values.h"

namespace millrace::python {
namespace {

/// The part of an exporter's memory that a view may touch, in elements.
std::size_t span_of(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0) return 0;
    last += (dims[i] - 1) * strides[i];
  }
  return static_cast<std::size_t>(last + 1);
}

DDim extents(const std::vector<std::int64_t>& of) {
  if (of.size() > max_rank) throw ShapeError(fmt::format("tensor: expected at most {} axes, found {}", max_rank, of.size()));
  return DDim(std::span<const std::int64_t>(of));
}

Tensor view(DType dtype, const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides,
            std::shared_ptr<BorrowedMemory> memory) {
  auto storage = std::make_shared<Allocation>(std::move(memory), span_of(dims, strides) * size_of(dtype));
  storage->mark_written();
  storage->freeze();
  return Tensor(dtype, extents(dims), extents(strides), 0, std::move(storage)).read_only();
}

bool aligned(const void* data, DType dtype) { return reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0; }

// ---- The buffer protocol ----

/// The dtype of a format of the struct module; `half_is_bf16` for NumPy's view of bf16 as unsigned integers.
DType dtype_of_format(const Py_buffer& buffer, bool half_is_bf16) {
  const char* format = buffer.format != nullptr ? buffer.format : "B";
  const char* code = format;
  if (*code == '@' || *code == '=' || *code == '<') ++code;
  const auto refuse = [&]() -> DType {
    throw DTypeError(fmt::format(
        "tensor: expected elements of f64, f32, f16, bf16, i64, i32, i8, u8 or bool in the machine's byte order, found the format '{}'",
        format));
  };
  if (code[0] == '\0' || code[1] != '\0') return refuse();
  const Py_ssize_t size = buffer.itemsize;
  switch (*code) {
    case 'd': return DType::f64;
    case 'f': return DType::f32;
    case 'e': return DType::f16;
    case 'H': return half_is_bf16 ? DType::bf16 : refuse();
    case 'i':
    case 'l':
    case 'q': return size == 8 ? DType::i64 : size == 4 ? DType::i32 : refuse();
    case 'b': return DType::i8;
    case 'B': return DType::u8;
    case '?': return DType::boolean;
    default: return refuse();
  }
}

class Buffer {
 public:
  /// Not valid, with Python's error set, when the exporter refuses.
  explicit Buffer(nb::handle exporter) noexcept : valid_(PyObject_GetBuffer(exporter.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {}
  ~Buffer() {
    if (valid_) with_gil([this] { PyBuffer_Release(&buffer_); });
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  const Py_buffer& operator*() const noexcept { return buffer_; }
  bool valid() const noexcept { return valid_; }

 private:
  Py_buffer buffer_;
  bool valid_;
};

template <class Narrow, class Wide>
Tensor widened_elements(const Py_buffer& buffer) {
  std::vector<std::int64_t> dims(buffer.shape, buffer.shape + buffer.ndim);
  std::vector<Narrow> elements(static_cast<std::size_t>(buffer.len) / sizeof(Narrow));
  if (PyBuffer_ToContiguous(elements.data(), const_cast<Py_buffer*>(&buffer), buffer.len, 'C') != 0) throw nb::python_error();
  Tensor made(std::is_same_v<Wide, std::int32_t> ? DType::i32 : DType::i64, extents(dims));
  Wide* to = made.mutable_data<Wide>();
  for (const Narrow element : elements) {
    if (!std::in_range<Wide>(element))
      throw OverflowError(fmt::format("tensor: expected integers below 9223372036854775808, found {}", element));
    *to++ = static_cast<Wide>(element);
  }
  return made;
}

bool is_numpy_bf16(nb::handle x) {
  const nb::object dtype = nb::getattr(x, "dtype", nb::none());
  return nb::hasattr(dtype, "name") && nb::hasattr(x, "view") && nb::cast<std::string>(nb::str(dtype.attr("name"))) == "bfloat16";
}

Tensor from_buffer(nb::handle exporter, bool half_is_bf16) {
  auto held = std::make_shared<Buffer>(exporter);
  if (!held->valid()) {
    const nb::python_error refused;
    // NumPy has bf16 from elsewhere (ml_dtypes), which the buffer protocol cannot name.
    if (is_numpy_bf16(exporter)) return from_buffer(exporter.attr("view")("uint16"), true);
    throw DTypeError(std::string("tensor: an array that exports no memory: ") + refused.what());
  }
  const Py_buffer& buffer = **held;
  const DType dtype = dtype_of_format(buffer, half_is_bf16);
  std::vector<std::int64_t> dims(buffer.shape, buffer.shape + buffer.ndim), strides;
  bool sharable = aligned(buffer.buf, dtype);
  const DDim row_major = extents(dims).row_major();
  if (buffer.strides == nullptr) strides.assign(row_major.begin(), row_major.end());  // an exporter that says nothing of strides, as ctypes
  for (int i = 0; buffer.strides != nullptr && i < buffer.ndim; ++i) {
    sharable = sharable && (dims[static_cast<std::size_t>(i)] <= 1 || (buffer.strides[i] >= 0 && buffer.strides[i] % buffer.itemsize == 0));
    strides.push_back(dims[static_cast<std::size_t>(i)] <= 1 ? 1 : buffer.strides[i] / buffer.itemsize);
  }
  if (PyBuffer_IsContiguous(&buffer, 'C') != 0) strides.assign(row_major.begin(), row_major.end());
  if (sharable) return view(dtype, dims, strides, std::make_shared<BorrowedMemory>(buffer.buf, [held] {}));
  Tensor copy(dtype, extents(dims));
  copy.storage()->mark_written();
  if (PyBuffer_ToContiguous(copy.raw_mutable(), const_cast<Py_buffer*>(&buffer), buffer.len, 'C') != 0) throw nb::python_error();
  return copy;
}

// ---- DLPack ----

DType dtype_of(const dlpack::DataType& type) {
  if (type.lanes == 1) {
    if (type.code == dlpack::floating && type.bits == 64) return DType::f64;
    if (type.code == dlpack::floating && type.bits == 32) return DType::f32;
    if (type.code == dlpack::floating && type.bits == 16) return DType::f16;
    if (type.code == dlpack::bfloat && type.bits == 16) return DType::bf16;
    if (type.code == dlpack::integer && type.bits == 64) return DType::i64;
    if (type.code == dlpack::integer && type.bits == 32) return DType::i32;
    if (type.code == dlpack::integer && type.bits == 8) return DType::i8;
    if (type.code == dlpack::unsigned_integer && type.bits == 8) return DType::u8;
    if (type.code == dlpack::boolean && type.bits == 8) return DType::boolean;
  }
  throw DTypeError(
      fmt::format("tensor: expected elements of f64, f32, f16, bf16, i64, i32, i8, u8 or bool, found DLPack's type {} of {} bits, {} lanes",
                  type.code, type.bits, type.lanes));
}

/// The tensor that an exporter gives. PyTorch before 2.2 has no bools for DLPack: their bytes, and `bytes_are_bools`.
nb::object capsule_of(nb::handle exporter, bool& bytes_are_bools) {
  try {
    return exporter.attr("__dlpack__")();
  } catch (const nb::python_error&) {
    if (nb::cast<std::string>(nb::str(nb::getattr(exporter, "dtype", nb::none()))) != "torch.bool") throw;
    bytes_are_bools = true;
    return exporter.attr("view")(nb::module_::import_("torch").attr("uint8")).attr("__dlpack__")();
  }
}

Tensor from_dlpack(nb::handle exporter) {
  // PyTorch exports no tensor that gradients flow through: weights of a module are taken as they are.
  if (nb::getattr(exporter, "requires_grad", nb::none()).is(nb::handle(Py_True))) return from_dlpack(exporter.attr("detach")());
  // DLPack has no bits that say that elements are negated or conjugated.
  for (const auto& [lazy, resolve] : {std::pair("is_neg", "resolve_neg"), std::pair("is_conj", "resolve_conj")})
    if (nb::hasattr(exporter, lazy) && nb::hasattr(exporter, resolve) && nb::cast<bool>(exporter.attr(lazy)()))
      return from_dlpack(exporter.attr(resolve)());
  bool bytes_are_bools = false;
  const nb::object capsule = capsule_of(exporter, bytes_are_bools);
  auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  const dlpack::Array& array = managed->array;
  if (array.device.type != dlpack::cpu && array.device.type != dlpack::cuda_host)
    throw PlaceError(
        fmt::format("tensor: expected memory of the host, found DLPack's device type {}: copy it to the host first", array.device.type));
  const DType dtype = bytes_are_bools ? DType::boolean : dtype_of(array.dtype);
  std::vector<std::int64_t> dims(array.shape, array.shape + array.rank);
  const DDim row_major = extents(dims).row_major();
  std::vector<std::int64_t> strides(row_major.begin(), row_major.end());
  if (array.strides != nullptr) strides.assign(array.strides, array.strides + array.rank);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] <= 1) strides[i] = 1;
    if (strides[i] < 0) throw ShapeError("tensor: expected strides from 0 on, found a negative one");
  }
  void* data = static_cast<std::byte*>(array.data) + array.byte_offset;
  if (!dims.empty() && !aligned(data, dtype))
    throw ArgumentError("tensor: expected elements that are aligned to their size, found others in DLPack's memory");
  // From here on this module says when the memory may go.
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  const auto release = [managed] {
    if (managed->deleter != nullptr) with_gil([managed] { managed->deleter(managed); });
  };
  return view(dtype, dims, strides, std::make_shared<BorrowedMemory>(data, release));
}

}  // namespace

namespace {

template <class Narrow>
std::optional<Tensor> widened_array(const dlpack::Array& array, DType wanted) {
  std::vector<std::int64_t> dims(array.shape, array.shape + array.rank);
  const DDim row_major = extents(dims).row_major();
  const DDim strides = array.strides == nullptr ? row_major : DDim(std::span<const std::int64_t>(array.strides, dims.size()));
  const std::byte* data = static_cast<const std::byte*>(array.data) + array.byte_offset;
  Tensor made(wanted, extents(dims));
  const auto copy = [&]<class Wide>(Wide* to) {
    for_each_offset(made.dims(), strides, [&](std::int64_t at) {
      Narrow element;
      std::memcpy(&element, data + at * static_cast<std::int64_t>(sizeof(Narrow)), sizeof(Narrow));
      if (!std::in_range<Wide>(element))
        throw OverflowError(fmt::format("tensor: expected integers below 9223372036854775808, found {}", element));
      *to++ = static_cast<Wide>(element);
    });
  };
  if (wanted == DType::i64)
    copy(made.mutable_data<std::int64_t>());
  else
    copy(made.mutable_data<std::int32_t>());
  return made;
}

/// As `widened_from`, of an array of DLPack.
std::optional<Tensor> widened_from_dlpack(nb::handle x, DType wanted) {
  bool bytes_are_bools = false;
  const nb::object capsule = capsule_of(x, bytes_are_bools);
  const auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  const dlpack::Array& array = managed->array;
  const dlpack::DataType& type = array.dtype;
  if (type.lanes != 1 || (array.device.type != dlpack::cpu && array.device.type != dlpack::cuda_host)) return {};
  if (type.code == dlpack::integer && type.bits == 16) return widened_array<std::int16_t>(array, wanted);
  if (type.code != dlpack::unsigned_integer) return {};
  if (type.bits == 16) return widened_array<std::uint16_t>(array, wanted);
  if (type.bits == 32 && wanted == DType::i64) return widened_array<std::uint32_t>(array, wanted);
  if (type.bits == 64 && wanted == DType::i64) return widened_array<std::uint64_t>(array, wanted);
  return {};
}

}  // namespace

bool exports_memory(nb::handle x) {
  if (PyObject_CheckBuffer(x.ptr()) != 0) return true;
  return !PyType_Check(x.ptr()) && PyObject_HasAttrString(x.ptr(), "__dlpack__") != 0;
}

std::optional<Tensor> widened_from(nb::handle x, DType wanted) {
  if (wanted != DType::i32 && wanted != DType::i64) return {};
  if (PyObject_CheckBuffer(x.ptr()) == 0) {
    if (!exports_memory(x)) return {};
    // A tensor of PyTorch or an array of NumPy's kind that names a dtype which needs no widening is exported once, where its dtype is checked.
    const std::string name = nb::hasattr(x, "dtype") ? nb::cast<std::string>(nb::str(x.attr("dtype"))) : "";
    const bool unsigned_or_short = name.find("uint") != name.npos || name.find("int16") != name.npos;
    for (const char* fits : {"float", "bool", "int32", "int64"})
      if (!unsigned_or_short && name.find(fits) != name.npos) return {};
    return widened_from_dlpack(x, wanted);
  }
  const Buffer held(x);
  if (!held.valid()) {
    PyErr_Clear();
    return {};
  }
  const Py_buffer& buffer = *held;
  std::string_view code = buffer.format != nullptr ? buffer.format : "B";
  if (!code.empty() && (code[0] == '@' || code[0] == '=' || code[0] == '<')) code.remove_prefix(1);
  const bool long_wanted = wanted == DType::i64;
  if (code == "h")
    return long_wanted ? widened_elements<std::int16_t, std::int64_t>(buffer) : widened_elements<std::int16_t, std::int32_t>(buffer);
  if (code == "H")
    return long_wanted ? widened_elements<std::uint16_t, std::int64_t>(buffer) : widened_elements<std::uint16_t, std::int32_t>(buffer);
  if ((code != "I" && code != "L" && code != "Q") || !long_wanted) return {};
  return buffer.itemsize == 8 ? widened_elements<std::uint64_t, std::int64_t>(buffer)
                              : widened_elements<std::uint32_t, std::int64_t>(buffer);
}

PlainRows::PlainRows(nb::handle x, DType dtype, const DDim& dims) noexcept {
  if (PyObject_CheckBuffer(x.ptr()) == 0) return;
  held_ = PyObject_GetBuffer(x.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) == 0;
  if (!held_) PyErr_Clear();
  if (!held_ || buffer_.ndim != dims.rank()) return;
  for (int axis = 0; axis < buffer_.ndim; ++axis)
    if (dims[axis] != DDim::unknown && dims[axis] != buffer_.shape[axis]) return;
  try {
    valid_ = dtype_of_format(buffer_, false) == dtype;
  } catch (const DTypeError&) {  // `tensor_from` says so
  }
}
PlainRows::~PlainRows() {
  if (held_) PyBuffer_Release(&buffer_);
}

Tensor tensor_sharing(nb::handle x) { return PyObject_CheckBuffer(x.ptr()) != 0 ? from_buffer(x, false) : from_dlpack(x); }

}  // namespace millrace::python
