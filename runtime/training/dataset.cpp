// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/dataset.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

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
                     " sequences, as the rows have, found " + std::to_string(target_lod.depth()) + " levels with " +
                     std::to_string(target_lod.sequences(0)));
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
    const char* const kind = tensor != &targets ? ", rows: row " : per_row ? ", targets: row " : ", targets: sequence ";
    std::string where = kind + std::to_string(row);
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
          words,
          columns};
}

namespace {

/// The sums of one feature, in three passes over its values, which come row by row: `see`, `add`, `spread`.
class FeatureSums {
 public:
  explicit FeatureSums(double first) : first_(first) {}

  void see(double value) {
    greatest_ = std::max(greatest_, std::abs(value));
    constant_ = constant_ && value == first_;
  }
  /// Chooses a scale once `see` has had all values: a power of two by which sums and squares lose no digit, and neither overflow nor vanish.
  void choose_scale() {
    exponent_ = greatest_ == 0 ? 0 : std::clamp(std::ilogb(greatest_), -1000, 1000);
    scale_ = std::ldexp(1.0, -exponent_);
  }
  void add(double value) { sum_ += value * scale_; }
  void divide(std::int64_t rows) { sum_ /= static_cast<double>(rows); }
  void spread(double value) {
    const double apart = value * scale_ - sum_;
    farthest_ = std::max(farthest_, std::abs(apart));
    squares_ += apart * apart;
  }

  /// The mean of equal numbers may be rounded: a deviation of 1e-17 would make great numbers of nothing.
  double mean() const { return constant_ ? first_ : std::ldexp(sum_, exponent_); }
  double deviation(std::int64_t rows) const {
    return constant_ ? 1.0 : std::ldexp(std::sqrt(squares_ / static_cast<double>(rows)), exponent_);
  }
  /// The reason for which T does not hold (x − mean) / deviation; empty where it does.
  template <class T>
  std::string objection(std::int64_t rows) const {
    using Limits = std::numeric_limits<T>;
    if (constant_) return "";
    std::ostringstream text;
    if (!(deviation(rows) >= static_cast<double>(Limits::min())))
      text << "expected a deviation of at least " << Limits::min() << ", found " << deviation(rows);
    else if (!(std::ldexp(farthest_, exponent_) <= static_cast<double>(Limits::max())))
      text << "expected values at most " << Limits::max() << " from their mean " << mean() << ", found a greater distance";
    return text.str();
  }

 private:
  double first_;
  bool constant_ = true;
  int exponent_ = 0;
  double greatest_ = 0, scale_ = 1, sum_ = 0, squares_ = 0, farthest_ = 0;
};

}  // namespace

FeatureScale feature_scale(const Dataset& data) {
  const Tensor& x = data.x.tensor();
  const std::int64_t width = x.rank() < 2 ? 1 : x.dim(x.rank() - 1);
  const auto count = static_cast<std::size_t>(width);
  FeatureScale scale{std::vector<double>(count, 0.0), std::vector<double>(count, 1.0)};
  const std::int64_t rows = width == 0 ? 0 : x.elements() / width;
  if (rows == 0) return scale;
  internal::visit_floats(data.source, x.dtype(), [&]<class T>(std::type_identity<T>) {
    using Compute = internal::ComputeType<T>;
    const T* from = x.data<T>();
    const auto at = [&](std::int64_t i) { return static_cast<double>(static_cast<Compute>(from[i])); };
    std::vector<FeatureSums> sums;
    for (std::int64_t k = 0; k < width; ++k) sums.emplace_back(at(k));
    for (std::int64_t i = 0; i < x.elements(); ++i) sums[static_cast<std::size_t>(i % width)].see(at(i));
    for (FeatureSums& feature : sums) feature.choose_scale();
    for (std::int64_t i = 0; i < x.elements(); ++i) sums[static_cast<std::size_t>(i % width)].add(at(i));
    for (FeatureSums& feature : sums) feature.divide(rows);
    for (std::int64_t i = 0; i < x.elements(); ++i) sums[static_cast<std::size_t>(i % width)].spread(at(i));
    for (std::size_t k = 0; k < count; ++k) {
      if (const std::string objection = sums[k].template objection<Compute>(rows); !objection.empty())
        throw ArgumentError(data.source + ", rows, element " + std::to_string(k) + ": standardize: " + objection);
      scale.mean[k] = sums[k].mean();
      scale.deviation[k] = sums[k].deviation(rows);
    }
  });
  return scale;
}

}  // namespace millrace::training
