// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/cuda/with_cuda/fault_source.h>
#include <millrace/kernels/internal/round_to_odd.h>
#include <millrace/kernels/internal/wrapping_power.h>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>

#include <cstring>

namespace millrace::cuda {
namespace {

Walk<2> walk_of(const Tensor& x, const Tensor& out) {
  const DDim* const strides[2] = {&x.strides(), &out.strides()};
  return Walk<2>(out.dims(), strides);
}
Walk<3> walk_of(const Tensor& a, const Tensor& b, const Tensor& out) {
  const DDim* const strides[3] = {&a.strides(), &b.strides(), &out.strides()};
  return Walk<3>(out.dims(), strides);
}

/// Floats to integers towards zero and clamped to what the integer holds; NaN is 0.
MILLRACE_HD std::int64_t to_integer(double value, DType dtype) {
  const auto clamped = [value](double least, double behind, std::int64_t low, std::int64_t high) {
    return value >= behind ? high : value <= least ? low : static_cast<std::int64_t>(value);
  };
  if (value != value) return 0;
  switch (dtype) {
    case DType::i64: return clamped(-0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
    case DType::i32: return clamped(-0x1p31, 0x1p31, INT32_MIN, INT32_MAX);
    case DType::i8: return clamped(-128, 128, -128, 127);
    case DType::boolean: return value != 0.0;
    default: return clamped(0, 256, 0, 255);
  }
}

template <class From, class To>
struct Cast {
  Walk<2> walk;
  Elements<From> from;
  Elements<To> to;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    const From value = from.get(at[0]);
    if constexpr (std::is_same_v<To, std::int64_t> && !std::is_same_v<From, std::int64_t>) {
      to.set(at[1], to_integer(static_cast<double>(value), to.dtype));
    } else if constexpr (std::is_same_v<To, float> && std::is_same_v<From, std::int64_t>) {
      to.set(at[1], to.dtype == DType::f32 ? static_cast<float>(value) : internal::round_to_odd(value));
    } else {
      to.set(at[1], static_cast<To>(value));
    }
  }
};

template <class T>
struct UnaryFloats {
  Walk<2> walk;
  Elements<T> from, to;
  Unary kind;
  T alpha, beta;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    to.set(at[1], apply(kind, alpha, beta, from.get(at[0])));
  }
};

template <class T>
struct UnaryTest {
  Walk<2> walk;
  Elements<T> from;
  std::uint8_t* to;
  bool infinite;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    const T x = from.get(at[0]);
    to[at[1]] = infinite ? x == x && x - x != T{0} : x != x;
  }
};

struct UnaryIntegers {
  Walk<2> walk;
  Elements<std::int64_t> from, to;
  Unary kind;
  std::int64_t low, high;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    to.set(at[1], of(from.get(at[0])));
  }
  MILLRACE_HD std::int64_t of(std::int64_t x) const {
    switch (kind) {
      case Unary::logical_not: return x == 0;
      case Unary::neg: return wrapped(0 - bits_of(x));
      case Unary::abs: return x < 0 ? wrapped(0 - bits_of(x)) : x;
      case Unary::sign: return (x > 0) - (x < 0);
      case Unary::square: return wrapped(bits_of(x) * bits_of(x));
      case Unary::relu: return greatest_of(x, std::int64_t{0});
      case Unary::clip: return least_of(greatest_of(x, low), high);
      default: return x;
    }
  }
};

/// A bound of clip within the range of an integer dtype.
std::int64_t bound(double value, DType dtype) {
  if (value != value) value = -std::numeric_limits<double>::infinity();
  return to_integer(value, dtype);
}

template <class T>
struct Arithmetic {
  Walk<3> walk;
  Elements<T> a, b, out;
  Binary kind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[3];
    walk.find(i, at);
    out.set(at[2], of(a.get(at[0]), b.get(at[1])));
  }
  MILLRACE_HD T of(T x, T y) const {
    switch (kind) {
      case Binary::add: return x + y;
      case Binary::sub: return x - y;
      case Binary::mul: return x * y;
      case Binary::div: return x / y;
      case Binary::pow: return y == T{2} ? x * x : std::pow(x, y);
      case Binary::minimum: return x < y || x != x ? x : y;
      case Binary::maximum: return x > y || x != x ? x : y;
      case Binary::mod: {
        const T rest = std::fmod(x, y);
        return rest != T{0} && (rest < T{0}) != (y < T{0}) ? rest + y : rest;
      }
      case Binary::fmod: return std::fmod(x, y);
      case Binary::sigmoid_gradient: return x * (y * (T{1} - y));
      case Binary::tanh_gradient: return x * (T{1} - y * y);
      default: return x < T{0} ? y * x : x;
    }
  }
};

struct IntegerArithmetic {
  Walk<3> walk;
  Elements<std::int64_t> a, b, out;
  Binary kind;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[3];
    walk.find(i, at);
    out.set(at[2], of(a.get(at[0]), b.get(at[1])));
  }
  MILLRACE_HD std::int64_t of(std::int64_t x, std::int64_t y) const {
    switch (kind) {
      case Binary::add: return wrapped(bits_of(x) + bits_of(y));
      case Binary::sub: return wrapped(bits_of(x) - bits_of(y));
      case Binary::mul: return wrapped(bits_of(x) * bits_of(y));
      case Binary::div: return refuse(y) ? 0 : y == -1 ? wrapped(0 - bits_of(x)) : x / y;
      case Binary::pow: return power(x, y);
      case Binary::minimum: return x < y ? x : y;
      case Binary::maximum: return x > y ? x : y;
      case Binary::mod: {
        const std::int64_t rest = remainder(x, y);
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
      }
      case Binary::fmod: return remainder(x, y);
      default: return x < 0 ? wrapped(bits_of(x) * bits_of(y)) : x;
    }
  }
  MILLRACE_HD bool refuse(std::int64_t y) const {
    if (y == 0) fault.raise(Fault::zero_divisor, 0);
    return y == 0;
  }
  MILLRACE_HD std::int64_t remainder(std::int64_t x, std::int64_t y) const { return refuse(y) || y == -1 ? 0 : x % y; }
  MILLRACE_HD std::int64_t power(std::int64_t x, std::int64_t y) const {
    if (y < 0) {
      if (x == 1) return 1;
      if (x == -1) return y % 2 == 0 ? 1 : -1;
      refuse(x);
      return 0;
    }
    return wrapped(internal::wrapping_power(bits_of(x), bits_of(y)));
  }
};

