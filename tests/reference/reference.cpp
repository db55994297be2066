// SPDX-License-Identifier: Apache-2.0
#include <reference/reference.h>

#include <algorithm>
#include <cmath>

#include <millrace/kernels/broadcast.h>

namespace millrace::reference {

Values values(const Tensor& tensor) {
  Values made{tensor.dims(), {}};
  visit_dtype(tensor.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    for (const T value : tensor.to_vector<T>()) made.at.push_back(convert_element<double>(value));
  });
  return made;
}

Tensor tensor(const Values& values, DType dtype) {
  Tensor made(dtype, values.dims);
  visit_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* to = made.mutable_data<T>();
    for (std::size_t i = 0; i < values.at.size(); ++i) to[i] = convert_element<T>(values.at[i]);
  });
  return made;
}

Values map(const Function& f, const Values& x) {
  Values made = x;
  for (double& value : made.at) value = f(value);
  return made;
}

namespace {

/// Where element `linear` of `dims` lies in a row-major operand that is stretched to them.
std::size_t stretched(std::int64_t linear, const DDim& dims, const DDim& operand) {
  std::int64_t offset = 0;
  std::int64_t step = 1;
  for (int back = 1; back <= dims.rank(); ++back) {
    const std::int64_t index = linear % dims[-back];
    linear /= dims[-back];
    if (back > operand.rank()) continue;
    if (operand[-back] != 1) offset += index * step;
    step *= operand[-back];
  }
  return static_cast<std::size_t>(offset);
}

}  // namespace

Values map(const Function2& f, const Values& a, const Values& b) {
  Values made{broadcast_dims(a.dims, b.dims), {}};
  for (std::int64_t i = 0; i < made.dims.elements(); ++i)
    made.at.push_back(f(a.at[stretched(i, made.dims, a.dims)], b.at[stretched(i, made.dims, b.dims)]));
  return made;
}

Values permute(const Values& x, const std::vector<int>& axes) {
  Values made;
  for (const int axis : axes) made.dims = made.dims.inserted(made.dims.rank(), x.dims[axis]);
  const DDim strides = x.dims.row_major();
  for (std::int64_t i = 0; i < made.dims.elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int axis = made.dims.rank() - 1; axis >= 0; --axis) {
      offset += rest % made.dims[axis] * strides[axes[static_cast<std::size_t>(axis)]];
      rest /= made.dims[axis];
    }
    made.at.push_back(x.at[static_cast<std::size_t>(offset)]);
  }
  return made;
}

Values fold_last(const std::function<double(const std::vector<double>&)>& f, const Values& x) {
  Values made{x.dims.erased(-1), {}};
  const std::int64_t n = x.dims[-1];
  for (std::int64_t i = 0; i < made.dims.elements(); ++i)
    made.at.push_back(f(std::vector<double>(x.at.begin() + i * n, x.at.begin() + (i + 1) * n)));
  return made;
}

Values matmul(const Values& a, const Values& b) {
  const std::int64_t k = a.dims[1];
  const std::int64_t n = b.dims[1];
  Values made{DDim{a.dims[0], n}, {}};
  for (std::int64_t i = 0; i < a.dims[0]; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t at = 0; at < k; ++at)
        sum += a.at[static_cast<std::size_t>(i * k + at)] * b.at[static_cast<std::size_t>(at * n + j)];
      made.at.push_back(sum);
    }
  return made;
}

Values conv1d(const Conv1dDesc& desc, const Values& x, const Values& weights, const Values* bias) {
  const std::int64_t length = x.dims[2];
  const std::int64_t in = desc.in_channels / desc.groups;
  const std::int64_t out = desc.out_channels / desc.groups;
  Values made{DDim{x.dims[0], desc.out_channels, desc.out_length(length)}, {}};
  for (std::int64_t n = 0; n < x.dims[0]; ++n)
    for (std::int64_t o = 0; o < desc.out_channels; ++o)
      for (std::int64_t l = 0; l < made.dims[2]; ++l) {
        double sum = bias == nullptr ? 0 : bias->at[static_cast<std::size_t>(o)];
        for (std::int64_t c = 0; c < in; ++c)
          for (std::int64_t t = 0; t < desc.kernel; ++t) {
            const std::int64_t at = l * desc.stride + t * desc.dilation - desc.pad_before;
            if (at < 0 || at >= length) continue;
            const std::int64_t channel = o / out * in + c;
            sum += weights.at[static_cast<std::size_t>((o * in + c) * desc.kernel + t)] *
                   x.at[static_cast<std::size_t>((n * desc.in_channels + channel) * length + at)];
          }
        made.at.push_back(sum);
      }
  return made;
}

