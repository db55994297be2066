// SPDX-License-Identifier: Apache-2.0
// The contract is that of kernels/library_products.h. cuBLASLt's matrices are columns: it is given out^T = W^T · x^T.
#include <millrace/kernels/library_products.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <millrace/kernels/cuda/with_cuda/blas_library.h>
#include <millrace/kernels/cuda/with_cuda/product_request.h>
#include <millrace/kernels/fill.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/memory_pool.h>
#include <millrace/kernels/cuda/with_cuda/library_kernels.cuh>

namespace millrace::cuda {
namespace {

constexpr std::int64_t most_rows = 4096, alignment = 16, least_extent = 32, least_work = std::int64_t{1} << 20;
/// The most first: an algorithm with other sums is told by these at once.
constexpr std::int64_t row_counts[] = {4096, 1, 2, 3, 7, 8, 16, 17, 31, 32, 64, 65, 128, 200, 256, 1000};
constexpr std::size_t workspace_bytes = std::size_t{8} << 20, most_probe_bytes = std::size_t{512} << 20, most_probed = 64;
constexpr int most_proposals = 16;
/// Few rows have algorithms of their own: asked for at the first number of rows, compared and used up to the second. Ascending.
constexpr std::pair<std::int64_t, std::int64_t> bands[] = {{16, 32}, {128, 256}};
constexpr std::size_t most_of_band = 4;
constexpr std::chrono::seconds most_time{60};

// ---- The library ----

int type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return blas::type_f64;
    case DType::f16: return blas::type_f16;
    case DType::bf16: return blas::type_bf16;
    default: return blas::type_f32;
  }
}
DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// A product as far as the choice depends on it. It is asked for its sums alone, as they are before they are narrowed: what differs shows there.
struct Shape {
  DType dtype;
  std::int64_t k, n;
  bool turned;  // W is the transpose of a row-major matrix

  DType sum() const { return wide(dtype); }
  auto key() const { return std::tuple(static_cast<int>(dtype), k, n, turned); }
  std::string text() const {
    return std::string(name_of(dtype)) + " [M, " + std::to_string(k) + "] x [" + std::to_string(k) + ", " + std::to_string(n) + "]" +
           (turned ? " (transposed)" : "");
  }
};

[[noreturn]] void refused(const char* call, int status) { throw Error(std::string(call) + " gave " + std::to_string(status)); }

/// cuBLASLt's objects for one product of so many rows.
class Problem {
 public:
  Problem(const blas::Functions& library, const Shape& shape, std::int64_t rows) : library_(library) {
    const bool f64 = shape.dtype == DType::f64;
    try {
      require("cublasLtMatmulDescCreate",
              library.describe(&description_, f64 ? blas::compute_f64 : blas::compute_f32, type_of(wide(shape.dtype))));
      if (shape.turned)
        require("cublasLtMatmulDescSetAttribute",
                library.set_description(description_, blas::turn_left, &blas::turned, sizeof blas::turned));
      const int type = type_of(shape.dtype);
      lay_out(&w_, type, shape.turned ? shape.k : shape.n, shape.turned ? shape.n : shape.k);
      lay_out(&x_, type, shape.k, rows);
      lay_out(&y_, type_of(shape.sum()), shape.n, rows);
    } catch (...) {
      end();
      throw;
    }
  }
  ~Problem() { end(); }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  std::vector<blas::Proposal> propose(blas::Handle handle, int most) const {
    blas::Preference wanted = nullptr;
    require("cublasLtMatmulPreferenceCreate", library_.prefer(&wanted));
    const std::uint32_t no_reduction = 0, aligned = alignment;
    bool works = library_.set_preference(wanted, blas::most_workspace, &workspace_bytes, sizeof workspace_bytes) == blas::success &&
                 library_.set_preference(wanted, blas::reduction_schemes, &no_reduction, sizeof no_reduction) == blas::success;
    for (int operand = 0; operand < 4; ++operand)
      works = works && library_.set_preference(wanted, blas::least_alignment + operand, &aligned, sizeof aligned) == blas::success;
    std::vector<blas::Proposal> found(static_cast<std::size_t>(most));
    int count = 0;
    works = works && library_.propose(handle, description_, w_, x_, y_, y_, wanted, most, found.data(), &count) == blas::success;
    library_.end_preference(wanted);
    found.resize(works ? static_cast<std::size_t>(std::clamp(count, 0, most)) : 0);
    std::erase_if(found, [](const blas::Proposal& one) { return one.state != blas::success || one.workspace_bytes > workspace_bytes; });
    return found;
  }

