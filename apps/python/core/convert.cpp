// SPDX-License-Identifier: Apache-2.0
// Numbers, nested lists and fed values as tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include <millrace/runtime/executor/feeds.h>

#include "values.h"

namespace millrace::python {
namespace {

[[noreturn]] void refuse(nb::handle x) {
  throw ArgumentError(
      fmt::format("tensor: expected a number, lists of numbers, an array (NumPy, PyTorch, DLPack) or a Tensor, found a {}", kind_of(x)));
}

/// Numbers as they are collected from lists: exact as integers, and as floats.
class Numbers {
 public:
  void add(nb::handle x) {
    if (PyBool_Check(x.ptr()) != 0) {
      push(x.ptr() == Py_True ? 1 : 0, x.ptr() == Py_True ? 1.0 : 0.0, 0);
    } else if (PyLong_Check(x.ptr()) != 0) {
      int overflow = 0;
      const long long whole = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
      if (overflow != 0) throw OverflowError("tensor: expected integers that fit i64, found a larger one");
      push(whole, static_cast<double>(whole), 1);
    } else if (PyFloat_Check(x.ptr()) != 0) {
      const double value = PyFloat_AsDouble(x.ptr());
      push(convert_element<std::int64_t>(value), value, 2);
    } else {
      refuse(x);
    }
  }
  void add(const Tensor& x) {
    visit_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const int kind = is_floating(x.dtype()) ? 2 : x.dtype() == DType::boolean ? 0 : 1;
      for (const T value : x.to_vector<T>()) push(convert_element<std::int64_t>(value), convert_element<double>(value), kind);
    });
  }
  DType dtype() const noexcept { return kind_ == 2 || wholes_.empty() ? DType::f32 : kind_ == 1 ? DType::i64 : DType::boolean; }

  Tensor tensor(DType dtype, const DDim& dims) const {
    Tensor made(dtype, dims);
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      T* to = made.mutable_data<T>();
      for (std::size_t i = 0; i < wholes_.size(); ++i)
        to[i] = is_floating(dtype) ? rounded<T>(i, dtype) : convert_element<T>(whole_of<T>(i, dtype));
    });
    return made;
  }

 private:
  /// Element i as the nearest T, of `dtype`. Infinity and NaN stay; a finite number does not become infinite.
  template <class T>
  T rounded(std::size_t i, DType dtype) const {
    const T made = convert_element<T>(floats_[i]);
    if (std::isfinite(floats_[i]) && !std::isfinite(convert_element<double>(made)))
      throw OverflowError(fmt::format("tensor: expected numbers that fit {}, found {}", name_of(dtype), floats_[i]));
    return made;
  }
  /// Element i as an integer that T, of `dtype`, holds: written numbers are not changed silently.
  template <class T>
  std::int64_t whole_of(std::size_t i, DType dtype) const {
    if (kind_ == 2 && !(std::trunc(floats_[i]) == floats_[i]))
      throw DTypeError(fmt::format("tensor: expected integers for {}, found {}", name_of(dtype), floats_[i]));
    const std::int64_t whole = wholes_[i];
    const bool fits = (kind_ != 2 || std::fabs(floats_[i]) < 0x1p63) && convert_element<std::int64_t>(convert_element<T>(whole)) == whole;
    if (!fits)
      throw OverflowError(kind_ == 2 ? fmt::format("tensor: expected integers that fit {}, found {}", name_of(dtype), floats_[i])
                                     : fmt::format("tensor: expected integers that fit {}, found {}", name_of(dtype), whole));
    return whole;
  }
  void push(std::int64_t whole, double value, int kind) {
    wholes_.push_back(whole);
    floats_.push_back(value);
    kind_ = std::max(kind_, kind);
  }
  std::vector<std::int64_t> wholes_;
  std::vector<double> floats_;
  int kind_ = 0;  ///< 0: bool, 1: integers, 2: floats
};