Function function(Unary kind, const UnaryParams& params) {
  const double a = params.alpha;
  const double b = params.beta;
  switch (kind) {
    case Unary::neg: return [](double x) { return -x; };
    case Unary::abs: return [](double x) { return std::fabs(x); };
    case Unary::sign: return [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; };
    case Unary::square: return [](double x) { return x * x; };
    case Unary::sqrt: return [](double x) { return std::sqrt(x); };
    case Unary::reciprocal: return [](double x) { return 1 / x; };
    case Unary::exp: return [](double x) { return std::exp(x); };
    case Unary::log: return [](double x) { return std::log(x); };
    case Unary::erf: return [](double x) { return std::erf(x); };
    case Unary::sin: return [](double x) { return std::sin(x); };
    case Unary::cos: return [](double x) { return std::cos(x); };
    case Unary::atan: return [](double x) { return std::atan(x); };
    case Unary::floor: return [](double x) { return std::floor(x); };
    case Unary::ceil: return [](double x) { return std::ceil(x); };
    case Unary::round: return [](double x) { return std::nearbyint(x); };
    case Unary::tanh: return [](double x) { return std::tanh(x); };
    case Unary::sigmoid: return [](double x) { return 1 / (1 + std::exp(-x)); };
    case Unary::relu: return [](double x) { return std::max(x, 0.0); };
    case Unary::leaky_relu: return [a](double x) { return x < 0 ? a * x : x; };
    case Unary::thresholded_relu: return [a](double x) { return x > a ? x : 0.0; };
    case Unary::elu: return [a](double x) { return x < 0 ? a * std::expm1(x) : x; };
    case Unary::selu: return [a, b](double x) { return b * (x > 0 ? x : a * std::expm1(x)); };
    case Unary::celu: return [a](double x) { return x < 0 ? a * std::expm1(x / a) : x; };
    case Unary::gelu: return [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); };
    case Unary::gelu_tanh:
      return [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))); };
    case Unary::hard_sigmoid: return [a, b](double x) { return std::clamp(a * x + b, 0.0, 1.0); };
    case Unary::hard_swish: return [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); };
    case Unary::mish: return [](double x) { return x * std::tanh(std::log1p(std::exp(x))); };
    case Unary::softplus: return [](double x) { return std::log1p(std::exp(x)); };
    case Unary::softsign: return [](double x) { return x / (1 + std::fabs(x)); };
    case Unary::affine: return [a, b](double x) { return a * x + b; };
    case Unary::scaled_tanh: return [a, b](double x) { return a * std::tanh(b * x); };
    case Unary::swish: return [a](double x) { return x / (1 + std::exp(-a * x)); };
    case Unary::clip: return [a, b](double x) { return std::min(std::max(x, a), b); };
    default: return [](double x) { return x; };
  }
}

LstmState lstm_cell(const LstmDesc& desc, const Values& x, const LstmState& state, const Values& w, const Values& r, const Values* bias,
                    const Values* peepholes) {
  const Values in = matmul(x, w);
  const Values recurrent = matmul(state.h, r);
  const auto f = function(desc.gate.kind, desc.gate.params);
  const auto g = function(desc.candidate.kind, desc.candidate.params);
  const auto h = function(desc.output.kind, desc.output.params);
  const auto clipped = [&](double a) { return desc.clip > 0 ? std::clamp(a, -desc.clip, desc.clip) : a; };
  const std::int64_t units = desc.hidden;
  LstmState next{{state.h.dims, {}}, {state.c.dims, {}}};
  for (std::int64_t row = 0; row < x.dims[0]; ++row)
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const double c = state.c.at[static_cast<std::size_t>(row * units + unit)];
      const auto gate = [&](std::int64_t index) {
        const auto at = static_cast<std::size_t>(row * 4 * units + index * units + unit);
        return recurrent.at[at] + in.at[at] + (bias == nullptr ? 0 : bias->at[static_cast<std::size_t>(index * units + unit)]);
      };
      const auto peep = [&](std::int64_t index) {
        return peepholes == nullptr ? 0 : peepholes->at[static_cast<std::size_t>(index * units + unit)];
      };
      const double i = f(clipped(gate(0) + peep(0) * c));
      const double forget = desc.couple_input_forget ? 1 - i : f(clipped(gate(1) + peep(1) * c));
      const double next_c = forget * c + i * g(clipped(gate(2)));
      next.c.at.push_back(next_c);
      next.h.at.push_back(f(clipped(gate(3) + peep(2) * next_c)) * h(next_c));
    }
  return next;
}

}  // namespace millrace::reference