template <class T>
struct Comparison {
  Walk<3> walk;
  Elements<T> a, b;
  std::uint8_t* out;
  Binary kind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[3];
    walk.find(i, at);
    out[at[2]] = of(a.get(at[0]), b.get(at[1]));
  }
  MILLRACE_HD bool of(T x, T y) const {
    switch (kind) {
      case Binary::equal: return x == y;
      case Binary::not_equal: return x != y;
      case Binary::less: return x < y;
      case Binary::less_equal: return x <= y;
      case Binary::greater: return x > y;
      case Binary::greater_equal: return x >= y;
      case Binary::logical_and: return x != T{0} && y != T{0};
      case Binary::logical_or: return x != T{0} || y != T{0};
      default: return (x != T{0}) != (y != T{0});
    }
  }
};

template <class U>
struct Fill {
  Walk<1> walk;
  U value;
  U* to;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[1];
    walk.find(i, at);
    to[at[0]] = value;
  }
};

template <class T>
struct Arange {
  double start, step;
  Elements<T> to;
  MILLRACE_HD void operator()(std::int64_t i) const {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      to.set(i, static_cast<std::int64_t>(start) + i * static_cast<std::int64_t>(step));
    } else {
      to.set(i, static_cast<T>(start + static_cast<double>(i) * step));
    }
  }
};

template <class U>
struct Where {
  Walk<4> walk;
  const std::uint8_t* condition;
  const U *a, *b;
  U* out;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[4];
    walk.find(i, at);
    out[at[3]] = condition[at[0]] != 0 ? a[at[1]] : b[at[2]];
  }
};

}  // namespace

void cast(const Tensor& x, const Tensor& out, KernelContext& context) {
  visit_wide(x.dtype(), [&](auto from) {
    visit_wide(out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      each_index(queue_of(context), out.elements(), Cast<From, To>{walk_of(x, out), elements<From>(x), elements<To>(out)});
    });
  });
}

void fill(const Tensor& value, const Tensor& out, KernelContext& context) {
  visit_bytes(out.dtype(), [&](auto unit) {
    using U = decltype(unit);
    U element;
    std::memcpy(&element, value.raw(), sizeof element);
    const DDim* const strides[1] = {&out.strides()};
    each_index(queue_of(context), out.elements(), Fill<U>{Walk<1>(out.dims(), strides), element, static_cast<U*>(out.raw_mutable())});
  });
}

void arange(double start, double step, const Tensor& out, KernelContext& context) {
  visit_wide(out.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue_of(context), out.elements(), Arange<T>{start, step, elements<T>(out)});
  });
}

void unary(Unary kind, const UnaryParams& params, const Tensor& x, const Tensor& out, KernelContext& context) {
  const Queue& queue = queue_of(context);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    if constexpr (std::is_same_v<T, std::int64_t>) {
      each_index(queue, out.elements(),
                 UnaryIntegers{walk_of(x, out), elements<T>(x), elements<T>(out), kind, bound(params.alpha, x.dtype()),
                               bound(params.beta, x.dtype())});
    } else if (kind == Unary::is_nan || kind == Unary::is_inf) {
      each_index(queue, out.elements(),
                 UnaryTest<T>{walk_of(x, out), elements<T>(x), static_cast<std::uint8_t*>(out.raw_mutable()), kind == Unary::is_inf});
    } else {
      each_index(queue, out.elements(),
                 UnaryFloats<T>{walk_of(x, out), elements<T>(x), elements<T>(out), kind, static_cast<T>(params.alpha),
                                static_cast<T>(params.beta)});
    }
  });
}

void binary(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out, KernelContext& context) {
  const Queue& queue = queue_of(context);
  visit_wide(a.dtype(), [&](auto wide) {
    using T = decltype(wide);
    if (kind >= Binary::equal) {
      each_index(queue, out.elements(),
                 Comparison<T>{walk_of(a, b, out), elements<T>(a), elements<T>(b), static_cast<std::uint8_t*>(out.raw_mutable()), kind});
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      each_index(queue, out.elements(),
                 IntegerArithmetic{walk_of(a, b, out), elements<T>(a), elements<T>(b), elements<T>(out), kind,
                                   fault_sink(queue, FaultyOp::binary)});
    } else {
      each_index(queue, out.elements(), Arithmetic<T>{walk_of(a, b, out), elements<T>(a), elements<T>(b), elements<T>(out), kind});
    }
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out, KernelContext& context) {
  visit_bytes(a.dtype(), [&](auto unit) {
    using U = decltype(unit);
    const DDim* const strides[4] = {&condition.strides(), &a.strides(), &b.strides(), &out.strides()};
    each_index(queue_of(context), out.elements(),
               Where<U>{Walk<4>(out.dims(), strides), static_cast<const std::uint8_t*>(condition.raw()), static_cast<const U*>(a.raw()),
                        static_cast<const U*>(b.raw()), static_cast<U*>(out.raw_mutable())});
  });
}

}  // namespace millrace::cuda