/// The extents of `x`, gone into along first elements; its numbers into `numbers`.
void collect(nb::handle x, std::size_t axis, std::vector<std::int64_t>& dims, bool first, Numbers& numbers) {
  if (is_list(x)) {
    if (axis >= max_rank) throw ShapeError(fmt::format("tensor: expected at most {} axes, found lists that are nested deeper", max_rank));
    const auto size = static_cast<std::int64_t>(nb::len(x));
    if (first && axis == dims.size()) dims.push_back(size);
    if (axis >= dims.size() || dims[axis] != size)
      throw ShapeError(
          fmt::format("tensor: expected lists of equal lengths, found {} elements at depth {} beside {}: mr.ragged takes sequences of "
                      "different lengths",
                      size, axis, axis < dims.size() ? fmt::format("{}", dims[axis]) : "a number"));
    bool head = first;
    for (const nb::handle element : x) {
      collect(element, axis + 1, dims, head, numbers);
      head = false;
    }
    return;
  }
  if (!is_number(x) && (nb::isinstance<Tensor>(x) || exports_memory(x))) {
    const Tensor tensor = tensor_from(x, DType::i64);  // arrays of other integers are numbers, too
    if (first && axis == dims.size()) dims.insert(dims.end(), tensor.dims().begin(), tensor.dims().end());
    if (axis > dims.size() ||
        !std::equal(dims.begin() + static_cast<std::ptrdiff_t>(axis), dims.end(), tensor.dims().begin(), tensor.dims().end()))
      throw ShapeError(fmt::format("tensor: expected elements of equal extents, found {} beside others", tensor.dims().to_string()));
    return numbers.add(tensor);
  }
  if (axis != dims.size()) throw ShapeError(fmt::format("tensor: expected lists of equal depth, found a number at depth {}", axis));
  numbers.add(x);
}

/// Whether `x` is a PackedSequence of PyTorch, which is a tuple of four fields.
bool is_packed(nb::handle x) { return PyTuple_Check(x.ptr()) != 0 && nb::hasattr(x, "batch_sizes") && nb::hasattr(x, "unsorted_indices"); }

Tensor from_lists(nb::handle x, std::optional<DType> wanted) {
  if (is_packed(x))
    throw ArgumentError("tensor: expected numbers or lists of them, found a PackedSequence: mr.ragged(x) has its sequences");
  std::vector<std::int64_t> dims;
  Numbers numbers;
  collect(x, 0, dims, true, numbers);
  if (dims.size() > max_rank) throw ShapeError(fmt::format("tensor: expected at most {} axes, found {}", max_rank, dims.size()));
  return numbers.tensor(wanted.value_or(numbers.dtype()), make_ddim(dims));
}

/// The dtype that the numbers in `x` say.
DType dtype_of_lists(nb::handle x) {
  std::vector<std::int64_t> dims;
  Numbers numbers;
  collect(x, 0, dims, true, numbers);
  return numbers.dtype();
}

// ---- Sequences ----

/// The lists of `levels` levels as lengths, and what is below them.
void take_apart(nb::handle x, std::size_t level, std::vector<LoD::Level>& lengths, std::vector<nb::object>& leaves) {
  for (const nb::handle sequence : x) {
    if (level + 1 == lengths.size()) {
      leaves.push_back(nb::borrow(sequence));
      continue;
    }
    if (!is_list(sequence))
      throw LoDError(
          fmt::format("ragged: expected lists on {} levels, found a {} on level {}", lengths.size(), kind_of(sequence), level + 1));
    lengths[level].push_back(static_cast<std::int64_t>(nb::len(sequence)));
    take_apart(sequence, level + 1, lengths, leaves);
  }
}

Tensor joined_rows(const std::vector<Tensor>& parts, const DDim& row, DType dtype, std::int64_t rows) {
  Tensor made(dtype, row.inserted(0, rows));
  made.storage()->mark_written();
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  for (const Tensor& part : parts) {
    if (part.elements() == 0) continue;
    const Tensor whole = part.is_contiguous() ? part : copy_of(part);
    std::memcpy(to, whole.raw(), whole.bytes());
    to += whole.bytes();
  }
  return made;
}

Tensor row_major(Tensor x) { return x.is_contiguous() ? x : copy_of(x); }

std::vector<std::int64_t> whole_numbers(nb::handle array) {
  const Tensor made = tensor_from(array);
  if (made.dtype() != DType::i64 || made.rank() != 1)
    throw DTypeError(fmt::format("packed sequence: expected batch_sizes and indices of i64[?], found {}", made.to_string()));
  return made.to_vector<std::int64_t>();
}

