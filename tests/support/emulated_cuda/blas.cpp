// SPDX-License-Identifier: Apache-2.0
// Written from cuBLASLt's documentation. Matrices are columns; the left one may be turned.
#include "blas.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include <millrace/kernels/cuda/with_cuda/blas_library.h>
#include <millrace/tensor/dtype.h>

namespace {

namespace blas = millrace::cuda::blas;
using emulated::BlasAlgorithm;

constexpr int unsupported = 15, invalid = 7;

std::mutex mutex;
std::vector<BlasAlgorithm> offered;
std::size_t offered_workspace = 0;
emulated::BlasUse use;

struct EmulatedDescription {
  int compute = 0, scale = 0, turned = 0;
};
struct EmulatedLayout {
  int type = 0;
  std::int64_t rows = 0, columns = 0, apart = 0;
};
struct EmulatedPreference {
  std::map<int, std::uint64_t> values;
};

double element(const void* data, int type, std::int64_t at) {
  switch (type) {
    case blas::type_f64: return static_cast<const double*>(data)[at];
    case blas::type_f32: return static_cast<const float*>(data)[at];
    case blas::type_f16: return static_cast<float>(static_cast<const millrace::float16*>(data)[at]);
    default: return static_cast<float>(static_cast<const millrace::bfloat16*>(data)[at]);
  }
}
void put(void* data, int type, std::int64_t at, double value) {
  switch (type) {
    case blas::type_f64: static_cast<double*>(data)[at] = value; return;
    case blas::type_f32: static_cast<float*>(data)[at] = static_cast<float>(value); return;
    case blas::type_f16: static_cast<millrace::float16*>(data)[at] = millrace::float16(static_cast<float>(value)); return;
    default: static_cast<millrace::bfloat16*>(data)[at] = millrace::bfloat16(static_cast<float>(value)); return;
  }
}

struct Product {
  EmulatedLayout left, right, out;
  const void *a, *b;
  void* d;
  bool turned, pairwise;

  /// A chain of fused multiply-adds, restarted every so many, or the chains of the even and of the odd places.
  template <class T>
  T sum(std::int64_t row, std::int64_t column) const {
    const std::int64_t k = right.rows, block = left.type == blas::type_f16 || left.type == blas::type_bf16 ? 128 : 512;
    const auto term = [&](std::int64_t x, T& to) {
      const std::int64_t at = turned ? x + row * left.apart : row + x * left.apart;
      to = std::fma(static_cast<T>(element(a, left.type, at)), static_cast<T>(element(b, right.type, x + column * right.apart)), to);
    };
    if (pairwise) {
      T parts[2] = {};
      for (std::int64_t x = 0; x < k; ++x) term(x, parts[x % 2]);
      return parts[0] + parts[1];
    }
    T total{};
    for (std::int64_t begin = 0; begin < k; begin += block) {
      T part{};
      for (std::int64_t x = begin; x < std::min(k, begin + block); ++x) term(x, part);
      total = begin == 0 ? part : total + part;
    }
    return total;
  }
  void operator()() const {
    for (std::int64_t column = 0; column < out.columns; ++column)
      for (std::int64_t row = 0; row < out.rows; ++row)
        put(d, out.type, row + column * out.apart,
            left.type == blas::type_f64 ? sum<double>(row, column) : double{sum<float>(row, column)});
  }
};

template <class T>
int make(void** made) {
  *made = new T;
  return blas::success;
}
template <class T>
int end(void* one) {
  delete static_cast<T*>(one);
  return blas::success;
}

int set_description(void* description, int which, const void* value, std::size_t bytes) {
  if (which != blas::turn_left || bytes != sizeof(int)) return invalid;
  std::memcpy(&static_cast<EmulatedDescription*>(description)->turned, value, bytes);
  return blas::success;
}
int describe(void** made, int compute, int scale) {
  *made = new EmulatedDescription{compute, scale, 0};
  return blas::success;
}
int lay_out(void** made, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t apart) {
  *made = new EmulatedLayout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), apart};
  return blas::success;
}
int set_preference(void* preference, int which, const void* value, std::size_t bytes) {
  std::uint64_t number = 0;
  if (bytes > sizeof number) return invalid;
  std::memcpy(&number, value, bytes);
  static_cast<EmulatedPreference*>(preference)->values[which] = number;
  return blas::success;
}

