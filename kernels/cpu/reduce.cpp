// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/reduce.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

/// Outputs that are folded side by side: their chains are independent.
constexpr int group = 8;

/// The dtype of totals.
template <class T>
struct FoldedIn {
  using type = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;
};

/// Turns `count` totals of n elements each into results, in place: a mean divides them by n. Null leaves the totals as they are. A pointer to a
/// function keeps the compiler from compiling the loops over elements once for each of these functions.
template <class Wide>
using FinishTotals = void (*)(Wide* totals, std::int64_t count, std::int64_t n);

/// The kept axes as outputs, the folded ones as elements.
struct Folding {
  DDim outer, inner, x_outer, out_outer, x_inner;

  Folding(const Tensor& x, int axes, const Tensor& out)
      : outer(out.dims()),
        inner(x.dims().slice(x.rank() - axes, x.rank())),
        x_outer(x.strides().slice(0, x.rank() - axes)),
        out_outer(out.strides()),
        x_inner(x.strides().slice(x.rank() - axes, x.rank())) {}
};

/// Calls f(starts, count) for groups of outputs: offsets of their first element in x, and of the output.
template <class F>
void each_group(const Folding& folding, std::int64_t n, ThreadTeam& team, F&& f) {
  const StridedLoop<2> outputs(folding.outer, {&folding.x_outer, &folding.out_outer});
  team.parallel(outputs.count(), std::max<std::int64_t>(group, grain_heavy / std::max<std::int64_t>(1, n)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t at = begin; at < end; at += group) {
                    std::int64_t starts[2][group];
                    int count = 0;
                    outputs.each_run(at, std::min<std::int64_t>(end, at + group), [&](const auto& offsets, std::int64_t run) {
                      for (std::int64_t i = 0; i < run; ++i, ++count)
                        for (int side = 0; side < 2; ++side) starts[side][count] = offsets[side] + i * outputs.inner()[side];
                    });
                    for (int rest = count; rest < group; ++rest) starts[0][rest] = starts[0][0];
                    f(starts, count);
                  }
                });
}

/// Does `fold` where outputs lie side by side and one axis is folded: sums over rows. Many outputs at a time read whole cache lines.
template <class T, class Out, class Wide, class Step>
void fold_rows(const T* from, std::int64_t n, std::int64_t stride, Out* to, std::int64_t outputs, ThreadTeam& team, Wide first,
               std::int64_t block, Step step, FinishTotals<Wide> finish) {
  constexpr std::int64_t wide = 64;
  const auto fold_some = [&](std::int64_t at, std::int64_t count) {
    Wide total[wide], part[wide];
    for (std::int64_t begin = 0; begin < n || begin == 0; begin += block) {
      std::fill_n(part, count, first);
      for (std::int64_t i = begin; i < std::min(n, begin + block); ++i) {
        const T* x = from + i * stride + at;
        for (std::int64_t lane = 0; lane < count; ++lane) part[lane] = step(part[lane], convert_element<Wide>(x[lane]));
      }
      for (std::int64_t lane = 0; lane < count; ++lane) total[lane] = begin == 0 ? part[lane] : static_cast<Wide>(total[lane] + part[lane]);
    }
    if (finish != nullptr) finish(total, count, n);
    for (std::int64_t lane = 0; lane < count; ++lane) to[at + lane] = convert_element<Out>(total[lane]);
  };
  team.parallel(outputs, std::max<std::int64_t>(wide, grain_heavy / std::max<std::int64_t>(1, n)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t at = begin; at < end; at += wide) fold_some(at, std::min(wide, end - at));
                });
}

