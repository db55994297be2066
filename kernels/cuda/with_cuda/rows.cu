// SPDX-License-Identifier: Apache-2.0
// Folds: one thread for each output, in the order that kernels/reduce.h defines.
#include <millrace/kernels/cpu/norm_kernels.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/cuda/with_cuda/sequences.cuh>

namespace millrace::cuda {
namespace {

Walk<1> walk_along(const DDim& dims, const DDim& strides) {
  const DDim* const one[1] = {&strides};
  return Walk<1>(dims, one);
}
Walk<2> walk_along(const DDim& dims, const DDim& from, const DDim& to) {
  const DDim* const two[2] = {&from, &to};
  return Walk<2>(dims, two);
}

/// The elements that are folded into one output.
template <class T>
struct Folded {
  const Walk<1>& inner;  // a copy would lie in local memory
  Elements<T> from;
  std::int64_t start = 0;
  MILLRACE_HD T operator()(std::int64_t i) const {
    if (inner.rank == 1) return from.get(start + i * inner.steps[0][0]);
    std::int64_t at[1];
    inner.find(i, at);
    return from.get(start + at[0]);
  }
};

template <class T>
MILLRACE_HD T extreme(const Folded<T>& x, std::int64_t n, bool greatest) {
  T best = x(0);
  for (std::int64_t i = 1; i < n; ++i) {
    const T v = x(i);
    if ((greatest ? v > best : v < best) || v != v) best = v;
  }
  return best;
}

template <class T>
struct ReduceFloats {
  Walk<2> outer;
  Walk<1> inner;
  Elements<T> from, to;
  Reduction kind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    outer.find(i, at);
    to.set(at[1], of(Folded<T>{inner, from, at[0]}, inner.count));
  }
  MILLRACE_HD T of(const Folded<T>& x, std::int64_t n) const {
    switch (kind) {
      case Reduction::sum: return ordered_sum<T>(n, x);
      case Reduction::mean: return ordered_sum<T>(n, x) / static_cast<T>(n);
      case Reduction::l1: return ordered_sum<T>(n, [&](std::int64_t i) { return std::fabs(x(i)); });
      case Reduction::l2: return std::sqrt(squares(x, n));
      case Reduction::sum_square: return squares(x, n);
      case Reduction::log_sum: return std::log(ordered_sum<T>(n, x));
      case Reduction::log_sum_exp: return log_sum_exp(x, n);
      case Reduction::prod: {
        T product{1};
        for (std::int64_t i = 0; i < n; ++i) product *= x(i);
        return product;
      }
      default: return extreme(x, n, kind == Reduction::max);
    }
  }
  MILLRACE_HD static T squares(const Folded<T>& x, std::int64_t n) {
    return ordered_sum<T>(n, [&](std::int64_t i) {
      const T v = x(i);
      return v * v;
    });
  }
  MILLRACE_HD static T log_sum_exp(const Folded<T>& x, std::int64_t n) {
    const T most = n == 0 ? -std::numeric_limits<T>::infinity() : extreme(x, n, true);
    // All −∞, or an infinity: x − m would be NaN.
    const T shift = most == most && most - most != T{0} ? T{0} : most;
    return shift + std::log(ordered_sum<T>(n, [&](std::int64_t i) { return exp_of(x(i) - shift); }));
  }
};

struct ReduceIntegers {
  Walk<2> outer;
  Walk<1> inner;
  Elements<std::int64_t> from, to;
  Reduction kind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    outer.find(i, at);
    to.set(at[1], of(Folded<std::int64_t>{inner, from, at[0]}, inner.count));
  }
  MILLRACE_HD std::int64_t of(const Folded<std::int64_t>& x, std::int64_t n) const {
    if (kind == Reduction::max || kind == Reduction::min) return extreme(x, n, kind == Reduction::max);
    std::uint64_t total = kind == Reduction::prod ? 1 : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t v = x(i);
      switch (kind) {
        case Reduction::prod: total *= bits_of(v); break;
        case Reduction::l1: total = v < 0 ? total - bits_of(v) : total + bits_of(v); break;
        case Reduction::sum_square: total += bits_of(v) * bits_of(v); break;
        default: total += bits_of(v); break;
      }
    }
    if (kind != Reduction::mean) return wrapped(total);
    return (to.dtype == DType::i32 ? static_cast<std::int32_t>(total) : wrapped(total)) / n;
  }
};

