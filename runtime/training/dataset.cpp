// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/dataset.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <millrace/runtime/training/internal/floats.h>

namespace millrace::training {
namespace {

/// Rows [first, second) of `from`, range by range, one behind the other.
Tensor gather_ranges(const Tensor& from, const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) {
  DDim dims = from.dims();
  dims[0] = 0;
  for (const auto& [begin, end] : ranges) dims[0] += end - begin;
  Tensor made(from.dtype(), dims);
  const std::size_t row = from.dim(0) == 0 ? 0 : from.bytes() / static_cast<std::size_t>(from.dim(0));
  visit_dtype(from.dtype(), [&]<class T>(std::type_identity<T>) {
    auto* to = reinterpret_cast<unsigned char*>(made.mutable_data<T>());
    if (made.elements() == 0) return;
    const auto* source = reinterpret_cast<const unsigned char*>(from.data<T>());
    for (const auto& [begin, end] : ranges) {
      const std::size_t count = row * static_cast<std::size_t>(end - begin);
      if (count > 0) std::memcpy(to, source + row * static_cast<std::size_t>(begin), count);
      to += count;
    }
  });
  return made;
}

constexpr std::int64_t most_numbers = std::int64_t{1} << 20;  // a model has weights for each class and each word

/// IndexError, naming the source, unless all of `numbers`, which are `what`, are from 0 to 2²⁰ − 1.
void expect_numbers(const Tensor& numbers, const std::string& source, const std::string& what, const std::string& one) {
  const std::vector<std::int64_t> all = numbers.to_vector<std::int64_t>();
  const auto wrong = std::find_if(all.begin(), all.end(), [](std::int64_t number) { return number < 0 || number >= most_numbers; });
  if (wrong == all.end()) return;
  const std::string expected = *wrong < 0 ? " from 0 on" : " from 0 to " + std::to_string(most_numbers - 1);
  throw IndexError(source + ": expected " + what + expected + ", found " + std::to_string(*wrong) + " as " + one + " " +
                   std::to_string(wrong - all.begin()));
}

}  // namespace

void Dataset::validate() const {
  if (x.lod().depth() < 1) throw LoDError(source + ": expected rows with at least one level of sequences, found none");
  if (x.tensor().dtype() == DType::i64) expect_numbers(x.tensor(), source, "words", "element");
  if (targets.rank() < 1) throw ShapeError(source + ": expected a target for each " + (per_row ? "row" : "sequence") + ", found a scalar");
  if (has_tokens()) {
    if (per_row || target_lod.depth() != 1 || target_lod.sequences(0) != sequences())
      throw LoDError(source + ": expected one level of target tokens with " + std::to_string(sequences()) +
                     " sequences, as the rows have, found " + target_lod.to_string());
    if (targets.dtype() != DType::i64) throw DTypeError(source + ": expected target tokens of i64, found " + targets.to_string());
    target_lod.validate(targets.dim(0));
  }
  const std::int64_t wanted = per_row ? rows() : sequences();
  if (!has_tokens() && targets.dim(0) != wanted)
    throw ShapeError(source + ": expected " + std::to_string(wanted) + " targets, one for each " + (per_row ? "row" : "sequence") +
                     ", found " + std::to_string(targets.dim(0)));
  if (!is_floating(targets.dtype()) && targets.dtype() != DType::i64)
    throw DTypeError(source + ": expected targets of i64 (classes) or floating values, found " + targets.to_string());
  if (targets.dtype() != DType::i64) return;
  if (targets.rank() != 1) throw ShapeError(source + ": expected classes of one axis, found " + targets.to_string());
  expect_numbers(targets, source, "classes", "target");
  if (classes.empty()) return;
  for (const std::int64_t label : targets.to_vector<std::int64_t>())
    if (std::cmp_greater_equal(label, classes.size()))
      throw IndexError(source + ": expected a class from 0 to " + std::to_string(classes.size() - 1) + ", found " + std::to_string(label));
}

namespace {

/// The place of the first element that is no finite number, and that element; −1: none.
std::pair<std::int64_t, double> first_not_finite(const Tensor& tensor) {
  std::pair<std::int64_t, double> found{-1, 0};
  if (!is_floating(tensor.dtype())) return found;
  const Tensor held = internal::dense(tensor);
  internal::visit_floats("", held.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const values = held.elements() == 0 ? nullptr : held.data<T>();
    for (std::int64_t i = 0; i < held.elements() && found.first < 0; ++i)
      if (const auto value = convert_element<double>(values[i]); !std::isfinite(value)) found = {i, value};
  });
  return found;
}

}  // namespace

