// SPDX-License-Identifier: Apache-2.0
// Products of f32, f64 and integers in the order of kernels/gemm.h: each output is one chain of fused multiply-adds, whatever the tile that
// computes it. This is the path that always exists; a faster kernel may stand beside it where it gives these bits, or where it has an arithmetic
// id of its own, as those of narrow floats and of tf32 have (mma.cuh).
#include <millrace/kernels/cuda/kernels.h>

#include <type_traits>

#include <millrace/kernels/cuda/with_cuda/product_request.h>
#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/lstm_functions.cuh>
#include <millrace/kernels/cuda/with_cuda/mma.cuh>
#include <millrace/kernels/cuda/with_cuda/wide_gemm.cuh>

namespace millrace::cuda {
namespace {

constexpr std::int64_t k_block = 512;

/// A thread for each output, neighbours along n: what few rows need.
template <class T>
struct Product {
  Walk<3> batch;  // a, b, out
  const T *a, *b;
  std::int64_t a_row, a_column, b_row, b_column;
  Elements<T> out;
  std::int64_t out_row, out_column;
  std::int64_t m, n, k;
  T alpha, beta;
  Elements<T> bias;  // of n elements, or null

  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = i % n;
    const std::int64_t row = i / n % m;
    std::int64_t at[3];
    batch.find(i / n / m, at);
    put(at[2] + row * out_row + column * out_column, column, sum(a + at[0] + row * a_row, b + at[1] + column * b_column));
  }
  MILLRACE_HD T sum(const T* left, const T* right) const {
    T total{0};
    for (std::int64_t begin = 0; begin < k; begin += k_block) {
      const std::int64_t end = least_of(k, begin + k_block);
      T part{0};
      for (std::int64_t x = begin; x < end; ++x) part = mul_add(left[x * a_column], right[x * b_row], part);
      total = begin == 0 ? part : total + part;
    }
    return total;
  }
  MILLRACE_HD void put(std::int64_t at, std::int64_t column, T value) const {
    if (alpha != T{1}) value = alpha * value;
    if (beta != T{0}) value = value + (beta == T{1} ? out.get(at) : beta * out.get(at));
    if (bias.data != nullptr) value = value + bias.get(column);
    out.set(at, value);
  }
};

/// Wrapping arithmetic in 64 bits gives the low bits of any sum of products.
struct IntegerProduct {
  Walk<3> batch;
  Elements<std::int64_t> a, b, out;
  std::int64_t a_row, a_column, b_row, b_column, out_row, out_column;
  std::int64_t m, n, k;
  std::int64_t alpha, beta;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t column = i % n;
    const std::int64_t row = i / n % m;
    std::int64_t at[3];
    batch.find(i / n / m, at);
    std::uint64_t sum = 0;
    for (std::int64_t x = 0; x < k; ++x)
      sum += bits_of(a.get(at[0] + row * a_row + x * a_column)) * bits_of(b.get(at[1] + x * b_row + column * b_column));
    const std::int64_t to = at[2] + row * out_row + column * out_column;
    sum *= bits_of(alpha);
    if (beta != 0) sum += bits_of(beta) * bits_of(out.get(to));
    out.set(to, wrapped(sum));
  }
};

using Request = ProductRequest;

template <class Wide>
Elements<Wide> elements_at(const Tensor& x, std::int64_t offset) {
  return {static_cast<std::byte*>(x.raw_mutable()) + offset * static_cast<std::int64_t>(size_of(x.dtype())), x.dtype()};
}

template <class Kernel, class T>
Kernel kernel_of(const Request& request) {
  return {request.walk(),
          static_cast<const T*>(request.a),
          static_cast<const T*>(request.b),
          request.a_row,
          request.a_column,
          request.b_row,
          request.b_column,
          elements_at<T>(request.out, request.out_offset),
          request.out_row,
          request.out_column,
          request.m,
          request.n,
          request.k,
          static_cast<T>(request.alpha),
          static_cast<T>(request.beta),
          request.bias == nullptr ? Elements<T>{} : elements_at<T>(*request.bias, request.bias_offset)};
}

template <class Kernel, class T>
bool multiply_tiles(const Request& request, const Queue& queue, std::int64_t least_blocks) {
  const std::int64_t blocks = Kernel::blocks(request.batch.elements(), request.m, request.n);
  if (blocks < least_blocks || blocks > std::numeric_limits<int>::max()) return false;
  run_grid(queue, {static_cast<int>(blocks), Kernel::warps, 1, false, Kernel::shared_bytes}, kernel_of<Kernel, T>(request));
  return true;
}