  int multiply(blas::Handle handle, bool f64, const void* x, const void* w, void* y, const blas::Algorithm& algorithm, void* workspace,
               const Queue& queue) const {
    const double one = 1, zero = 0;
    const float narrow_one = 1, narrow_zero = 0;
    const void* const alpha = f64 ? static_cast<const void*>(&one) : &narrow_one;
    const void* const beta = f64 ? static_cast<const void*>(&zero) : &narrow_zero;
    const int status = library_.multiply(handle, description_, alpha, w, w_, x, x_, beta, y, y_, y, y_, &algorithm, workspace,
                                         workspace == nullptr ? 0 : workspace_bytes, queue.stream);
    if (status != blas::success) static_cast<void>(cudaGetLastError());  // told already; one that stays is told again
    return status;
  }

 private:
  static void require(const char* call, int status) {
    if (status != blas::success) refused(call, status);
  }
  void lay_out(blas::Layout* layout, int type, std::int64_t rows, std::int64_t columns) {
    require("cublasLtMatrixLayoutCreate",
            library_.lay_out(layout, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows));
  }
  void end() noexcept {
    for (blas::Layout layout : {w_, x_, y_})
      if (layout != nullptr) library_.end_layout(layout);
    if (description_ != nullptr) library_.end_description(description_);
  }

  const blas::Functions& library_;
  blas::Description description_ = nullptr;
  blas::Layout w_ = nullptr, x_ = nullptr, y_ = nullptr;
};

struct Choice {
  struct Use {
    std::int64_t most_rows;
    blas::Algorithm algorithm;
    bool has_workspace;
  };
  bool library = false;
  std::vector<Use> uses;  // ascending by rows; the last serves any number
  std::string text;

  std::vector<Use>::iterator use(std::int64_t rows) {
    return std::find_if(uses.begin(), uses.end() - 1, [rows](const Use& one) { return rows <= one.most_rows; });
  }
};

// ---- The probe ----