/// The sequences of a PackedSequence of PyTorch in the order of its caller. Its rows lie iteration by iteration: batch_sizes[t] of them at iteration t, of
/// the longest sequences first; sequence i of the caller is unsorted_indices[i] of these.
LoDTensor unpacked(nb::handle x) {
  const Tensor rows = row_major(tensor_from(x.attr("data")));
  const std::vector<std::int64_t> batch = whole_numbers(x.attr("batch_sizes"));
  if (rows.rank() < 1) throw ShapeError(fmt::format("packed sequence: expected rows, found {}", rows.to_string()));
  std::int64_t sum = 0, before = batch.empty() ? 0 : batch.front();
  std::vector<std::int64_t> offsets, order;
  for (const std::int64_t size : batch) {
    if (size < 1 || size > before)
      throw LoDError(fmt::format("packed sequence: expected batch_sizes that do not grow, from 1 on, found {} behind {}", size, before));
    offsets.push_back(sum);
    sum += before = size;
  }
  if (sum != rows.dim(0)) throw LoDError(fmt::format("packed sequence: expected {} rows as in batch_sizes, found {}", sum, rows.dim(0)));
  const std::int64_t count = batch.empty() ? 0 : batch.front();
  const nb::object unsorted = x.attr("unsorted_indices");
  if (!unsorted.is_none()) order = whole_numbers(unsorted);
  for (std::int64_t i = 0; unsorted.is_none() && i < count; ++i) order.push_back(i);
  if (static_cast<std::int64_t>(order.size()) != count)
    throw LoDError(fmt::format("packed sequence: expected {} unsorted_indices, found {}", count, order.size()));

  Tensor made(rows.dtype(), rows.dims());
  made.storage()->mark_written();
  const std::size_t row = sum > 0 ? static_cast<std::size_t>(rows.bytes()) / static_cast<std::size_t>(sum) : 0;
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  LoD::Level lengths;
  for (const std::int64_t sequence : order) {
    if (sequence < 0 || sequence >= count)
      throw IndexError(fmt::format("packed sequence: expected unsorted_indices in [0, {}), found {}", count, sequence));
    std::int64_t length = 0;
    for (; length < static_cast<std::int64_t>(batch.size()) && batch[static_cast<std::size_t>(length)] > sequence; ++length) {
      const std::int64_t from = offsets[static_cast<std::size_t>(length)] + sequence;
      if (row > 0) std::memcpy(to, static_cast<const std::byte*>(rows.raw()) + static_cast<std::size_t>(from) * row, row);
      to += row;
    }
    lengths.push_back(length);
  }
  if (std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) != sum)
    throw LoDError("packed sequence: expected each sequence once in unsorted_indices, found one twice");
  return LoDTensor(std::move(made), LoD::from_lengths({lengths}));
}

/// Whether `x` may be the lengths of `levels` levels: integers; of several levels a list of such.
bool is_lengths(nb::handle x, int levels) {
  if (levels > 1) {
    if (!is_list(x) || static_cast<int>(nb::len(x)) != levels) return false;
    for (const nb::handle level : x)
      if (!is_lengths(level, 1)) return false;
    return true;
  }
  if (is_list(x)) {
    for (const nb::handle one : x)
      if (!is_number(one) || PyFloat_Check(one.ptr()) != 0) return false;
    return true;
  }
  if (!nb::isinstance<Tensor>(x) && !exports_memory(x)) return false;
  const Tensor made = tensor_from(x, DType::i64);
  return made.rank() == 1 && !is_floating(made.dtype()) && made.dtype() != DType::boolean;
}

/// Whether lengths of one level may be numbers of a sequence of `dtype`.
bool may_be_rows(nb::handle lengths, DType dtype) {
  if (is_list(lengths) || tensor_from(lengths, DType::i64).dtype() == dtype) return true;
  return dtype == DType::i32 && widened_from(lengths, dtype);
}

