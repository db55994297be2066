// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <millrace/kernels/conv1d.h>
#include <millrace/kernels/lstm_cell.h>
#include <millrace/tensor/tensor.h>

/// The plainest form of each kernel, in f64 on row-major vectors: what every backend is compared with.
namespace millrace::reference {

struct Values {
  DDim dims;
  std::vector<double> at;
};

/// All elements of a host tensor, exactly.
Values values(const Tensor& tensor);
/// The same as a host tensor of `dtype`, rounded.
Tensor tensor(const Values& values, DType dtype);

using Function = std::function<double(double)>;
using Function2 = std::function<double(double, double)>;

Values map(const Function& f, const Values& x);
/// With numpy's broadcasting.
Values map(const Function2& f, const Values& a, const Values& b);
Values permute(const Values& x, const std::vector<int>& axes);
/// Folds the last axis.
Values fold_last(const std::function<double(const std::vector<double>&)>& f, const Values& x);

/// [M, K] by [K, N].
Values matmul(const Values& a, const Values& b);
Values conv1d(const Conv1dDesc& desc, const Values& x, const Values& weights, const Values* bias);

/// A function of `Unary`, from the C library.
Function function(Unary kind, const UnaryParams& params);

struct LstmState {
  Values h, c;
};
LstmState lstm_cell(const LstmDesc& desc, const Values& x, const LstmState& state, const Values& w, const Values& r, const Values* bias,
                    const Values* peepholes);

}  // namespace millrace::reference