/// Folds with `step(accumulator, element)` from `first`; with `blocks`, restarted every k_block and the blocks added in
/// order.
template <class T, class Out, class Wide, class Step>
void fold(const Tensor& x, int axes, const Tensor& out, ThreadTeam& team, Wide first, bool blocks, Step step,
          FinishTotals<Wide> finish = nullptr) {
  const Folding folding(x, axes, out);
  const StridedLoop<1> elements(folding.inner, {&folding.x_inner});
  const std::int64_t n = elements.count();
  const std::int64_t block = blocks ? k_block : std::max<std::int64_t>(1, n);
  const T* from = static_cast<const T*>(x.raw());
  Out* to = static_cast<Out*>(out.raw_mutable());
  const std::int64_t x_step = elements.inner()[0];
  if (folding.outer.rank() == 1 && folding.inner.rank() == 1 && folding.x_outer[0] == 1 && folding.out_outer[0] == 1)
    return fold_rows<T, Out, Wide>(from, n, x_step, to, folding.outer[0], team, first, block, step, finish);
  each_group(folding, n, team, [&](const auto& starts, int count) {
    std::array<Wide, group> total;
    total.fill(first);
    for (std::int64_t begin = 0; begin < n; begin += block) {
      std::array<Wide, group> part;
      part.fill(first);
      elements.each_run(begin, std::min(n, begin + block), [&](const auto& offsets, std::int64_t run) {
        for (std::int64_t i = 0; i < run; ++i)
          for (int lane = 0; lane < group; ++lane)
            part[lane] = step(part[lane], convert_element<Wide>(from[starts[0][lane] + offsets[0] + i * x_step]));
      });
      for (int lane = 0; lane < group; ++lane) total[lane] = begin == 0 ? part[lane] : static_cast<Wide>(total[lane] + part[lane]);
    }
    if (finish != nullptr) finish(total.data(), count, n);
    for (int lane = 0; lane < count; ++lane) to[starts[1][lane]] = convert_element<Out>(total[lane]);
  });
}

/// Calls f(rows, to, count) for outputs whose elements lie side by side, or f(from, stride, columns, to) for outputs that lie side by side in x and in
/// `out`; `to` is row-major. False for other strides.
template <class T, class Rows, class Columns>
bool fold_sides(const Tensor& x, int axes, const Tensor& out, ThreadTeam& team, Rows rows, Columns columns) {
  const Folding folding(x, axes, out);
  const StridedLoop<1> elements(folding.inner, {&folding.x_inner});
  const std::int64_t n = elements.count(), step = elements.inner()[0];
  if (elements.runs() > 1) return false;
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const StridedLoop<2> outputs(folding.outer, {&folding.x_outer, &folding.out_outer});
  const auto [x_step, out_step] = outputs.inner();
  constexpr std::int64_t line = 64;
  if (n > 1 && step != 1) {
    if (x_step != 1 || out_step != 1) return false;
    outputs.parallel(team, std::max<std::int64_t>(line, grain_heavy / n),
                     [&](const auto& offsets, std::int64_t count) { columns(from + offsets[0], step, count, to + offsets[1]); });
    return true;
  }
  constexpr std::int64_t some = 64;
  outputs.parallel(team, std::max<std::int64_t>(group, grain_heavy / std::max<std::int64_t>(1, n)),
                   [&](const auto& offsets, std::int64_t count) {
                     const T* first[some];
                     T made[some];
                     for (std::int64_t done = 0; done < count; done += some) {
                       const std::int64_t few = std::min(some, count - done);
                       for (std::int64_t r = 0; r < few; ++r) first[r] = from + offsets[0] + (done + r) * x_step;
                       rows(first, made, few);
                       for (std::int64_t r = 0; r < few; ++r) to[offsets[1] + (done + r) * out_step] = made[r];
                     }
                   });
  return true;
}

/// Sums as `ordered_sums` gives them of elements that lie in pieces side by side: it adds some blocks of an output at a time, of which those across two pieces
/// are brought together. False for other strides.
template <class T>
bool sum_pieces(Term term, const Folding& folding, const T* from, T* to, ThreadTeam& team, FinishTotals<T> finish) {
  const StridedLoop<1> elements(folding.inner, {&folding.x_inner});
  const std::int64_t n = elements.count();
  if (elements.inner()[0] != 1) return false;
  constexpr std::int64_t most = 16;  // blocks
  each_group(folding, n, team, [&](const auto& starts, int count) {
    T room[most][k_block], parts[most];
    const T* blocks[most];
    for (int output = 0; output < count; ++output) {
      T total{};
      for (std::int64_t begin = 0; begin < n;) {
        // Whole blocks, then the rest alone: the chains of one call are equally long.
        const std::int64_t length = std::min<std::int64_t>(k_block, n - begin), some = std::min(most, (n - begin) / length);
        const bool first = begin == 0;
        for (std::int64_t r = 0; r < some; ++r, begin += length) {
          T* next = room[r];
          blocks[r] = room[r];
          elements.each_run(begin, begin + length, [&](const auto& offsets, std::int64_t run) {
            const T* piece = from + starts[0][output] + offsets[0];
            if (run == length)
              blocks[r] = piece;
            else
              next = std::copy_n(piece, run, next);
          });
        }
        ordered_sums(term, blocks, some, length, parts);
        for (std::int64_t r = 0; r < some; ++r) total = first && r == 0 ? parts[0] : total + parts[r];
      }
      if (finish != nullptr) finish(&total, 1, n);
      to[starts[1][output]] = total;
    }
  });
  return true;
}