/// Runs on a stream of its own, so that it waits for nobody's work; memory is of the device's pool and budget.
class Probe {
 public:
  Probe(const blas::Functions& library, blas::Handle handle, const Shape& shape, const Queue& caller)
      : library_(library), handle_(handle), shape_(shape), queue_(caller) {
    const auto* memory = dynamic_cast<const DeviceMemory*>(caller.memory->get());
    if (memory == nullptr) throw Error("memory that is not the device's");
    memory_ = std::make_shared<DeviceMemory>(memory->pool(), no_stream);
    check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", queue_.device);
    queue_.state = nullptr;
    queue_.launched = nullptr;
    queue_.memory = &memory_;
  }
  ~Probe() {
    static_cast<void>(cudaStreamSynchronize(queue_.stream));  // before the memory goes back
    static_cast<void>(cudaStreamDestroy(queue_.stream));
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Choice run() {
    Choice made;
    const std::vector<blas::Proposal> all = proposals();
    if (all.empty()) return ours("cuBLASLt proposes nothing");
    prepare();
    const auto until = std::chrono::steady_clock::now() + most_time;
    std::string why;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string found = difference(all[i], most_rows);
      const std::string which = "algorithm " + std::to_string(i + 1) + " of " + std::to_string(all.size());
      if (found.empty()) {
        made.library = true;
        made.text = "cuBLASLt, " + which + ": our bits at " + std::to_string(std::size(row_counts)) + " row counts" +
                    (why.empty() ? "" : "; " + why);
        add_bands(made, all[i], until);
        made.uses.push_back({most_rows, all[i].algorithm, all[i].workspace_bytes > 0});
        return made;
      }
      why += (why.empty() ? "" : "; ") + which + " " + found;
      if (std::chrono::steady_clock::now() > until) {
        why += "; no time for more";
        break;
      }
    }
    return ours(why);
  }
  /// The fastest algorithm for many rows is not the fastest for few.
  void add_bands(Choice& made, const blas::Proposal& of_all, std::chrono::steady_clock::time_point until) const {
    for (const auto& [asked, most] : bands) {
      const std::vector<blas::Proposal> proposed = Problem(library_, shape_, asked).propose(handle_, most_of_band);
      for (const blas::Proposal& one : proposed) {
        if (is_same(one, of_all) || std::chrono::steady_clock::now() > until) break;
        if (!difference(one, most).empty()) continue;
        made.uses.push_back({most, one.algorithm, one.workspace_bytes > 0});
        made.text += "; another up to " + std::to_string(most) + " rows";
        break;
      }
    }
  }
  static bool is_same(const blas::Proposal& a, const blas::Proposal& b) {
    return std::memcmp(&a.algorithm, &b.algorithm, sizeof a.algorithm) == 0;
  }
  static Choice ours(const std::string& why) {
    Choice made;
    made.text = "ours, " + why;
    return made;
  }
  static std::size_t bytes(const Shape& shape) {
    const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
    const double k = static_cast<double>(shape.k), n = static_cast<double>(shape.n), rows = most_rows;
    const double all = size(shape.dtype) * k * (rows + n) + 2 * size(shape.sum()) * rows * n + static_cast<double>(workspace_bytes);
    return all > 1e15 ? std::size_t{1} << 50 : static_cast<std::size_t>(all);
  }

 private:
  /// The fastest algorithm for few rows is not the fastest for many.
  std::vector<blas::Proposal> proposals() const {
    std::vector<blas::Proposal> all;
    for (const std::int64_t rows : {most_rows, std::int64_t{128}, std::int64_t{16}})
      for (const blas::Proposal& one : Problem(library_, shape_, rows).propose(handle_, most_proposals / 2)) {
        const bool known = std::any_of(all.begin(), all.end(), [&](const blas::Proposal& other) { return is_same(other, one); });
        if (!known && all.size() < most_proposals) all.push_back(one);
      }
    return all;
  }