template <class T>
struct ArgExtreme {
  Walk<2> outer;
  std::int64_t n, step;
  Elements<T> from;
  std::int64_t* to;
  bool greatest, select_last;
  MILLRACE_HD bool beats(T v, T best) const {
    if (v != v || best != best) return v != v && best == best;
    return greatest ? v > best : v < best;
  }
  MILLRACE_HD void operator()(std::int64_t at_output) const {
    std::int64_t at[2];
    outer.find(at_output, at);
    std::int64_t place = 0;
    T best = from.get(at[0]);
    for (std::int64_t i = 1; i < n; ++i) {
      const T v = from.get(at[0] + i * step);
      if (beats(v, best) || (select_last && !beats(best, v))) {
        best = v;
        place = i;
      }
    }
    to[at[1]] = place;
  }
};

/// Softmax of one row whose elements stand `step` apart.
template <class T>
struct SoftmaxRow {
  Elements<T> from, to;
  std::int64_t n, from_step, to_step;
  bool logarithm;
  MILLRACE_HD void run(std::int64_t first, std::int64_t target) const {
    T most = from.get(first);
    for (std::int64_t i = 1; i < n; ++i) {
      const T v = from.get(first + i * from_step);
      if (v > most || v != v) most = v;
    }
    const T sum = ordered_sum<T>(n, [&](std::int64_t i) { return exp_of(from.get(first + i * from_step) - most); });
    const T norm = logarithm ? std::log(sum) : sum;
    for (std::int64_t i = 0; i < n; ++i) {
      const T shifted = from.get(first + i * from_step) - most;
      to.set(target + i * to_step, logarithm ? shifted - norm : exp_of(shifted) / norm);
    }
  }
};

template <class T>
struct Softmax {
  Walk<2> rows;
  SoftmaxRow<T> row;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    rows.find(i, at);
    row.run(at[0], at[1]);
  }
};

template <class T>
struct SequenceSoftmax {
  Walk<2> columns;
  std::int64_t sequences;
  const std::int64_t* offsets;
  SoftmaxRow<T> row;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t sequence = i % sequences;
    const std::int64_t begin = offsets[sequence];
    const std::int64_t end = offsets[sequence + 1];
    if (begin == end) return;
    std::int64_t at[2];
    columns.find(i / sequences, at);
    SoftmaxRow<T> one = row;
    one.n = end - begin;
    one.run(at[0] + begin * row.from_step, at[1] + begin * row.to_step);
  }
};

/// In the chains of kernels/layer_norm.h.
template <class T, class F>
MILLRACE_HD T chained_sum(std::int64_t n, const F& element) {
  T chains[cpu::norm_chains] = {};
  for (std::int64_t begin = 0; begin < n; begin += cpu::norm_chains)
    for (int chain = 0; chain < cpu::norm_chains; ++chain)
      if (begin + chain < n) chains[chain] += element(begin + chain);
  for (int half = cpu::norm_chains / 2; half > 0; half /= 2)
    for (int chain = 0; chain < half; ++chain) chains[chain] += chains[chain + half];
  return chains[0];
}