int propose(void*, void*, void*, void*, void*, void*, void* preference, int wanted, blas::Proposal* proposals, int* found) {
  const auto& values = static_cast<EmulatedPreference*>(preference)->values;
  const std::lock_guard lock(mutex);
  ++use.proposals;
  *found = 0;
  // Reductions unless they are ruled out, and pointers of 256 bytes unless others are said to come.
  if (!values.contains(blas::reduction_schemes) || values.at(blas::reduction_schemes) != 0) return unsupported;
  for (int operand = 0; operand < 4; ++operand)
    if (!values.contains(blas::least_alignment + operand)) return unsupported;
  for (const BlasAlgorithm one : offered) {
    if (*found == wanted) break;
    if (offered_workspace > values.at(blas::most_workspace)) continue;
    blas::Proposal& made = proposals[(*found)++];
    made = {};
    made.algorithm.data[0] = static_cast<std::uint64_t>(one);
    made.workspace_bytes = offered_workspace;
  }
  return blas::success;
}

int multiply(void*, void* description, const void* alpha, const void* a, void* left, const void* b, void* right, const void* beta,
             const void*, void*, void* d, void* out, const blas::Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
             void* stream) {
  const auto& what = *static_cast<EmulatedDescription*>(description);
  Product product{*static_cast<EmulatedLayout*>(left),
                  *static_cast<EmulatedLayout*>(right),
                  *static_cast<EmulatedLayout*>(out),
                  a,
                  b,
                  d,
                  what.turned == blas::turned,
                  false};
  const auto which = static_cast<BlasAlgorithm>(algorithm->data[0]);
  const std::int64_t rows = product.out.columns;
  const bool f64 = what.scale == blas::type_f64;
  const bool plain = f64 ? *static_cast<const double*>(alpha) == 1 && *static_cast<const double*>(beta) == 0
                         : *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  const std::int64_t k = product.turned ? product.left.rows : product.left.columns;
  if (!plain || k != product.right.rows || rows != product.right.columns ||
      product.out.rows != (product.turned ? product.left.columns : product.left.rows) ||
      what.compute != (f64 ? blas::compute_f64 : blas::compute_f32))
    return invalid;
  {
    const std::lock_guard lock(mutex);
    if (workspace_bytes < offered_workspace) return invalid;
    ++use.products;
    ++use.of[which];
    use.most_columns = std::max(use.most_columns, static_cast<std::size_t>(rows));
    if (workspace != nullptr) use.workspaces[static_cast<cudaStream_t>(stream)].insert(workspace);
  }
  if (which == BlasAlgorithm::refuses || (which == BlasAlgorithm::up_to_256 && rows == 300)) return unsupported;
  if (which == BlasAlgorithm::lazy) return blas::success;
  product.pairwise =
      which == BlasAlgorithm::pairwise || (which == BlasAlgorithm::by_rows && rows < 9) || (which == BlasAlgorithm::few_rows && rows > 256);
  emulated::enqueue(static_cast<cudaStream_t>(stream), [product, workspace, workspace_bytes] {
    if (workspace != nullptr) std::memset(workspace, 1, workspace_bytes);
    product();
  });
  return blas::success;
}

}  // namespace

namespace emulated {

void offer_blas(const std::vector<BlasAlgorithm>& algorithms, std::size_t workspace_bytes) {
  const std::lock_guard lock(mutex);
  offered = algorithms;
  offered_workspace = workspace_bytes;
  use = {};
}
BlasUse blas_use() {
  const std::lock_guard lock(mutex);
  return use;
}

}  // namespace emulated

const blas::Functions* millrace::cuda::blas::find_functions() {
  static const Functions all{[]() -> std::size_t { return 130002; },
                             make<int>,
                             end<int>,
                             describe,
                             end<EmulatedDescription>,
                             set_description,
                             lay_out,
                             end<EmulatedLayout>,
                             make<EmulatedPreference>,
                             end<EmulatedPreference>,
                             set_preference,
                             propose,
                             multiply};
  const std::lock_guard lock(mutex);
  return offered.empty() ? nullptr : &all;
}