  Tensor room(DType dtype, const DDim& dims) const { return Tensor(dtype, dims, memory_); }
  void draw(const Tensor& to, std::uint64_t seed, bool odd) const {
    const auto fill = [&](auto zero) {
      using T = decltype(zero);
      each_index(queue_, to.elements(), library::Drawn<T>{elements<T>(to), to.dim(1), seed, odd});
    };
    shape_.dtype == DType::f64 ? fill(double{}) : fill(float{});
  }
  void prepare() {
    x_ = room(shape_.dtype, DDim{most_rows, shape_.k});
    w_ = room(shape_.dtype, shape_.turned ? DDim{shape_.n, shape_.k} : DDim{shape_.k, shape_.n});
    wanted_ = room(shape_.sum(), DDim{most_rows, shape_.n});
    found_ = room(shape_.sum(), DDim{most_rows, shape_.n});
    workspace_ = room(DType::u8, DDim{static_cast<std::int64_t>(workspace_bytes)});
    flag_ = room(DType::i32, DDim{1});
    draw(x_, 1, true);
    draw(w_, std::uint64_t{1} << 40, false);
    ProductRequest ours;
    ours.dtype = shape_.dtype;
    ours.a = x_.raw();
    ours.a_row = shape_.k;
    ours.a_column = 1;
    ours.b = w_.raw();
    ours.b_row = shape_.turned ? 1 : shape_.n;
    ours.b_column = shape_.turned ? shape_.k : 1;
    ours.out = wanted_;
    ours.out_row = shape_.n;
    ours.out_column = 1;
    ours.m = most_rows;
    ours.n = shape_.n;
    ours.k = shape_.k;
    multiply_ours(ours, queue_);
    compare(most_rows, false);
  }
  void compare(std::int64_t rows, bool with_ours) const {
    each_index(queue_, rows * shape_.n * static_cast<std::int64_t>(size_of(shape_.sum())) / 2,
               library::Compare{static_cast<std::uint16_t*>(found_.raw_mutable()),
                                with_ours ? static_cast<const std::uint16_t*>(wanted_.raw()) : nullptr,
                                static_cast<std::uint32_t*>(flag_.raw_mutable())});
  }
  /// Why it is not taken; empty: it has our bits everywhere, up to so many rows.
  std::string difference(const blas::Proposal& one, std::int64_t most) const {
    for (const std::int64_t rows : row_counts) {
      if (rows > most) continue;
      const std::string at = " at " + std::to_string(rows) + (rows == 1 ? " row" : " rows");
      std::uint32_t differs = 0;
      check(cudaMemcpyAsync(flag_.raw_mutable(), &differs, sizeof differs, cudaMemcpyHostToDevice, queue_.stream), "cudaMemcpyAsync",
            queue_.device);
      const int status = Problem(library_, shape_, rows)
                             .multiply(handle_, shape_.dtype == DType::f64, x_.raw(), w_.raw(), found_.raw_mutable(), one.algorithm,
                                       one.workspace_bytes == 0 ? nullptr : workspace_.raw_mutable(), queue_);
      if (status != blas::success) {
        compare(most_rows, false);
        return "failed with status " + std::to_string(status) + at;
      }
      compare(rows, true);
      check(cudaMemcpyAsync(&differs, flag_.raw(), sizeof differs, cudaMemcpyDeviceToHost, queue_.stream), "cudaMemcpyAsync",
            queue_.device);
      check(cudaStreamSynchronize(queue_.stream), "cudaStreamSynchronize", queue_.device);
      if (differs != 0) return "has other bits" + at;
    }
    return {};
  }

  const blas::Functions& library_;
  blas::Handle handle_;
  Shape shape_;
  Queue queue_;
  std::shared_ptr<MemoryResource> memory_;
  Tensor x_, w_, wanted_, found_, workspace_, flag_;
};

// ---- A device's choices ----

bool aligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % alignment == 0; }

/// Matrices that lie as the probe's do.
bool is_for_library(const ProductRequest& of) {
  const bool floats = of.dtype == DType::f64 || of.dtype == DType::f32 || of.dtype == DType::f16 || of.dtype == DType::bf16;
  const bool rows = of.a_column == 1 && (of.a_row == of.k || of.m == 1);
  const bool straight = of.b_column == 1 && of.b_row == of.n;
  const bool turned = of.b_row == 1 && of.b_column == of.k;
  return floats && of.batch.rank() == 0 && of.m > 0 && of.n >= least_extent && of.k >= least_extent && rows && (straight || turned) &&
         aligned(of.a) && aligned(of.b);
}

class LibraryProducts {
 public:
  LibraryProducts() : library_(blas::find_functions()) {}
  ~LibraryProducts() {
    if (handle_ != nullptr) library_->destroy(handle_);
  }
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;

  bool multiply(const ProductRequest& of, const Queue& queue);
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    for (const auto& [key, choice] : choices_) all.push_back(choice.text);
    return all;
  }

 private:
  Choice* choose(const Shape& shape, std::int64_t rows, const Queue& queue);
  Choice probe(const Shape& shape, const Queue& queue);
  void* workspace(const Queue& queue, Tensor& kept);
  int run(const Shape& shape, Choice& choice, const ProductRequest& of, void* sums, const Queue& queue);

  const blas::Functions* library_;
  blas::Handle handle_ = nullptr;
  std::map<decltype(Shape{}.key()), Choice> choices_;
  std::map<cudaStream_t, Tensor> workspaces_;
};

