// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/binary.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <type_traits>

#include <millrace/kernels/cpu/convert_run.h>
#include <millrace/kernels/cpu/span_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/kernels/internal/wrapping_power.h>

namespace millrace::cpu {
namespace {

template <class T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<float16> {
  using type = float;
};
template <>
struct WideOf<bfloat16> {
  using type = float;
};

template <class T, class Out, class F>
void run_each(const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team, F f) {
  using Wide = typename WideOf<T>::type;
  const T* left = static_cast<const T*>(a.raw());
  const T* right = static_cast<const T*>(b.raw());
  Out* result = static_cast<Out*>(out.raw_mutable());
  const auto one = [f](T x, T y) { return convert_element<Out>(f(convert_element<Wide>(x), convert_element<Wide>(y))); };
  if (out.elements() == 1) {  // the counters and conditions of loops
    *result = one(*left, *right);
    return;
  }
  const StridedLoop<3> loop(out.dims(), {&a.strides(), &b.strides(), &out.strides()});
  const auto [a_step, b_step, out_step] = loop.inner();
  loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
    const T* x = left + offsets[0];
    const T* y = right + offsets[1];
    Out* z = result + offsets[2];
    if (a_step == 1 && b_step == 1 && out_step == 1) {
      for (std::int64_t i = 0; i < count; ++i) z[i] = one(x[i], y[i]);
    } else if (a_step == 1 && b_step == 0 && out_step == 1) {
      const T scalar = *y;
      for (std::int64_t i = 0; i < count; ++i) z[i] = one(x[i], scalar);
    } else {
      for (std::int64_t i = 0; i < count; ++i) z[i * out_step] = one(x[i * a_step], y[i * b_step]);
    }
  });
}

/// Arithmetic of integers, in the unsigned type of 64 bits, whose wrapping is defined.
template <class T>
struct Integers {
  std::atomic<bool>& zero_divisor;

  static T wrap(std::uint64_t value) { return static_cast<T>(value); }
  static std::uint64_t wide(T value) { return static_cast<std::uint64_t>(value); }
  bool refuse(T y) const {
    if (y != 0) return false;
    zero_divisor.store(true, std::memory_order_relaxed);
    return true;
  }
  T div(T x, T y) const {
    if (refuse(y)) return 0;
    if (std::is_signed_v<T> && y == static_cast<T>(-1)) return wrap(std::uint64_t{0} - wide(x));
    return static_cast<T>(x / y);
  }
  T fmod(T x, T y) const {
    if (refuse(y) || (std::is_signed_v<T> && y == static_cast<T>(-1))) return 0;
    return static_cast<T>(x % y);
  }
  T mod(T x, T y) const {
    const T rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(rest + y) : rest;
  }
  T pow(T x, T y) const {
    if (y < 0) {
      if (x == 1) return 1;
      if (x == static_cast<T>(-1)) return y % 2 == 0 ? T{1} : x;
      refuse(x);
      return 0;
    }
    return wrap(internal::wrapping_power(wide(x), wide(y)));
  }
};