/// Extremes of elements that lie in pieces side by side. False for other strides.
template <class T>
bool extremes_of_pieces(bool most, const Folding& folding, const T* from, T* to, ThreadTeam& team) {
  const StridedLoop<1> elements(folding.inner, {&folding.x_inner});
  constexpr std::int64_t few = 16;  // elements that are worth a call
  if (elements.inner()[0] != 1 || elements.extent(elements.rank() - 1) < few) return false;
  each_group(folding, elements.count(), team, [&](const auto& starts, int count) {
    for (int output = 0; output < count; ++output) {
      T total = most ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
      elements.each_run(0, elements.count(), [&](const auto& offsets, std::int64_t run) {
        const T found = extreme(most, from + starts[0][output] + offsets[0], run);
        if (found != found || (most ? found > total : found < total)) total = found;
      });
      to[starts[1][output]] = total;
    }
  });
  return true;
}

/// Sums of f32 and f64 as `fold` gives them, in vectors. False for other dtypes.
template <class T>
bool fold_terms(Term term, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team,
                [[maybe_unused]] FinishTotals<typename FoldedIn<T>::type> finish) {
  if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, double>) {
    return false;
  } else {
    const std::int64_t n = x.dims().slice(x.rank() - axes, x.rank()).elements();
    const bool done = fold_sides<T>(
        x, axes, out, team,
        [&](const T* const* rows, T* to, std::int64_t count) {
          ordered_sums(term, rows, count, n, to);
          if (finish != nullptr) finish(to, count, n);
        },
        [&](const T* from, std::int64_t stride, std::int64_t columns, T* to) {
          column_sums(term, from, n, stride, columns, to);
          if (finish != nullptr) finish(to, columns, n);
        });
    return done ||
           sum_pieces<T>(term, Folding(x, axes, out), static_cast<const T*>(x.raw()), static_cast<T*>(out.raw_mutable()), team, finish);
  }
}

template <class T>
void fold_extreme(Reduction kind, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team) {
  using Wide = typename FoldedIn<T>::type;
  using Limits = std::numeric_limits<Wide>;
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const bool most = kind == Reduction::max;
    const std::int64_t n = x.dims().slice(x.rank() - axes, x.rank()).elements();
    const auto rows = [&](const T* const* from, T* to, std::int64_t count) { extremes(most, from, count, n, to); };
    const auto columns = [&](const T* from, std::int64_t stride, std::int64_t count, T* to) {
      column_extremes(most, from, n, stride, count, to);
    };
    if (fold_sides<T>(x, axes, out, team, rows, columns)) return;
    const Folding folding(x, axes, out);
    if (extremes_of_pieces<T>(most, folding, static_cast<const T*>(x.raw()), static_cast<T*>(out.raw_mutable()), team)) return;
  }
  if (kind == Reduction::max) {
    constexpr Wide least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    fold<T, T, Wide>(x, axes, out, team, least, false, [](Wide a, Wide v) { return v > a || v != v ? v : a; });
  } else {
    constexpr Wide most = Limits::has_infinity ? Limits::infinity() : Limits::max();
    fold<T, T, Wide>(x, axes, out, team, most, false, [](Wide a, Wide v) { return v < a || v != v ? v : a; });
  }
}

/// log Σ exp(x − m) + m. `each(begin, end, f)` gives f the elements in order: exp wants them side by side.
template <class Wide, class Each>
Wide log_sum_exp_of(std::int64_t n, const Each& each) {
  Wide most = -std::numeric_limits<Wide>::infinity();
  each(0, n, [&](Wide v) { most = v > most || v != v ? v : most; });
  // All −∞, or an infinity: x − m would be NaN.
  const Wide shift = std::isinf(most) ? Wide{0} : most;
  Wide total{};
  for (std::int64_t begin = 0; begin < n; begin += k_block) {
    Wide powers[k_block];
    std::size_t filled = 0;
    each(begin, std::min(n, begin + k_block), [&](Wide v) { powers[filled++] = v - shift; });
    unary_run(Unary::exp, {}, powers, powers, filled);
    Wide part{};
    for (std::size_t i = 0; i < filled; ++i) part += powers[i];
    total = begin == 0 ? part : total + part;
  }
  return shift + std::log(total);
}