template <class T>
struct LayerNorm {
  Walk<2> outer, inner;
  Elements<T> from, to;
  const T *scale, *bias;
  T epsilon;
  MILLRACE_HD T at(std::int64_t start, std::int64_t i) const {
    std::int64_t offsets[2];
    inner.find(i, offsets);
    return from.get(start + offsets[0]);
  }
  MILLRACE_HD void operator()(std::int64_t row) const {
    std::int64_t start[2];
    outer.find(row, start);
    const std::int64_t n = inner.count;
    const T mean = chained_sum<T>(n, [&](std::int64_t i) { return at(start[0], i); }) / static_cast<T>(n);
    const T square = chained_sum<T>(n, [&](std::int64_t i) {
      const T v = at(start[0], i) - mean;
      return v * v;
    });
    const T factor = T{1} / std::sqrt(square / static_cast<T>(n) + epsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t offsets[2];
      inner.find(i, offsets);
      T v = (from.get(start[0] + offsets[0]) - mean) * factor * scale[i];
      if (bias != nullptr) v += bias[i];
      to.set(start[1] + offsets[1], v);
    }
  }
};

/// kernels/layer_norm_gradient.h; all rows are contiguous.
template <class T>
struct LayerNormGradientRow {
  std::int64_t n;
  const T *x, *scale, *g;
  T epsilon;
  T *dx, *rows;
  MILLRACE_HD void operator()(std::int64_t row) const {
    const T *from = x + row * n, *slope = g + row * n;
    const T count = static_cast<T>(n);
    const T mean = chained_sum<T>(n, [&](std::int64_t i) { return from[i]; }) / count;
    const T square = chained_sum<T>(n, [&](std::int64_t i) {
      const T v = from[i] - mean;
      return v * v;
    });
    const T factor = T{1} / std::sqrt(square / count + epsilon);
    const T total = chained_sum<T>(n, [&](std::int64_t i) { return slope[i] * scale[i]; }) / count;
    const T along = chained_sum<T>(n, [&](std::int64_t i) { return (slope[i] * scale[i]) * ((from[i] - mean) * factor); }) / count;
    for (std::int64_t i = 0; i < n; ++i) {
      const T normal = (from[i] - mean) * factor;
      rows[row * n + i] = slope[i] * normal;
      dx[row * n + i] = factor * ((slope[i] * scale[i] - total) - normal * along);
    }
  }
};

template <class T>
struct Cumsum {
  Walk<2> lanes;
  Elements<T> from, to;
  std::int64_t n, from_step, to_step;
  bool exclusive;
  MILLRACE_HD void operator()(std::int64_t lane) const {
    std::int64_t at[2];
    lanes.find(lane, at);
    std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, T> sum{};
    for (std::int64_t i = 0; i < n; ++i) {
      if (exclusive) to.set(at[1] + i * to_step, static_cast<T>(sum));
      sum += static_cast<decltype(sum)>(from.get(at[0] + i * from_step));
      if (!exclusive) to.set(at[1] + i * to_step, static_cast<T>(sum));
    }
  }
};

template <class T>
struct Pool {
  Elements<T> from, to;
  const std::int64_t* offsets;
  std::int64_t columns;
  SequencePool kind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t sequence = i / columns;
    const std::int64_t begin = offsets[sequence];
    const std::int64_t n = offsets[sequence + 1] - begin;
    if (n == 0) return;
    const std::int64_t first = begin * columns + i % columns;
    const auto value = [&](std::int64_t row) { return from.get(first + row * columns); };
    if (kind == SequencePool::max) {
      T most = value(0);
      for (std::int64_t row = 1; row < n; ++row) {
        const T v = value(row);
        if (v > most || v != v) most = v;
      }
      return to.set(i, most);
    }
    if constexpr (std::is_same_v<T, std::int64_t>) {
      std::uint64_t sum = 0;
      for (std::int64_t row = 0; row < n; ++row) sum += bits_of(value(row));
      const std::int64_t total = to.dtype == DType::i32 ? static_cast<std::int32_t>(sum) : wrapped(sum);
      to.set(i, kind == SequencePool::average ? total / n : total);
    } else {
      T sum = ordered_sum<T>(n, value);
      if (kind == SequencePool::average) sum /= static_cast<T>(n);
      if (kind == SequencePool::sqrt) sum /= std::sqrt(static_cast<T>(n));
      to.set(i, sum);
    }
  }
};