/// `x` where it is a pair (rows, lengths): a tuple of an array and of integers that cannot be two sequences of the input. ArgumentError where it can be both.
std::optional<LoDTensor> pair_from(nb::handle x, const VarType& wanted) {
  if (PyTuple_Check(x.ptr()) == 0 || nb::len(x) != 2) return {};
  const nb::object rows = x[0], lengths = x[1];
  const bool named = nb::hasattr(x, "rows") && nb::hasattr(x, "lengths");  // millrace.torch.Ragged
  if (!named && ((!nb::isinstance<Tensor>(rows) && !exports_memory(rows)) || is_number(rows) || !is_lengths(lengths, wanted.lod_depth)))
    return {};
  const Tensor values = row_major(tensor_from(rows, wanted.dtype));
  if (!named && wanted.lod_depth == 1) {
    if (values.rank() == 0 || (nb::len(lengths) == 0 && values.dim(0) > 0)) return {};  // the second sequence is empty
    if (values.rank() == 1 && wanted.rank() <= 1 && may_be_rows(lengths, wanted.dtype))
      throw ArgumentError(
          "expected a list of sequences, or mr.LoDTensor(rows, lengths), found a tuple of two arrays of numbers, which may be two "
          "sequences, "
          "or rows and lengths");
  }
  return lod_tensor_from(nb::cast(values), lengths);
}

bool is_leaf_list(nb::handle x) { return is_list(x) && nb::len(x) == 0; }

}  // namespace

bool is_list(nb::handle x) { return PyList_Check(x.ptr()) != 0 || PyTuple_Check(x.ptr()) != 0; }
bool is_number(nb::handle x) { return PyBool_Check(x.ptr()) != 0 || PyLong_Check(x.ptr()) != 0 || PyFloat_Check(x.ptr()) != 0; }
bool is_sized_float(nb::handle x) { return PyFloat_Check(x.ptr()) != 0 && PyFloat_CheckExact(x.ptr()) == 0 && exports_memory(x); }
std::string kind_of(nb::handle x) { return nb::cast<std::string>(nb::str(x.type().attr("__name__"))); }
void refuse_argument(nb::handle x, const std::string& who, const char* expected) {
  std::string found = nb::cast<std::string>(nb::repr(x));
  constexpr std::size_t most = 120;
  if (found.size() > most) found = "a " + kind_of(x);
  throw nb::type_error(fmt::format("{}: expected {}, found {}", who, expected, found).c_str());
}
int threads_from(std::int64_t threads, const char* who) {
  constexpr std::int64_t most = 1024;
  if (threads < 1 || threads > most) throw ArgumentError(fmt::format("{}: expected 1 to {} threads, found {}", who, most, threads));
  return static_cast<int>(threads);
}
Tensor copy_of(const Tensor& x) { return x.copy_to(CpuPlace{}); }

std::string meant(const std::string& name, const std::string& names) {
  const nb::object lowered = nb::cast(name).attr("lower")();
  nb::dict by_lowered;
  for (const nb::handle one : nb::cast(names).attr("split")(", ")) by_lowered[one.attr("lower")()] = one;
  const nb::object close = nb::module_::import_("difflib").attr("get_close_matches")(lowered, by_lowered.attr("keys")(), 1);
  return nb::len(close) == 0 ? "" : fmt::format(": did you mean '{}'?", nb::cast<std::string>(by_lowered[close[0]]));
}

std::int64_t index_from(nb::handle x) {
  PyObject* const made = PyNumber_Index(x.ptr());
  if (made == nullptr) throw nb::python_error();
  return nb::cast<std::int64_t>(nb::steal(made));
}

bool is_array_of_indices(nb::handle x) {
  if (!exports_memory(x)) return false;
  return PyIndex_Check(x.ptr()) == 0 || nb::cast<int>(nb::getattr(x, "ndim", nb::int_(0))) > 0;
}

std::vector<std::int64_t> extents_from(const nb::args& shape, const char* who) {
  const bool one = shape.size() == 1 && PyIndex_Check(shape[0].ptr()) == 0;
  return argument<std::vector<std::int64_t>>(one ? nb::object(shape[0]) : nb::object(shape), who, "integers");
}

DType dtype_from(nb::handle x) {
  if (nb::isinstance<DType>(x)) return nb::cast<DType>(x);
  std::string name;
  if (PyUnicode_Check(x.ptr()) != 0)
    name = nb::cast<std::string>(x);
  else if (x.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type))
    return DType::f32;
  else if (x.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type))
    return DType::i64;
  else if (x.ptr() == reinterpret_cast<PyObject*>(&PyBool_Type))
    return DType::boolean;
  else if (nb::hasattr(x, "name"))  // np.dtype
    name = nb::cast<std::string>(nb::str(x.attr("name")));
  else if (PyType_Check(x.ptr()) != 0)  // np.float32
    name = nb::cast<std::string>(nb::str(x.attr("__name__")));
  else
    name = nb::cast<std::string>(nb::str(x));  // torch.float32
  if (name.rfind("torch.", 0) == 0) name = name.substr(6);
  static const std::map<std::string, std::string> others{{"float64", "f64"}, {"double", "f64"}, {"float32", "f32"},   {"float", "f32"},
                                                         {"float16", "f16"}, {"half", "f16"},   {"bfloat16", "bf16"}, {"int64", "i64"},
                                                         {"long", "i64"},    {"int32", "i32"},  {"int", "i32"},       {"int8", "i8"},
                                                         {"uint8", "u8"},    {"bool_", "bool"}};
  const auto found = others.find(name);
  try {
    return dtype_named(found != others.end() ? found->second : name);
  } catch (const ParseError& error) {
    throw DTypeError(error.what());
  }
}