Choice LibraryProducts::probe(const Shape& shape, const Queue& queue) {
  if (choices_.size() >= most_probed) return Probe::ours(std::to_string(most_probed) + " products were probed already");
  if (Probe::bytes(shape) > most_probe_bytes) return Probe::ours("too big to be probed");
  try {
    if (handle_ == nullptr) {
      const int status = library_->create(&handle_);
      if (status != blas::success) {
        handle_ = nullptr;
        refused("cublasLtCreate", status);
      }
    }
    return Probe(*library_, handle_, shape, queue).run();
  } catch (const OutOfMemoryError& e) {
    return Probe::ours(std::string("no room for the probe: ") + e.what());
  } catch (const CudaError& e) {
    if (e.is_sticky()) throw;  // which the stream is to know
    return Probe::ours(e.what());
  } catch (const Error& e) {
    return Probe::ours(e.what());
  }
}

/// Null: ours.
Choice* LibraryProducts::choose(const Shape& shape, std::int64_t rows, const Queue& queue) {
  auto found = choices_.find(shape.key());
  if (found == choices_.end()) {
    if (queue.recording != nullptr || rows * shape.k * shape.n < least_work) return nullptr;
    if (choices_.size() > most_probed) return nullptr;
    Choice made = probe(shape, queue);
    made.text = shape.text() + ": " + made.text;
    found = choices_.emplace(shape.key(), std::move(made)).first;
  }
  return found->second.library ? &found->second : nullptr;
}

/// One for each stream, which its products use one after the other; a recording has its own, since it runs whenever it is told to.
void* LibraryProducts::workspace(const Queue& queue, Tensor& kept) {
  const DDim dims{static_cast<std::int64_t>(workspace_bytes)};
  if (queue.recording != nullptr) {
    kept = scratch(queue, DType::u8, dims);
    return kept.raw_mutable();
  }
  const auto found = workspaces_.find(queue.stream);
  if (found != workspaces_.end()) return found->second.raw_mutable();
  return workspaces_.emplace(queue.stream, scratch(queue, DType::u8, dims)).first->second.raw_mutable();
}

int LibraryProducts::run(const Shape& shape, Choice& choice, const ProductRequest& of, void* sums, const Queue& queue) {
  Tensor kept;
  for (std::int64_t row = 0; row < of.m; row += most_rows) {
    const std::int64_t rows = std::min(most_rows, of.m - row);
    const auto* const x = static_cast<const std::byte*>(of.a) + row * of.k * static_cast<std::int64_t>(size_of(shape.dtype));
    auto* const y = static_cast<std::byte*>(sums) + row * of.n * static_cast<std::int64_t>(size_of(shape.sum()));
    if (queue.launched != nullptr) queue.launched->add("F = cublasLtMatmul;");
    for (auto use = choice.use(rows);; use = choice.use(rows)) {
      void* const work = !use->has_workspace ? nullptr : kept.elements() > 0 ? kept.raw_mutable() : workspace(queue, kept);
      const int status =
          Problem(*library_, shape, rows).multiply(handle_, shape.dtype == DType::f64, x, of.b, y, use->algorithm, work, queue);
      if (status == blas::success) break;
      if (use + 1 == choice.uses.end()) return status;
      choice.uses.erase(use);  // of few rows alone
    }
  }
  return blas::success;
}

template <class T>
void finish(const ProductRequest& of, const void* sums, std::byte* out, const Queue& queue) {
  Elements<T> bias;
  if (of.bias != nullptr)
    bias = {static_cast<std::byte*>(of.bias->raw_mutable()) + of.bias_offset * static_cast<std::int64_t>(size_of(of.bias->dtype())),
            of.bias->dtype()};
  each_index(queue, of.m * of.n,
             library::Finish<T>{static_cast<const T*>(sums), Elements<T>{out, of.out.dtype()}, bias, of.n, of.out_row, of.out_column,
                                static_cast<T>(of.alpha), static_cast<T>(of.beta)});
}

