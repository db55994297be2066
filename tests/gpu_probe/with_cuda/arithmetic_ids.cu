// SPDX-License-Identifier: Apache-2.0
// The instructions and library kernels of this device that have the same bits, so that a choice among them shows in no result:
// mma.sync.m16n8k16 beside wgmma.m64nNk16, and the algorithms of cuBLASLt over row counts of 1 to 4096, each beside itself at 4096 rows and
// beside the arithmetic that kernels/gemm.h and kernels/cuda/with_cuda/mma.cuh define, for f16, bf16, f32 and tf32. Prints a line for each; decides nothing.
// Exit codes: 0, 1 (CUDA or cuBLASLt failed), 77 (no device).
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <type_traits>
#include <vector>

#include <millrace/kernels/cuda/with_cuda/blas_library.h>

namespace {

// The product's belief about cuBLASLt, whose header it does not see.
namespace blas = millrace::cuda::blas;
static_assert(sizeof(blas::Algorithm) == sizeof(cublasLtMatmulAlgo_t) && sizeof(blas::Proposal) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(blas::Proposal, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(blas::Proposal, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(blas::type_f32 == CUDA_R_32F && blas::type_f64 == CUDA_R_64F && blas::type_f16 == CUDA_R_16F &&
              blas::type_bf16 == CUDA_R_16BF);
static_assert(blas::compute_f32 == CUBLAS_COMPUTE_32F && blas::compute_f64 == CUBLAS_COMPUTE_64F && blas::success == CUBLAS_STATUS_SUCCESS);
static_assert(blas::turn_left == CUBLASLT_MATMUL_DESC_TRANSA && blas::turned == CUBLAS_OP_T);
static_assert(blas::most_workspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
              blas::reduction_schemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
              blas::least_alignment == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              blas::least_alignment + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

void check(int code, const char* what) {
  if (code == 0) return;
  std::printf("%s failed: %d\n", what, code);
  std::exit(1);
}

/// Memory of the device that frees itself.
template <class T>
class Room {
 public:
  explicit Room(std::size_t count) : count_(count) { check(cudaMalloc(&at_, count * sizeof(T)), "cudaMalloc"); }
  explicit Room(const std::vector<T>& from) : Room(from.size()) {
    check(cudaMemcpy(at_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Room() { static_cast<void>(cudaFree(at_)); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  T* get() const { return at_; }
  std::size_t count() const { return count_; }
  std::vector<T> host(std::size_t count) const {
    std::vector<T> made(count);
    check(cudaMemcpy(made.data(), at_, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return made;
  }

 private:
  std::size_t count_;
  T* at_ = nullptr;
};

template <class T>
std::vector<T> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> made(count);
  for (T& one : made) one = T(normal(random));
  return made;
}

std::size_t differing(const std::vector<float>& a, const std::vector<float>& b, std::size_t count) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return found;
}

template <class T>
__device__ void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// out[m][n] of x[m][k] and w[n][k], all contiguous: a warp makes 16 columns of w by 8 rows of x. Chains of `chain` k, whose sums are added.
template <class T>
__global__ void mma_product(const T* x, const T* w, float* out, int m, int n, int k, int chain) {
  const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
  const int column = blockIdx.x * 16, row = blockIdx.y * 8;
  const auto two = [&](const T* of, int at, int limit, int where) {
    return at < limit ? *reinterpret_cast<const std::uint32_t*>(of + static_cast<std::size_t>(at) * k + where) : 0u;
  };
  float total[4] = {}, part[4] = {};
  for (int begin = 0; begin < k; begin += 16) {
    if (begin % chain == 0 && begin > 0)
      for (int i = 0; i < 4; ++i) {
        total[i] = begin == chain ? part[i] : total[i] + part[i];
        part[i] = 0;
      }
    const std::uint32_t a[4] = {two(w, column + group, n, begin + pair), two(w, column + group + 8, n, begin + pair),
                                two(w, column + group, n, begin + pair + 8), two(w, column + group + 8, n, begin + pair + 8)};
    const std::uint32_t b[2] = {two(x, row + group, m, begin + pair), two(x, row + group, m, begin + pair + 8)};
    mma<T>(part, a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const int c = column + group + i / 2 * 8, r = row + pair + i % 2;
    if (r < m && c < n) out[static_cast<std::size_t>(r) * n + c] = k <= chain ? part[i] : total[i] + part[i];
  }
}

/// As the unit reads it: rounded to nearest, ties away from zero.
__device__ std::uint32_t tf32_of(float value) {
  std::uint32_t made;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(made) : "f"(value));
  return made & 0xffffe000u;
}
__global__ void round_to_tf32(float* x, std::size_t count) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) x[i] = __uint_as_float(tf32_of(x[i]));
}

/// `mma_product` of f32 as tf32, 8 k at a time.
__global__ void tf32_product(const float* x, const float* w, float* out, int m, int n, int k, int chain) {
  const int lane = threadIdx.x, group = lane / 4, one = lane % 4;
  const int column = blockIdx.x * 16, row = blockIdx.y * 8;
  const auto factor = [&](const float* of, int at, int limit, int where) {
    return at < limit ? tf32_of(of[static_cast<std::size_t>(at) * k + where]) : 0u;
  };
  float total[4] = {}, part[4] = {};
  for (int begin = 0; begin < k; begin += 8) {
    if (begin % chain == 0 && begin > 0)
      for (int i = 0; i < 4; ++i) {
        total[i] = begin == chain ? part[i] : total[i] + part[i];
        part[i] = 0;
      }
    const std::uint32_t a[4] = {factor(w, column + group, n, begin + one), factor(w, column + group + 8, n, begin + one),
                                factor(w, column + group, n, begin + one + 4), factor(w, column + group + 8, n, begin + one + 4)};
    const std::uint32_t b[2] = {factor(x, row + group, m, begin + one), factor(x, row + group, m, begin + one + 4)};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(part[0]), "+f"(part[1]), "+f"(part[2]), "+f"(part[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  for (int i = 0; i < 4; ++i) {
    const int c = column + group + i / 2 * 8, r = row + one * 2 + i % 2;
    if (r < m && c < n) out[static_cast<std::size_t>(r) * n + c] = k <= chain ? part[i] : total[i] + part[i];
  }
}

/// The chain of gemm.h.
__global__ void fma_product(const float* x, const float* w, float* out, int m, int n, int k) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i >= static_cast<std::size_t>(m) * n) return;
  const float *left = x + i / n * k, *right = w + i % n * k;
  float total = 0;
  for (int begin = 0; begin < k; begin += 512) {
    float part = 0;
    for (int at = begin; at < min(k, begin + 512); ++at) part = __fmaf_rn(left[at], right[at], part);
    total = begin == 0 ? part : total + part;
  }
  out[i] = total;
}

template <class T>
void define(const T* x, const T* w, float* out, int m, int n, int k, bool tf32) {
  if constexpr (std::is_same_v<T, float>)
    if (tf32)
      tf32_product<<<dim3((n + 15) / 16, (m + 7) / 8), 32>>>(x, w, out, m, n, k, 128);
    else
      fma_product<<<(static_cast<unsigned>(m) * n + 255) / 256, 256>>>(x, w, out, m, n, k);
  else
    mma_product<T><<<dim3((n + 15) / 16, (m + 7) / 8), 32>>>(x, w, out, m, n, k, 128);
  check(cudaGetLastError(), "a kernel's launch");
}

/// One k-block of 16 after the other from +0: 64 rows of w by 8 of x, both staged as 8 by 8 pieces without a swizzle.
__global__ void wgmma_product(const __half* x, const __half* w, float* out, int k) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(128) __half left[64 * 16], right[8 * 16];
  const auto place = [](int row, int at) { return (row / 8 * 2 + at / 8) * 64 + row % 8 * 8 + at % 8; };
  const auto described = [](const void* tile) {  // 16 bytes apart: 128 along k, 256 from 8 rows to the next
    const auto at = static_cast<std::uint64_t>(__cvta_generic_to_shared(tile));
    return (at & 0x3FFFF) >> 4 | std::uint64_t{128 >> 4} << 16 | std::uint64_t{256 >> 4} << 32;
  };
  float d[4] = {};
  for (int begin = 0; begin < k; begin += 16) {
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += 128) left[place(i / 16, i % 16)] = w[i / 16 * k + begin + i % 16];
    for (int i = threadIdx.x; i < 8 * 16; i += 128) right[place(i / 16, i % 16)] = x[i / 16 * k + begin + i % 16];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(described(left)), "l"(described(right)));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) out[(column + i % 2) * 64 + row + i / 2 * 8] = d[i];
#endif
}

void instructions(int major) {
  if (major != 9) return static_cast<void>(std::printf("wgmma: not on this device\n"));
  for (const int k : {16, 128, 1024}) {
    const Room<__half> x(random_numbers<__half>(static_cast<std::size_t>(8) * k, 1)),
        w(random_numbers<__half>(static_cast<std::size_t>(64) * k, 2));
    const Room<float> one(8 * 64), other(8 * 64);
    mma_product<__half><<<dim3(4, 1), 32>>>(x.get(), w.get(), one.get(), 8, 64, k, k);
    wgmma_product<<<1, 128>>>(x.get(), w.get(), other.get(), k);
    check(cudaDeviceSynchronize(), "a kernel");
    const std::vector<float> a = one.host(512), b = other.host(512);
    double apart = 0;
    for (std::size_t i = 0; i < a.size(); ++i) apart = std::max(apart, std::abs(static_cast<double>(a[i]) - b[i]));
    std::printf("mma.sync m16n8k16 and wgmma m64n8k16, f16, one chain of %d: %zu of 512 outputs differ, by %.3g at most\n", k,
                differing(a, b, 512), apart);
  }
}

constexpr int row_counts[] = {1,  2,  3,  4,   7,   8,   9,   15,  16,  17,   31,   32,   33,
                              63, 64, 65, 100, 128, 200, 256, 511, 512, 1000, 1024, 2048, 4096};
constexpr int most_rows = 4096;

/// out[m][n] = x[m][k] · w[k][n], as cuBLASLt sees it: columns of n.
struct Library {
  cublasLtHandle_t handle = nullptr;
  static constexpr std::size_t work_bytes = std::size_t{32} << 20;
  Room<std::byte> work{work_bytes};
  Library() { check(cublasLtCreate(&handle), "cublasLtCreate"); }
  ~Library() { cublasLtDestroy(handle); }
};

class Layout {
 public:
  Layout(cudaDataType_t type, int rows, int columns) {
    check(cublasLtMatrixLayoutCreate(&layout_, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  operator cublasLtMatrixLayout_t() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

template <class T>
class Algorithms {
 public:
  /// `compute` of FAST_TF32: beside the chains of tf32; `rounded`: of factors that are of tf32 already.
  Algorithms(Library& library, const char* name, cudaDataType_t type, int k, int n, cublasComputeType_t compute = CUBLAS_COMPUTE_32F,
             bool rounded = false)
      : library_(library),
        name_(name),
        type_(type),
        tf32_(compute == CUBLAS_COMPUTE_32F_FAST_TF32),
        k_(k),
        n_(n),
        x_(random_numbers<T>(std::size_t{most_rows} * k, 3)),
        w_(random_numbers<T>(static_cast<std::size_t>(n) * k, 4)),
        y_(std::size_t{most_rows} * n) {
    check(cublasLtMatmulDescCreate(&product_, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t turned = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned), "cublasLtMatmulDescSetAttribute");
    if constexpr (std::is_same_v<T, float>)
      if (rounded)
        for (const Room<float>* one : {&x_, &w_})
          round_to_tf32<<<static_cast<unsigned>((one->count() + 255) / 256), 256>>>(one->get(), one->count());
  }
  ~Algorithms() { cublasLtMatmulDescDestroy(product_); }

  void compare() {
    define<T>(x_.get(), w_.get(), y_.get(), most_rows, n_, k_, tf32_);
    const std::vector<float> defined = y_.host(std::size_t{most_rows} * n_);
    int refused = 0, invariant = 0, ours = 0;
    std::vector<std::vector<float>> classes;
    const std::vector<cublasLtMatmulHeuristicResult_t> found = ask();
    for (const cublasLtMatmulHeuristicResult_t& one : found) {
      if (!run(most_rows, one.algo)) {
        ++refused;
        continue;
      }
      const std::vector<float> whole = y_.host(std::size_t{most_rows} * n_);
      if (!same_for_all(one.algo, whole)) continue;
      ++invariant;
      if (differing(whole, defined, whole.size()) == 0) ++ours;
      if (std::none_of(classes.begin(), classes.end(), [&](const auto& known) { return differing(known, whole, whole.size()) == 0; }))
        classes.push_back(whole);
    }
    std::printf(
        "cuBLASLt %s K %d N %d: %zu algorithms without split k, %d refuse %d rows, %d keep their bits over all row counts, in %zu classes "
        "of bits; %d have ours\n",
        name_, k_, n_, found.size(), refused, most_rows, invariant, classes.size(), ours);
    std::fflush(stdout);
  }

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> ask() {
    cublasLtMatmulPreference_t wanted = nullptr;
    check(cublasLtMatmulPreferenceCreate(&wanted), "cublasLtMatmulPreferenceCreate");
    const std::size_t bytes = Library::work_bytes;
    const std::uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    check(cublasLtMatmulPreferenceSetAttribute(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes), "a preference");
    check(cublasLtMatmulPreferenceSetAttribute(wanted, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction),
          "a preference");
    std::vector<cublasLtMatmulHeuristicResult_t> all;
    for (const int rows : {1, 16, 128, most_rows}) {  // what is fast for few rows is not what is fast for many
      const Layout w(type_, k_, n_), x(type_, k_, rows), y(CUDA_R_32F, n_, rows);
      cublasLtMatmulHeuristicResult_t some[16] = {};
      int count = 0;
      if (cublasLtMatmulAlgoGetHeuristic(library_.handle, product_, w, x, y, y, wanted, 16, some, &count) != CUBLAS_STATUS_SUCCESS)
        continue;
      for (int i = 0; i < count; ++i)
        if (std::none_of(all.begin(), all.end(),
                         [&](const auto& known) { return std::memcmp(&known.algo, &some[i].algo, sizeof known.algo) == 0; }))
          all.push_back(some[i]);
    }
    cublasLtMatmulPreferenceDestroy(wanted);
    return all;
  }

  bool run(int rows, const cublasLtMatmulAlgo_t& algorithm) {
    const Layout w(type_, k_, n_), x(type_, k_, rows), y(CUDA_R_32F, n_, rows);
    const float one = 1, zero = 0;
    const cublasStatus_t status = cublasLtMatmul(library_.handle, product_, &one, w_.get(), w, x_.get(), x, &zero, y_.get(), y, y_.get(), y,
                                                 &algorithm, library_.work.get(), Library::work_bytes, nullptr);
    check(cudaDeviceSynchronize(), "cublasLtMatmul");
    return status == CUBLAS_STATUS_SUCCESS;
  }

  bool same_for_all(const cublasLtMatmulAlgo_t& algorithm, const std::vector<float>& whole) {
    return std::all_of(std::begin(row_counts), std::end(row_counts), [&](int rows) {
      const std::size_t count = static_cast<std::size_t>(rows) * n_;
      return run(rows, algorithm) && differing(y_.host(count), whole, count) == 0;
    });
  }

  Library& library_;
  const char* name_;
  cudaDataType_t type_;
  bool tf32_;
  int k_, n_;
  Room<T> x_, w_;
  Room<float> y_;
  cublasLtMatmulDesc_t product_ = nullptr;
};

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device\n");
    return std::getenv("MILLRACE_REQUIRE_CUDA") != nullptr ? 1 : 77;
  }
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s, compute capability %d.%d, cuBLASLt %zu\n", device.name, device.major, device.minor, cublasLtGetVersion());
  instructions(device.major);
  Library library;
  for (const int k : {64, 256, 512, 1024, 2048})
    for (const int n : {512, 1024, 4096}) {
      Algorithms<__half>(library, "f16", CUDA_R_16F, k, n).compare();
      Algorithms<__nv_bfloat16>(library, "bf16", CUDA_R_16BF, k, n).compare();
      Algorithms<float>(library, "f32", CUDA_R_32F, k, n).compare();
      Algorithms<float>(library, "tf32", CUDA_R_32F, k, n, CUBLAS_COMPUTE_32F_FAST_TF32).compare();
      Algorithms<float>(library, "tf32 of factors rounded before", CUDA_R_32F, k, n, CUBLAS_COMPUTE_32F_FAST_TF32, true).compare();
    }
  return 0;
}