Tensor tensor_from(nb::handle x, std::optional<DType> wanted) {
  if (nb::isinstance<Tensor>(x)) return nb::cast<Tensor>(x);
  const bool sized = !wanted && is_sized_float(x);
  if (!sized && (is_number(x) || is_list(x))) return from_lists(x, wanted);
  if (!exports_memory(x)) refuse(x);
  try {
    return tensor_sharing(x);
  } catch (const DTypeError&) {
    if (wanted)
      if (std::optional<Tensor> made = widened_from(x, *wanted)) return std::move(*made);
    throw;
  }
}

LoDTensor ragged_from(nb::handle x, int levels, std::optional<DType> wanted, const std::optional<DDim>& row) {
  constexpr int most_levels = 64;
  if (levels < 1 || levels > most_levels)
    throw ArgumentError(fmt::format("ragged: expected 1 to {} levels, found {}", most_levels, levels));
  if (is_packed(x)) {
    if (levels != 1) throw LoDError(fmt::format("ragged: expected sequences of {} levels, found a PackedSequence, which has 1", levels));
    LoDTensor made = unpacked(x);
    if (wanted && made.dtype() != *wanted)
      throw DTypeError(
          fmt::format("ragged: expected sequences of {}, found a PackedSequence of {}", name_of(*wanted), name_of(made.dtype())));
    return made;
  }
  std::vector<LoD::Level> lengths(static_cast<std::size_t>(levels));
  std::vector<nb::object> leaves;
  take_apart(x, 0, lengths, leaves);
  // Lists of numbers beside one another take one dtype, which all of them say together.
  std::vector<std::optional<Tensor>> parts(leaves.size());
  bool floats = false, integers = false, lists = false;
  std::optional<DType> dtype = wanted;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (is_leaf_list(leaves[i])) continue;
    if (is_list(leaves[i])) {
      const DType said = dtype_of_lists(leaves[i]);
      lists = true;
      floats = floats || said == DType::f32;
      integers = integers || said == DType::i64;
      continue;
    }
    parts[i] = tensor_from(leaves[i], wanted);
    if (dtype && *dtype != parts[i]->dtype())
      throw DTypeError(
          fmt::format("ragged: expected sequences of {}, found {} in sequence {}", name_of(*dtype), name_of(parts[i]->dtype()), i));
    dtype = parts[i]->dtype();
  }
  if (!dtype) dtype = !lists || floats ? DType::f32 : integers ? DType::i64 : DType::boolean;
  std::optional<DDim> found = row;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!parts[i] && !is_leaf_list(leaves[i])) parts[i] = from_lists(leaves[i], dtype);
    const std::int64_t count = parts[i] && parts[i]->rank() > 0 ? parts[i]->dim(0) : 0;
    if (parts[i] && parts[i]->rank() == 0)
      throw LoDError(fmt::format("ragged: expected a sequence of rows, found the number {} as sequence {}", parts[i]->item(), i));
    lengths.back().push_back(count);
    rows += count;
    if (!parts[i]) continue;
    const DDim one = parts[i]->dims().erased(0);
    if (found && !(VarType(*dtype, *found).shape && fits(VarType(*dtype, one), VarType(*dtype, *found))))
      throw ShapeError(fmt::format("ragged: expected rows of {}, found {} in sequence {}", found->to_string(), one.to_string(), i));
    found = one;
  }
  std::vector<Tensor> held;
  for (std::optional<Tensor>& part : parts)
    if (part) held.push_back(std::move(*part));
  DDim one = found.value_or(DDim{});
  for (int axis = 0; axis < one.rank(); ++axis)
    if (one[axis] == DDim::unknown) one[axis] = 0;  // no sequence has a row that could say more
  const LoD lod = LoD::from_lengths(lengths);
  if (held.size() == 1) return LoDTensor(row_major(std::move(held.front())), lod);
  return LoDTensor(joined_rows(held, one, *dtype, rows), lod);
}