/// Large tiles read less, small ones leave no multiprocessor idle; a tile of few rows would be empty for the most part.
template <class T>
void multiply_floats(const Request& request, const Queue& queue) {
  constexpr std::int64_t few = 32;
  if (request.m >= few && request.n >= few) {
    if constexpr (sizeof(T) == 4)
      if (multiply_tiles<WideProduct<T, 8>, T>(request, queue, queue.multiprocessors)) return;
    if (multiply_tiles<WideProduct<T, 4>, T>(request, queue, queue.multiprocessors / 8)) return;
  }
  each_index(queue, request.batch.elements() * request.m * request.n, kernel_of<Product<T>, T>(request));
}

template <class T>
struct Unfold {
  const T* from;
  T* to;
  std::int64_t sequence, channel, time;  // strides
  std::int64_t length, out_length, channels;
  std::int64_t kernel, stride, dilation, pad;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t tap = i % kernel;
    std::int64_t rest = i / kernel;
    const std::int64_t c = rest % channels;
    rest /= channels;
    const std::int64_t t = rest % out_length * stride + tap * dilation - pad;
    to[i] = t < 0 || t >= length ? T{} : from[rest / out_length * sequence + c * channel + t * time];
  }
};

/// The pointwise part of kernels/lstm_cell.h.
template <class T, bool APPROXIMATE>
struct LstmPointwise {
  Elements<T> recurrent, input, bias, peepholes, c, h_out, c_out;
  std::int64_t hidden, recurrent_row, input_row, c_row, h_out_row, c_out_row;
  LstmFunctions<T> functions;

  MILLRACE_HD void operator()(std::int64_t at) const {
    const std::int64_t row = at / hidden;
    const std::int64_t unit = at % hidden;
    T a[4];
    for (int gate = 0; gate < 4; ++gate) {
      const std::int64_t column = gate * hidden + unit;
      a[gate] = recurrent.get(row * recurrent_row + column);
      if (bias.data != nullptr) a[gate] = a[gate] + bias.get(column);
      a[gate] = a[gate] + input.get(row * input_row + column);
    }
    T looks[3] = {};
    for (int gate = 0; gate < 3 && peepholes.data != nullptr; ++gate) looks[gate] = peepholes.get(gate * hidden + unit);
    T state = c.get(row * c_row + unit);
    const T h = functions.template step<APPROXIMATE>(a, looks, state);
    c_out.set(row * c_out_row + unit, state);
    h_out.set(row * h_out_row + unit, h);
  }
};

}  // namespace

void multiply_ours(const ProductRequest& request, const Queue& queue) {
  if (request.batch.elements() * request.m * request.n == 0) return;
  switch (request.dtype) {
    case DType::f64: return multiply_floats<double>(request, queue);
    case DType::f32:
      if (!uses_tf32(queue)) return multiply_floats<float>(request, queue);
      [[fallthrough]];
    case DType::f16:
    case DType::bf16: return multiply_by_mma(request, queue);
    default: break;
  }
  // Only read: Elements serves both ways.
  const auto side = [&](const void* data) { return Elements<std::int64_t>{const_cast<void*>(data), request.dtype}; };
  each_index(
      queue, request.batch.elements() * request.m * request.n,
      IntegerProduct{request.walk(), side(request.a), side(request.b), elements_at<std::int64_t>(request.out, request.out_offset),
                     request.a_row, request.a_column, request.b_row, request.b_column, request.out_row, request.out_column, request.m,
                     request.n, request.k, static_cast<std::int64_t>(request.alpha), static_cast<std::int64_t>(request.beta)});
}

namespace {

void multiply(const Request& request, const Queue& queue) {
  if (!multiply_by_library(request, queue)) multiply_ours(request, queue);
}

}  // namespace