template <class T>
struct RowConv {
  Elements<T> from, taps, to;
  const std::int64_t* ends;  // of the sequence that each row belongs to
  std::int64_t columns, reach;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns;
    const std::int64_t column = i % columns;
    const std::int64_t count = least_of(reach, ends[row] - row);
    T sum{};
    for (std::int64_t j = 0; j < count; ++j) sum += taps.get(j * columns + column) * from.get((row + j) * columns + column);
    to.set(i, sum);
  }
};

/// Each element finds how many of its sequence come before it, and so its place.
template <class T>
struct TopRows {
  Elements<T> from, best;
  std::int64_t* where;
  const std::int64_t *bounds, *made, *owners;  // of sequences, of what is made of them, and which one each row is of
  std::int64_t columns;
  bool largest;
  MILLRACE_HD bool before(T left, T right, std::int64_t a, std::int64_t b) const {
    const bool left_nan = left != left;
    const bool right_nan = right != right;
    if (left_nan != right_nan) return left_nan == largest;
    if (!left_nan && left != right) return (left > right) == largest;
    return a < b;
  }
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns;
    const std::int64_t column = i % columns;
    const std::int64_t sequence = owners[row];
    const std::int64_t begin = bounds[sequence];
    const std::int64_t target = made[sequence];
    const std::int64_t count = made[sequence + 1] - target;
    const T own = from.get(i);
    std::int64_t rank = 0;
    for (std::int64_t other = begin; other < bounds[sequence + 1] && rank < count; ++other)
      if (other != row && before(from.get(other * columns + column), own, other, row)) ++rank;
    if (rank >= count) return;
    best.set((target + rank) * columns + column, own);
    where[(target + rank) * columns + column] = row - begin;
  }
};

/// Splits off the last `axes` axes.
struct Split {
  DDim outer, inner;
  Split(const DDim& dims, int axes) : outer(dims.slice(0, dims.rank() - axes)), inner(dims.slice(dims.rank() - axes, dims.rank())) {}
};

}  // namespace

void reduce(Reduction kind, const Tensor& x, int axes, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Split dims(x.dims(), axes);
  const Split strides(x.strides(), axes);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    using Kernel = std::conditional_t<std::is_same_v<T, std::int64_t>, ReduceIntegers,
                                      ReduceFloats<std::conditional_t<std::is_same_v<T, double>, double, float>>>;
    each_index(queue_of(context), out.elements(),
               Kernel{walk_along(out.dims(), strides.outer, out.strides()), walk_along(dims.inner, strides.inner), elements<T>(x),
                      elements<T>(out), kind});
  });
}

void arg_extreme(const Tensor& x, bool greatest, bool select_last, const Tensor& out, KernelContext& context) {
  const Split strides(x.strides(), 1);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue_of(context), out.elements(),
               ArgExtreme<T>{walk_along(out.dims(), strides.outer, out.strides()), x.dim(-1), x.strides()[-1], elements<T>(x),
                             static_cast<std::int64_t*>(out.raw_mutable()), greatest, select_last});
  });
}

namespace {

template <class T>
SoftmaxRow<T> softmax_row(const Tensor& x, const Tensor& out, bool logarithm) {
  return {elements<T>(x), elements<T>(out), x.dim(-1), x.strides()[-1], out.strides()[-1], logarithm};
}

}  // namespace

void softmax(const Tensor& x, bool logarithm, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Split dims(x.dims(), 1);
  visit_floats(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(
        queue_of(context), dims.outer.elements(),
        Softmax<T>{walk_along(dims.outer, Split(x.strides(), 1).outer, Split(out.strides(), 1).outer), softmax_row<T>(x, out, logarithm)});
  });
}

void sequence_softmax(const Tensor& x, const Indices& offsets, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Split dims(x.dims(), 1);
  const Tensor bounds = uploaded(queue, offsets);
  const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
  visit_floats(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, sequences * dims.outer.elements(),
               SequenceSoftmax<T>{walk_along(dims.outer, Split(x.strides(), 1).outer, Split(out.strides(), 1).outer), sequences,
                                  integers(bounds), softmax_row<T>(x, out, false)});
  });
}