bool LibraryProducts::multiply(const ProductRequest& of, const Queue& queue) {
  if (library_ == nullptr) return false;
  const Shape shape{of.dtype, of.k, of.n, of.b_column != 1};
  const DType sum = shape.sum();
  std::byte* const out = static_cast<std::byte*>(of.out.raw_mutable()) + of.out_offset * static_cast<std::int64_t>(size_of(of.out.dtype()));
  const bool packed = of.out_column == 1 && (of.out_row == of.n || of.m == 1) && aligned(out);
  const bool in_place = packed && of.beta == 0 && of.out.dtype() == sum;
  Choice* const choice = choose(shape, of.m, queue);
  if (choice == nullptr) return false;
  const Tensor room = in_place ? Tensor() : scratch(queue, sum, DDim{of.m, of.n});
  void* const sums = in_place ? out : room.raw_mutable();
  if (const int status = run(shape, *choice, of, sums, queue); status != blas::success) {
    choice->library = false;
    choice->text = shape.text() + ": ours, cuBLASLt gave status " + std::to_string(status) + " at " + std::to_string(of.m) + " rows";
    return false;
  }
  if (in_place && of.alpha == 1 && of.bias == nullptr) return true;
  sum == DType::f64 ? finish<double>(of, sums, out, queue) : finish<float>(of, sums, out, queue);
  return true;
}

bool is_turned_off() {
  const char* wanted = std::getenv("MILLRACE_CUBLASLT");
  return wanted != nullptr && std::string_view(wanted) == "off";
}

}  // namespace

bool multiply_by_library(const ProductRequest& request, const Queue& queue) {
  if (queue.context == nullptr || !queue.context->library_products || !is_for_library(request)) return false;
  if (request.dtype == DType::f32 && uses_tf32(queue)) return false;  // another arithmetic, which no probe compares
  if (request.chain > 0 && request.k > request.chain) return false;
  const std::lock_guard lock(queue.context->mutex);
  if (queue.context->products == nullptr) {
    if (queue.recording != nullptr || request.m * request.n * request.k < least_work || is_turned_off()) return false;
    queue.context->products = std::make_shared<LibraryProducts>();
  }
  return static_cast<LibraryProducts*>(queue.context->products.get())->multiply(request, queue);
}

}  // namespace millrace::cuda

namespace millrace {

std::vector<std::string> library_products(Device& device) {
  const auto* memory = dynamic_cast<const cuda::DeviceMemory*>(device.stream(0).memory().get());
  if (memory == nullptr) return {};
  cuda::DeviceContext* const context = memory->pool()->queue(0).context;
  const std::lock_guard lock(context->mutex);
  if (context->products == nullptr) return {};
  return static_cast<const cuda::LibraryProducts*>(context->products.get())->lines();
}

void probe_library_product(const GemmPlan& plan, const PackedMatrix& w, StreamRef stream) {
  const GemmDesc& desc = plan.desc();
  if (desc.k < cuda::least_extent || desc.n < cuda::least_extent) return;
  const std::int64_t rows = std::max<std::int64_t>(1, (cuda::least_work + desc.k * desc.n - 1) / (desc.k * desc.n));
  const Tensor x = zeros(DDim{rows, desc.k}, desc.dtype, stream);
  Tensor out(desc.out, DDim{rows, desc.n}, stream.memory());
  run(plan, w, x, out, stream);
}

std::vector<std::string> cuda_arithmetic_ids() {
  return {"f64 and f32: a chain of fused multiply-adds, k 512, as on the CPU", "f16 and bf16: mma.m16n8k16 (h·R of LSTM cells: k 128)",
          "f32 with --tf32 (CudaOptions::tf32): mma.m16n8k8 tf32, k 128",
          "functions of f16 and bf16 LSTM cells: pointwise.approx, by ex2.approx and rcp.approx"};
}

std::string library_products_status() {
  if (cuda::is_turned_off()) return "cuBLASLt is turned off by MILLRACE_CUBLASLT";
  const cuda::blas::Functions* const library = cuda::blas::find_functions();
  if (library == nullptr) return "no cuBLASLt here: our own kernels";
  const std::size_t version = library->version();
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

}  // namespace millrace