void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, KernelContext& context) {
  Request request;
  const int axes = c.rank() - 2;
  request.batch = c.dims().slice(0, axes);
  request.batch_strides[0] = a.strides().slice(0, axes);
  request.batch_strides[1] = b.strides().slice(0, axes);
  request.batch_strides[2] = c.strides().slice(0, axes);
  request.dtype = a.dtype();
  request.a = a.raw();
  request.a_row = a.strides()[-2];
  request.a_column = a.strides()[-1];
  request.b = b.raw();
  request.b_row = b.strides()[-2];
  request.b_column = b.strides()[-1];
  request.out = c;
  request.out_row = c.strides()[-2];
  request.out_column = c.strides()[-1];
  request.m = c.dim(-2);
  request.n = c.dim(-1);
  request.k = a.dim(-1);
  request.alpha = alpha;
  request.beta = beta;
  multiply(request, queue_of(context));
}

void linear(const Tensor& x, const Tensor& weights, const Tensor* bias, const Tensor& out, KernelContext& context, bool recurrent) {
  Request request;
  request.dtype = x.dtype();
  request.a = x.raw();
  request.a_row = x.strides()[0];
  request.a_column = x.strides()[1];
  request.b = weights.raw();
  request.b_row = weights.strides()[0];
  request.b_column = weights.strides()[1];
  request.out = out;
  request.out_row = out.strides()[0];
  request.out_column = out.strides()[1];
  request.m = out.dim(0);
  request.n = out.dim(1);
  request.k = x.dim(1);
  request.chain = recurrent ? recurrent_chain : 0;
  request.bias = bias;
  multiply(request, queue_of(context));
}

void conv1d(const Conv1dDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const std::int64_t channels = desc.in_channels / desc.groups;
  const std::int64_t columns = desc.out_channels / desc.groups;
  const std::int64_t k = channels * desc.kernel;
  const std::int64_t length = out.dim(2);
  const Tensor rows = scratch(queue, x.dtype(), DDim{x.dim(0) * length, k});
  for (std::int64_t group = 0; group < desc.groups; ++group) {
    visit_bytes(x.dtype(), [&](auto unit) {
      using U = decltype(unit);
      each_index(
          queue, rows.elements(),
          Unfold<U>{static_cast<const U*>(x.raw()) + group * channels * x.strides()[1], static_cast<U*>(rows.raw_mutable()), x.strides()[0],
                    x.strides()[1], x.strides()[2], x.dim(2), length, channels, desc.kernel, desc.stride, desc.dilation, desc.pad_before});
    });
    Request request;
    request.batch = DDim{x.dim(0)};
    request.batch_strides[0] = DDim{length * k};
    request.batch_strides[1] = DDim{0};
    request.batch_strides[2] = DDim{desc.out_channels * length};
    request.dtype = x.dtype();
    request.a = rows.raw();
    request.a_row = k;
    request.a_column = 1;
    request.b = static_cast<const std::byte*>(weights.raw()) + group * columns * k * static_cast<std::int64_t>(size_of(weights.dtype()));
    request.b_row = 1;
    request.b_column = k;
    request.out = out;
    request.out_offset = group * columns * length;
    request.out_row = 1;
    request.out_column = length;
    request.m = length;
    request.n = columns;
    request.k = k;
    request.bias = bias;
    request.bias_offset = group * columns;
    multiply(request, queue);
  }
}

namespace {

template <class T>
Elements<T> or_none(const Tensor& x, bool used) {
  return used ? elements<T>(x) : Elements<T>{};
}

}  // namespace

void lstm_gates(const LstmDesc& desc, const PackedLstm& weights, const Tensor& input, const Tensor& recurrent, const Tensor& c,
                const Tensor& h_out, const Tensor& c_out, KernelContext& context) {
  if (h_out.elements() == 0) return;
  const auto run = [&](auto wide, auto approximate) {
    using T = decltype(wide);
    using Kernel = LstmPointwise<T, decltype(approximate)::value>;
    const Kernel kernel{elements<T>(recurrent),
                        elements<T>(input),
                        or_none<T>(weights.bias, desc.bias),
                        or_none<T>(weights.peepholes, desc.peepholes),
                        elements<T>(c),
                        elements<T>(h_out),
                        elements<T>(c_out),
                        desc.hidden,
                        recurrent.strides()[0],
                        input.strides()[0],
                        c.strides()[0],
                        h_out.strides()[0],
                        c_out.strides()[0],
                        LstmFunctions<T>(desc)};
    each_index(queue_of(context), h_out.elements(), kernel);
  };
  if (desc.dtype == DType::f64) return run(double{}, std::false_type{});
  if (lstm_approximates(desc.dtype)) return run(float{}, std::true_type{});
  run(float{}, std::false_type{});
}

}  // namespace millrace::cuda