void layer_norm(const Tensor& x, const Tensor& scale, const Tensor* bias, int axes, double epsilon, const Tensor& out,
                KernelContext& context) {
  if (out.elements() == 0) return;
  const Split dims(x.dims(), axes);
  const Split from(x.strides(), axes);
  const Split to(out.strides(), axes);
  visit_floats(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue_of(context), dims.outer.elements(),
               LayerNorm<T>{walk_along(dims.outer, from.outer, to.outer), walk_along(dims.inner, from.inner, to.inner), elements<T>(x),
                            elements<T>(out), static_cast<const T*>(scale.raw()),
                            bias == nullptr ? nullptr : static_cast<const T*>(bias->raw()), static_cast<T>(epsilon)});
  });
}

namespace {

template <class T>
void run_norm_gradient(const NormGradientCall& call, std::int64_t n, KernelContext& context) {
  const auto data = [](const Tensor& x) { return static_cast<const T*>(x.raw()); };
  const auto to = [](const Tensor& x) { return static_cast<T*>(x.raw_mutable()); };
  each_index(
      queue_of(context), call.x.elements() / n,
      LayerNormGradientRow<T>{n, data(call.x), data(call.scale), data(call.g), static_cast<T>(call.epsilon), to(call.dx), to(call.rows)});
}

}  // namespace

void layer_norm_gradient(const NormGradientCall& call, std::int64_t n, KernelContext& context) {
  if (call.x.elements() == 0) return;
  call.x.dtype() == DType::f64 ? run_norm_gradient<double>(call, n, context) : run_norm_gradient<float>(call, n, context);
}

void cumsum(const Tensor& x, int axis, bool exclusive, bool reverse, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const std::int64_t n = x.dim(axis);
  const std::int64_t sign = reverse ? -1 : 1;
  const Tensor from = reverse ? x.slice(axis, n - 1, n) : x.slice(axis, 0, 1);
  const Tensor to = reverse ? out.slice(axis, n - 1, n) : out.slice(axis, 0, 1);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue_of(context), from.elements(),
               Cumsum<T>{walk_along(x.dims().erased(axis), x.strides().erased(axis), out.strides().erased(axis)), elements<T>(from),
                         elements<T>(to), n, sign * x.strides()[axis], sign * out.strides()[axis], exclusive});
  });
}

void sequence_pool(SequencePool kind, const Tensor& x, const Indices& offsets, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Tensor bounds = uploaded(queue, offsets);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, out.elements(), Pool<T>{elements<T>(x), elements<T>(out), integers(bounds), out.elements() / out.dim(0), kind});
  });
}

void row_conv(const Tensor& x, const Tensor& w, const Indices& offsets, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  Indices ends;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) ends.resize(static_cast<std::size_t>(offsets[i + 1]), offsets[i + 1]);
  const Tensor bounds = uploaded(queue, ends);
  visit_floats(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, out.elements(), RowConv<T>{elements<T>(x), elements<T>(w), elements<T>(out), integers(bounds), x.dim(1), w.dim(0)});
  });
}

void sequence_top_k(const Tensor& x, const Indices& offsets, bool largest, const Tensor& values, const Tensor& places, const Indices& made,
                    KernelContext& context) {
  if (values.elements() == 0) return;
  const Queue& queue = queue_of(context);
  Indices owners;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    owners.resize(static_cast<std::size_t>(offsets[i + 1]), static_cast<std::int64_t>(i));
  const Tensor bounds = uploaded(queue, offsets);
  const Tensor targets = uploaded(queue, made);
  const Tensor sequences = uploaded(queue, owners);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, x.elements(),
               TopRows<T>{elements<T>(x), elements<T>(values), static_cast<std::int64_t*>(places.raw_mutable()), integers(bounds),
                          integers(targets), integers(sequences), x.elements() / x.dim(0), largest});
  });
}

}  // namespace millrace::cuda