namespace {

VarType slot_type(const VarType& array) {
  VarType made = VarType::unranked(array.dtype);
  made.shape = array.shape;
  made.lod_depth = array.lod_depth;
  return made;
}

}  // namespace

Value slot_from(nb::handle x, const std::string& name, const VarType& array) {
  const VarType wanted = slot_type(array);
  Value value = value_from(x, name, wanted);
  if (!array.open || !value.is_tensor()) check_feed(name, wanted, value);
  return value;
}

namespace {

TensorArray array_from(nb::handle x, const std::string& name, const VarType& wanted) {
  if (!is_list(x))
    throw ArgumentError(fmt::format("expected a list with the value of each slot, found a {} (input '{}')", kind_of(x), name));
  const TensorArray array = TensorArray::growable();
  std::int64_t number = 0;
  for (const nb::handle slot : x) {
    const Value value = slot_from(slot, fmt::format("{}[{}]", name, number++), wanted);
    (void)array.append(value.tensor());
  }
  array.close();
  return array;
}

}  // namespace

Value value_from(nb::handle x, const std::string& name, const VarType& wanted) {
  if (nb::isinstance<Tensor>(x)) return row_major(nb::cast<Tensor>(x));
  if (nb::isinstance<LoDTensor>(x)) {
    const auto value = nb::cast<LoDTensor>(x);
    return value.tensor().is_contiguous() ? value : LoDTensor(copy_of(value.tensor()), value.lod());
  }
  if (x.is_none()) return {};
  if (nb::isinstance<ValueObject>(x)) return nb::cast<const ValueObject&>(x).value;
  const VarType held = wanted.is_optional() ? wanted.held() : wanted;
  if (held.is_array()) return array_from(x, name, held);
  try {
    if (held.is_list()) {
      if (!is_list(x)) throw ArgumentError(fmt::format("expected a list of tensors, found a {}", kind_of(x)));
      std::vector<Tensor> elements;
      for (const nb::handle element : x) elements.push_back(row_major(tensor_from(element, held.dtype)));
      return TensorList(std::move(elements));
    }
    if (held.lod_depth > 0 && is_list(x)) {
      if (std::optional<LoDTensor> pair = pair_from(x, held)) return std::move(*pair);
      std::optional<DDim> row;
      if (held.shape && held.rank() > 0) row = held.shape->erased(0);
      return ragged_from(x, held.lod_depth, held.dtype, row);
    }
    return row_major(tensor_from(x, held.dtype));
  } catch (Error& error) {
    error.add_context(fmt::format(" (input '{}')", name));
    throw;
  }
}

nb::object object_from(const LoDTensor& value) { return value.lod().empty() ? nb::cast(value.tensor()) : nb::cast(value); }

nb::object object_from(const Value& value) {
  if (value.empty()) return nb::none();
  if (value.is_tensor()) return object_from(static_cast<const LoDTensor&>(value.tensor()));
  nb::list made;
  if (value.is_list()) {
    for (const Tensor& element : value.list().elements()) made.append(nb::cast(element));
    return made;
  }
  if (!value.is_array()) throw UnsupportedError("result: an order has no counterpart in Python");
  for (std::int64_t i = 0; i < value.array().size(); ++i) {
    const std::optional<LoDTensor> slot = value.array().peek(i);
    made.append(slot ? object_from(*slot) : nb::none());
  }
  return made;
}

}  // namespace millrace::python

namespace nanobind::detail {

bool type_caster<millrace::python::TensorLike>::from_python(handle x, uint32_t, cleanup_list*) noexcept {
  try {
    return millrace::python::is_number(x) || millrace::python::is_list(x) || millrace::python::exports_memory(x);
  } catch (...) {
    return false;
  }
}

bool type_caster<millrace::python::VarLike>::from_python(handle x, uint32_t flags, cleanup_list* cleanup) noexcept {
  return isinstance<millrace::Tensor>(x) || type_caster<millrace::python::TensorLike>().from_python(x, flags, cleanup);
}

}  // namespace nanobind::detail
