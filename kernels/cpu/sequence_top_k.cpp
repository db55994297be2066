// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/sequence_top_k.h>

#include <algorithm>
#include <numeric>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/segments.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// The `count` best rows of each column so far, in order; rows come ascending, so that an equal one stays behind.
template <class Wide>
class Best {
 public:
  Best(std::int64_t count, std::int64_t columns, bool largest)
      : count_(count), columns_(columns), largest_(largest), values_(size()), rows_(size()), worst_(static_cast<std::size_t>(columns)) {}

  /// Row `row` of the columns, which `value(c)` gives.
  template <class F>
  void take(std::int64_t row, F value) {
    for (std::int64_t c = 0; c < columns_; ++c) {
      const Wide v = value(c);
      if (row < count_ || beats(v, worst_[static_cast<std::size_t>(c)])) insert(row, c, v);
    }
  }
  std::int64_t row(std::int64_t place, std::int64_t column) const { return rows_[static_cast<std::size_t>(column * count_ + place)]; }

 private:
  std::size_t size() const { return static_cast<std::size_t>(count_ * columns_); }
  bool beats(Wide v, Wide other) const {
    return largest_ ? v > other || (v != v && other == other) : v < other || (v == v && other != other);
  }
  void insert(std::int64_t row, std::int64_t column, Wide v) {
    Wide* const values = values_.data() + column * count_;
    std::int64_t* const rows = rows_.data() + column * count_;
    std::int64_t place = std::min(row, count_ - 1);
    for (; place > 0 && beats(v, values[place - 1]); --place) {
      values[place] = values[place - 1];
      rows[place] = rows[place - 1];
    }
    values[place] = v;
    rows[place] = row;
    if (row + 1 >= count_) worst_[static_cast<std::size_t>(column)] = values[count_ - 1];
  }

  std::int64_t count_, columns_;
  bool largest_;
  std::vector<Wide> values_;
  std::vector<std::int64_t> rows_;
  std::vector<Wide> worst_;
};

template <class T, class Wide>
void run_type(const Tensor& x, const std::vector<std::int64_t>& offsets, bool largest, const Tensor& values, const Tensor& places,
              const std::vector<std::int64_t>& made, ThreadTeam& team) {
  const std::int64_t columns = x.dims().erased(0).elements();
  const T* from = static_cast<const T*>(x.raw());
  T* best = static_cast<T*>(values.raw_mutable());
  auto* where = static_cast<std::int64_t*>(places.raw_mutable());
  each_segment(offsets, columns, team, [&](std::int64_t n, std::int64_t begin, std::int64_t end) {
    const std::int64_t target = made[static_cast<std::size_t>(n)];
    const std::int64_t count = made[static_cast<std::size_t>(n) + 1] - target;
    constexpr std::int64_t few = 32;
    if (count > 0 && count <= few) {
      Best<Wide> kept(count, columns, largest);
      for (std::int64_t row = begin; row < end; ++row)
        kept.take(row - begin, [&](std::int64_t c) { return convert_element<Wide>(from[row * columns + c]); });
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t c = 0; c < columns; ++c) {
          best[(target + i) * columns + c] = from[(begin + kept.row(i, c)) * columns + c];
          where[(target + i) * columns + c] = kept.row(i, c);
        }
      return;
    }
    std::vector<std::int64_t> rows(static_cast<std::size_t>(end - begin));
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto value = [&](std::int64_t row) { return convert_element<Wide>(from[(begin + row) * columns + c]); };
      std::iota(rows.begin(), rows.end(), std::int64_t{0});
      std::partial_sort(rows.begin(), rows.begin() + count, rows.end(), [&](std::int64_t a, std::int64_t b) {
        const Wide left = value(a);
        const Wide right = value(b);
        const bool left_nan = left != left;
        const bool right_nan = right != right;
        if (left_nan != right_nan) return left_nan == largest;
        if (!left_nan && left != right) return (left > right) == largest;
        return a < b;
      });
      for (std::int64_t i = 0; i < count; ++i) {
        best[(target + i) * columns + c] = from[(begin + rows[static_cast<std::size_t>(i)]) * columns + c];
        where[(target + i) * columns + c] = rows[static_cast<std::size_t>(i)];
      }
    }
  });
}