void Dataset::expect_finite() const {
  for (const Tensor* tensor : {&x.tensor(), &targets}) {
    const auto [at, value] = first_not_finite(*tensor);
    if (at < 0) continue;
    const std::int64_t width = tensor->elements() / tensor->dim(0), row = at / width;
    std::string where = (tensor == &targets ? ", targets: row " : ", rows: row ") + std::to_string(row);
    for (std::int64_t i = 0; i < sequences() && tensor != &targets; ++i) {
      const auto [begin, end] = x.lod().row_range(0, i, i + 1);
      if (row >= begin && row < end) where += " (row " + std::to_string(row - begin) + " of sequence " + std::to_string(i) + ")";
    }
    throw ArgumentError(source + where + ", element " + std::to_string(at % width) + ": expected a finite number, found " +
                        std::to_string(value));
  }
}

std::int64_t Dataset::terms() const {
  if (has_tokens()) return targets.dim(0) + sequences();
  return per_row ? rows() : sequences();
}

Dataset Dataset::select(std::span<const std::int64_t> chosen) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> of_rows, of_sequences;
  for (const std::int64_t sequence : chosen) {
    of_rows.push_back(x.lod().row_range(0, sequence, sequence + 1));
    of_sequences.push_back(has_tokens() ? target_lod.row_range(0, sequence, sequence + 1) : std::pair(sequence, sequence + 1));
  }
  return {LoDTensor(gather_ranges(x.tensor(), of_rows), x.lod().select(chosen)),
          gather_ranges(targets, per_row ? of_rows : of_sequences),
          per_row,
          classes,
          source,
          has_tokens() ? target_lod.select(chosen) : LoD(),
          words};
}

FeatureScale feature_scale(const Dataset& data) {
  const Tensor& x = data.x.tensor();
  const std::int64_t width = x.rank() < 2 ? 1 : x.dim(x.rank() - 1);
  const auto count = static_cast<std::size_t>(width);
  FeatureScale scale{std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)};
  const std::int64_t rows = width == 0 ? 0 : x.elements() / width;
  if (rows == 0) return {scale.mean, std::vector<double>(count, 1.0)};
  internal::visit_floats(data.source, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* from = x.data<T>();
    const auto at = [&](std::int64_t i) { return static_cast<double>(static_cast<internal::ComputeType<T>>(from[i])); };
    for (std::int64_t i = 0; i < x.elements(); ++i) scale.mean[static_cast<std::size_t>(i % width)] += at(i);
    for (double& mean : scale.mean) mean /= static_cast<double>(rows);
    // The mean of equal numbers may be rounded: a deviation of 1e-17 would make great numbers of nothing.
    for (std::size_t k = 0; k < count; ++k) {
      const double first = at(static_cast<std::int64_t>(k));
      bool equal = true;
      for (std::int64_t i = static_cast<std::int64_t>(k); equal && i < x.elements(); i += width) equal = at(i) == first;
      if (equal) scale.mean[k] = first;
    }
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const double apart = at(i) - scale.mean[static_cast<std::size_t>(i % width)];
      scale.deviation[static_cast<std::size_t>(i % width)] += apart * apart;
    }
  });
  for (double& deviation : scale.deviation) deviation = deviation > 0 ? std::sqrt(deviation / static_cast<double>(rows)) : 1.0;
  return scale;
}

}  // namespace millrace::training