/// Spans of f32 and f64 as they lie; f16, bf16 and other strides go through buffers, a piece at a time.
template <class T>
void run_floats(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team) {
  using Wide = typename WideOf<T>::type;
  constexpr std::int64_t piece = 256;
  const SpanFunction<Wide> function = span_function<Wide>(kind);
  const StridedLoop<3> loop(out.dims(), {&a.strides(), &b.strides(), &out.strides()});
  const T* left = static_cast<const T*>(a.raw());
  const T* right = static_cast<const T*>(b.raw());
  T* result = static_cast<T*>(out.raw_mutable());
  const std::int64_t steps[] = {loop.inner()[0], loop.inner()[1], loop.inner()[2]};
  const bool heavy = kind == Binary::pow || kind == Binary::mod || kind == Binary::fmod;
  loop.parallel(team, heavy ? grain_heavy : grain_light, [&](const auto& offsets, std::int64_t count) {
    const T* from[] = {left + offsets[0], right + offsets[1]};
    T* to = result + offsets[2];
    if constexpr (std::is_same_v<T, Wide>) {
      const auto spans = [&](int k) { return count == 1 || steps[k] == 0 || steps[k] == 1; };
      if (spans(0) && spans(1) && (count == 1 || steps[2] == 1))
        return function({from[0], steps[0] == 0}, {from[1], steps[1] == 0}, to, static_cast<std::size_t>(count));
    }
    Wide buffers[2][piece], made[piece];
    for (std::int64_t done = 0; done < count; done += piece) {
      const std::int64_t some = std::min(piece, count - done);
      Span<Wide> in[2];
      for (int k = 0; k < 2; ++k) {
        in[k] = {buffers[k], steps[k] == 0};
        convert_run(from[k] + done * steps[k], steps[k], buffers[k], 1, in[k].repeats ? 1 : some);
      }
      function(in[0], in[1], made, static_cast<std::size_t>(some));
      convert_run(made, 1, to + done * steps[2], steps[2], some);
    }
  });
}

template <class T>
void run_integers(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team) {
  std::atomic<bool> zero_divisor{false};
  using Of = Integers<T>;
  const Of of{zero_divisor};
  const auto run = [&](auto f) { run_each<T, T>(a, b, out, team, f); };
  switch (kind) {
    case Binary::add: run([](T x, T y) { return Of::wrap(Of::wide(x) + Of::wide(y)); }); break;
    case Binary::sub: run([](T x, T y) { return Of::wrap(Of::wide(x) - Of::wide(y)); }); break;
    case Binary::mul: run([](T x, T y) { return Of::wrap(Of::wide(x) * Of::wide(y)); }); break;
    case Binary::div: run([&of](T x, T y) { return of.div(x, y); }); break;
    case Binary::pow: run([&of](T x, T y) { return of.pow(x, y); }); break;
    case Binary::minimum: run([](T x, T y) { return x < y ? x : y; }); break;
    case Binary::maximum: run([](T x, T y) { return x > y ? x : y; }); break;
    case Binary::mod: run([&of](T x, T y) { return of.mod(x, y); }); break;
    case Binary::fmod: run([&of](T x, T y) { return of.fmod(x, y); }); break;
    default: run([](T x, T y) { return x < 0 ? Of::wrap(Of::wide(x) * Of::wide(y)) : x; }); break;
  }
  if (zero_divisor)
    throw ArgumentError(std::string(name_of(kind)) + ": an integer is divided by zero in " + a.to_string() + " by " + b.to_string());
}

template <class T>
void run_comparison(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team) {
  using Wide = typename WideOf<T>::type;
  const auto run = [&](auto f) { run_each<T, bool>(a, b, out, team, f); };
  switch (kind) {
    case Binary::equal: return run([](Wide x, Wide y) { return x == y; });
    case Binary::not_equal: return run([](Wide x, Wide y) { return x != y; });
    case Binary::less: return run([](Wide x, Wide y) { return x < y; });
    case Binary::less_equal: return run([](Wide x, Wide y) { return x <= y; });
    case Binary::greater: return run([](Wide x, Wide y) { return x > y; });
    case Binary::greater_equal: return run([](Wide x, Wide y) { return x >= y; });
    case Binary::logical_and: return run([](Wide x, Wide y) { return x && y; });
    case Binary::logical_or: return run([](Wide x, Wide y) { return x || y; });
    default: return run([](Wide x, Wide y) { return static_cast<bool>(x) != static_cast<bool>(y); });
  }
}

}  // namespace

void binary(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, ThreadTeam& team) {
  visit_dtype(a.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if (kind >= Binary::equal) return run_comparison<T>(kind, a, b, out, team);
    if constexpr (std::is_same_v<T, bool>) {
      return;  // bool has comparisons and logic alone
    } else if constexpr (std::is_integral_v<T>) {
      run_integers<T>(kind, a, b, out, team);
    } else {
      run_floats<T>(kind, a, b, out, team);
    }
  });
}

}  // namespace millrace::cpu