template <class T>
void run_top_k(const Tensor& x, bool largest, const Tensor& values, const Tensor& places, ThreadTeam& team) {
  const std::int64_t n = x.dim(-1), count = values.dim(-1);
  const T* from = static_cast<const T*>(x.raw());
  T* best = static_cast<T*>(values.raw_mutable());
  auto* where = static_cast<std::int64_t*>(places.raw_mutable());
  team.parallel(values.elements() / count, std::max<std::int64_t>(1, grain_heavy / n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      best_of_row(largest, from + row * n, n, count, best + row * count, where + row * count);
  });
}

/// The averages of one row of a matrix, whose elements are in `row`; puts its greatest in front.
template <class T, class Wide>
void averages(std::vector<Wide>& row, const std::vector<std::int64_t>& ks, T* to) {
  const std::int64_t most = ks.empty() ? 0 : std::min<std::int64_t>(*std::max_element(ks.begin(), ks.end()), std::ssize(row));
  std::partial_sort(row.begin(), row.begin() + most, row.end(), [](Wide a, Wide b) { return a > b || (a != a && b == b); });
  for (const std::int64_t k : ks) {
    Wide sum{};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(k, std::ssize(row)); ++i) sum += row[static_cast<std::size_t>(i)];
    *to++ = convert_element<T>(sum / static_cast<Wide>(k));
  }
}

}  // namespace

void top_k(const Tensor& x, bool largest, const Tensor& values, const Tensor& places, ThreadTeam& team) {
  if (values.elements() == 0) return;
  x.dtype() == DType::f64 ? run_top_k<double>(x, largest, values, places, team) : run_top_k<float>(x, largest, values, places, team);
}

void sequence_top_k_average(const Tensor& x, const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& firsts,
                            const std::vector<std::int64_t>& columns, const SequenceTopKAverage& options, const Tensor& out,
                            ThreadTeam& team) {
  const auto kinds = static_cast<std::int64_t>(options.ks.size());
  if (out.elements() == 0) return;
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    using T = decltype(element);
    const T* from = static_cast<const T*>(x.raw());
    T* to = static_cast<T*>(out.raw_mutable());
    each_segment(firsts, out.dim(1), team, [&](std::int64_t n, std::int64_t first, std::int64_t last) {
      const std::int64_t width = columns[static_cast<std::size_t>(n)];
      const T* matrix = from + offsets[static_cast<std::size_t>(n)];
      std::vector<decltype(wide)> row(static_cast<std::size_t>(width));
      for (std::int64_t channel = 0; channel < options.channels; ++channel)
        for (std::int64_t r = first; r < last; ++r) {
          for (auto& value : row) value = convert_element<decltype(wide)>(*matrix++);
          averages(row, options.ks, to + (r * options.channels + channel) * kinds);
        }
    });
  });
}

void sequence_top_k(const Tensor& x, const std::vector<std::int64_t>& offsets, bool largest, const Tensor& values, const Tensor& places,
                    const std::vector<std::int64_t>& made, ThreadTeam& team) {
  if (values.elements() == 0) return;
  if (x.dtype() == DType::i64) return run_type<std::int64_t, std::int64_t>(x, offsets, largest, values, places, made, team);
  if (x.dtype() == DType::i32) return run_type<std::int32_t, std::int32_t>(x, offsets, largest, values, places, made, team);
  visit_floats(x.dtype(), [&](auto element, auto wide) {
    run_type<decltype(element), decltype(wide)>(x, offsets, largest, values, places, made, team);
  });
}

}  // namespace millrace::cpu
