// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/unary.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <millrace/kernels/cpu/convert_run.h>
#include <millrace/kernels/cpu/each_element.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

constexpr std::int64_t piece = 256;

/// Floats in whole pieces: what is not contiguous f32 or f64 goes through buffers of the arithmetic's type.
template <class T>
void run_floats(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const StridedLoop<2> loop(x.dims(), {&x.strides(), &out.strides()});
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const auto [from_step, to_step] = loop.inner();
  loop.parallel(team, grain_heavy, [&](const auto& offsets, std::int64_t count) {
    const T* source = from + offsets[0];
    T* target = to + offsets[1];
    if constexpr (std::is_same_v<T, Wide>) {
      if (count == 1 || (from_step == 1 && to_step == 1)) return unary_run(kind, params, source, target, static_cast<std::size_t>(count));
    }
    Wide buffer[piece];
    for (std::int64_t done = 0; done < count; done += piece) {
      const std::int64_t some = std::min(piece, count - done);
      convert_run(source + done * from_step, from_step, buffer, 1, some);
      unary_run(kind, params, buffer, buffer, static_cast<std::size_t>(some));
      convert_run(buffer, 1, target + done * to_step, to_step, some);
    }
  });
}

template <class T>
void run_integers(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  using Wrapping = std::make_unsigned_t<T>;
  const auto minus = [](T v) { return static_cast<T>(Wrapping{0} - static_cast<Wrapping>(v)); };
  switch (kind) {
    case Unary::neg: return each_element<T, T>(x, out, team, minus);
    case Unary::abs: return each_element<T, T>(x, out, team, [=](T v) { return v < 0 ? minus(v) : v; });
    case Unary::sign: return each_element<T, T>(x, out, team, [](T v) { return static_cast<T>((v > 0) - (v < 0)); });
    case Unary::square:
      return each_element<T, T>(x, out, team,
                                [](T v) { return static_cast<T>(static_cast<std::uint64_t>(v) * static_cast<std::uint64_t>(v)); });
    case Unary::relu: return each_element<T, T>(x, out, team, [](T v) { return std::max(v, T{0}); });
    case Unary::clip: {
      const auto bound = [](double value) {
        if (!(value > static_cast<double>(std::numeric_limits<T>::min()))) return std::numeric_limits<T>::min();
        if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
        return static_cast<T>(value);
      };
      const T low = bound(params.alpha);
      const T high = bound(params.beta);
      return each_element<T, T>(x, out, team, [=](T v) { return std::min(std::max(v, low), high); });
    }
    default: return each_element<T, T>(x, out, team, [](T v) { return v; });
  }
}

template <class T>
void run_type(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  if constexpr (std::is_same_v<T, bool>) {
    const bool flip = kind == Unary::logical_not;
    each_element<bool, bool>(x, out, team, [flip](bool v) { return v != flip; });
  } else if constexpr (std::is_integral_v<T>) {
    run_integers<T>(kind, params, x, out, team);
  } else if (kind == Unary::is_nan) {
    each_element<T, bool>(x, out, team, [](T v) { return std::isnan(convert_element<double>(v)); });
  } else if (kind == Unary::is_inf) {
    each_element<T, bool>(x, out, team, [](T v) { return std::isinf(convert_element<double>(v)); });
  } else {
    run_floats<T>(kind, params, x, out, team);
  }
}

}  // namespace

void unary(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  visit_dtype(x.dtype(), [&](auto type) { run_type<typename decltype(type)::type>(kind, params, x, out, team); });
}

}  // namespace millrace::cpu