template <class T>
T log_sum_exp_of_row(const T* x, std::int64_t n) {
  return log_sum_exp_of<T>(n, [x](std::int64_t begin, std::int64_t end, auto f) {
    for (std::int64_t i = begin; i < end; ++i) f(x[i]);
  });
}

template <class T>
void fold_log_sum_exp(const Tensor& x, int axes, const Tensor& out, ThreadTeam& team) {
  using Wide = typename FoldedIn<T>::type;
  const Folding folding(x, axes, out);
  const StridedLoop<1> elements(folding.inner, {&folding.x_inner});
  const std::int64_t n = elements.count();
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  each_group(folding, n, team, [&](const auto& starts, int count) {
    for (int lane = 0; lane < count; ++lane) {
      const Wide made = log_sum_exp_of<Wide>(n, [&](std::int64_t begin, std::int64_t end, auto f) {
        elements.each_run(begin, end, [&](const auto& offsets, std::int64_t run) {
          for (std::int64_t i = 0; i < run; ++i) f(convert_element<Wide>(from[starts[0][lane] + offsets[0] + i * elements.inner()[0]]));
        });
      });
      to[starts[1][lane]] = convert_element<T>(made);
    }
  });
}

template <class T>
void fold_floats(Reduction kind, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team) {
  using Wide = typename FoldedIn<T>::type;
  const auto each = [](auto function) -> FinishTotals<Wide> {
    return [](Wide* totals, std::int64_t count, std::int64_t n) {
      for (std::int64_t i = 0; i < count; ++i) totals[i] = decltype(function)()(totals[i], n);
    };
  };
  const auto mean = each([](Wide a, std::int64_t n) { return a / static_cast<Wide>(n); });
  const auto root = each([](Wide a, std::int64_t) { return std::sqrt(a); });
  const auto logarithm = each([](Wide a, std::int64_t) { return std::log(a); });
  const auto sums = [&](Term term, auto step, FinishTotals<Wide> finish) {
    if (!fold_terms<T>(term, x, axes, out, team, finish)) fold<T, T, Wide>(x, axes, out, team, Wide{0}, true, step, finish);
  };
  const auto plus = [&](FinishTotals<Wide> finish) { sums(Term::element, [](Wide a, Wide v) { return a + v; }, finish); };
  const auto squares = [&](FinishTotals<Wide> finish) { sums(Term::square, [](Wide a, Wide v) { return a + v * v; }, finish); };
  switch (kind) {
    case Reduction::sum: return plus(nullptr);
    case Reduction::mean: return plus(mean);
    case Reduction::prod: return fold<T, T, Wide>(x, axes, out, team, Wide{1}, false, [](Wide a, Wide v) { return a * v; });
    case Reduction::l1: return sums(Term::magnitude, [](Wide a, Wide v) { return a + std::abs(v); }, nullptr);
    case Reduction::l2: return squares(root);
    case Reduction::sum_square: return squares(nullptr);
    case Reduction::log_sum: return plus(logarithm);
    case Reduction::log_sum_exp: return fold_log_sum_exp<T>(x, axes, out, team);
    default: return fold_extreme<T>(kind, x, axes, out, team);
  }
}

/// i64 and i32: unsigned 64-bit arithmetic, whose low bits are those of the wrapped result.
template <class T>
void fold_integers(Reduction kind, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team) {
  using Wide = std::uint64_t;
  const auto run = [&](Wide first, auto step, FinishTotals<Wide> finish = nullptr) {
    fold<T, T, Wide>(x, axes, out, team, first, false, step, finish);
  };
  const auto plus = [](Wide a, Wide v) { return a + v; };
  const auto mean = [](Wide* totals, std::int64_t count, std::int64_t n) {
    for (std::int64_t i = 0; i < count; ++i) totals[i] = static_cast<Wide>(static_cast<std::int64_t>(static_cast<T>(totals[i])) / n);
  };
  switch (kind) {
    case Reduction::sum: return run(0, plus);
    case Reduction::mean: return run(0, plus, mean);
    case Reduction::prod: return run(1, [](Wide a, Wide v) { return a * v; });
    case Reduction::l1: return run(0, [](Wide a, Wide v) { return static_cast<std::int64_t>(v) < 0 ? a - v : a + v; });
    case Reduction::sum_square: return run(0, [](Wide a, Wide v) { return a + v * v; });
    default: return fold_extreme<T>(kind, x, axes, out, team);
  }
}

/// The place of the greatest or least of `n` elements that lie `step` apart. NaN beats all others.
template <class T>
std::int64_t place_of_extreme(const T* from, std::int64_t n, std::int64_t step, bool greatest, bool select_last) {
  using Wide = typename FoldedIn<T>::type;
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    if (step == 1) {
      const T most = extreme(greatest, from, n);
      if (most == most) return place_of(most, select_last, from, n);
    }
  }
  const auto beats = [&](Wide v, Wide best) {
    if (v != v || best != best) return v != v && best == best;
    return greatest ? v > best : v < best;
  };
  std::int64_t place = 0;
  Wide best = convert_element<Wide>(from[0]);
  for (std::int64_t i = 1; i < n; ++i) {
    const Wide v = convert_element<Wide>(from[i * step]);
    if (beats(v, best) || (select_last && !beats(best, v))) {
      best = v;
      place = i;
    }
  }
  return place;
}

/// Places for outputs that lie side by side in x and in `out`. False for other strides.
template <class T>
bool column_extreme_places(bool greatest, bool select_last, const Folding& folding, const T* from, std::int64_t* to, ThreadTeam& team) {
  const StridedLoop<2> outputs(folding.outer, {&folding.x_outer, &folding.out_outer});
  const auto [x_step, out_step] = outputs.inner();
  if (x_step != 1 || out_step != 1) return false;
  const std::int64_t n = folding.inner[0], step = folding.x_inner[0];
  constexpr std::int64_t some = 64;
  outputs.parallel(team, std::max<std::int64_t>(some, grain_heavy / n), [&](const auto& offsets, std::int64_t count) {
    T most[some];
    for (std::int64_t done = 0; done < count; done += some) {
      const std::int64_t few = std::min(some, count - done);
      const T* first = from + offsets[0] + done;
      std::int64_t* places = to + offsets[1] + done;
      column_extremes(greatest, first, n, step, few, most);
      column_places(most, select_last, first, n, step, few, places);
      for (std::int64_t c = 0; c < few; ++c)
        if (places[c] == n) places[c] = place_of_extreme(first + c, n, step, greatest, select_last);
    }
  });
  return true;
}

}  // namespace

float log_sum_exp_row(const float* x, std::int64_t n) { return log_sum_exp_of_row(x, n); }
double log_sum_exp_row(const double* x, std::int64_t n) { return log_sum_exp_of_row(x, n); }

void reduce(Reduction kind, const Tensor& x, int axes, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_integral_v<T>) {
      fold_floats<T>(kind, x, axes, out, team);
    } else if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::int32_t>) {
      fold_integers<T>(kind, x, axes, out, team);
    } else {
      fold_extreme<T>(kind, x, axes, out, team);
    }
  });
}

std::int64_t extreme_place(const float* x, std::int64_t n, bool greatest, bool select_last) {
  return place_of_extreme(x, n, 1, greatest, select_last);
}
std::int64_t extreme_place(const double* x, std::int64_t n, bool greatest, bool select_last) {
  return place_of_extreme(x, n, 1, greatest, select_last);
}

void arg_extreme(const Tensor& x, bool greatest, bool select_last, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  const Folding folding(x, 1, out);
  const std::int64_t n = x.dim(-1);
  const std::int64_t step = x.strides()[-1];
  visit_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* from = static_cast<const T*>(x.raw());
    auto* to = static_cast<std::int64_t*>(out.raw_mutable());
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
      if (step != 1 && column_extreme_places(greatest, select_last, folding, from, to, team)) return;
    each_group(folding, n, team, [&](const auto& starts, int count) {
      for (int lane = 0; lane < count; ++lane)
        to[starts[1][lane]] = place_of_extreme(from + starts[0][lane], n, step, greatest, select_last);
    });
  });
}

}  // namespace millrace::cpu
