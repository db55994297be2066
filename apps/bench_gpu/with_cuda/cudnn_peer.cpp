// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/cudnn_peer.h>

#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <bench_gpu/with_cuda/cudnn_api.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/check.h>

namespace millrace::bench {
namespace {

constexpr std::pair<Cudnn::Algorithm, const char*> algorithms[] = {{Cudnn::standard, "standard"},
                                                                   {Cudnn::persist_static, "persist static"},
                                                                   {Cudnn::persist_dynamic, "persist dynamic"},
                                                                   {Cudnn::persist_static_small_h, "persist static small h"}};
// cuDNN 8.2 has the first three; one that a version does not know is refused by it, and the row says so.

const Cudnn& cudnn() {
  static const Cudnn loaded;  // a library of the process, not an object of ours
  return loaded;
}

/// One LSTM by one algorithm.
class Forward {
 public:
  Forward(GpuMachine& machine, const GpuLstm& problem, Cudnn::Algorithm algorithm) : Forward(machine, problem) {
    const cuda::OnDevice here(machine.index());
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", machine.index());
    call(cudnn().create(&handle_), "cudnnCreate");
    call(cudnn().set_stream(handle_, stream_), "cudnnSetStream");
    describe(algorithm);
    if (algorithm == Cudnn::persist_dynamic) call(cudnn().build_dynamic(handle_, rnn_, rows()), "cudnnBuildRNNDynamic");
    make_room();
    fill_weights();
  }
  ~Forward() {
    if (stream_) static_cast<void>(cudaStreamSynchronize(stream_));
    if (x_desc_) cudnn().destroy_data(x_desc_);
    if (y_desc_) cudnn().destroy_data(y_desc_);
    if (state_desc_) cudnn().destroy_tensor(state_desc_);
    if (matrix_desc_) cudnn().destroy_tensor(matrix_desc_);
    if (bias_desc_) cudnn().destroy_tensor(bias_desc_);
    if (rnn_) cudnn().destroy_rnn(rnn_);
    if (dropout_) cudnn().destroy_dropout(dropout_);
    if (handle_) cudnn().destroy(handle_);
    if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
  }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  /// To its end.
  void run() {
    const auto forward = [this](const Tensor* lengths) {
      return cudnn().forward(handle_, rnn_, Cudnn::inference, lengths ? static_cast<const std::int32_t*>(lengths->raw()) : nullptr, x_desc_,
                             problem_.x.raw(), y_desc_, y_.raw_mutable(), state_desc_, nullptr, nullptr, state_desc_, nullptr, nullptr,
                             weights_.bytes(), weights_.raw(), work_.bytes(), work_.raw_mutable(), 0, nullptr);
    };
    if (!wants_lengths_) {
      const Cudnn::Status status = forward(nullptr);  // since 8.9.1 lengths are taken from the descriptor of x
      if (status != 0) wants_lengths_ = true;
    }
    if (wants_lengths_) call(forward(&lengths_), "cudnnRNNForward");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", 0);
  }
  Tensor last() const { return last_step(y_); }

 private:
  /// The calls in the body may throw: an object that is made so far is destroyed.
  Forward(GpuMachine& machine, const GpuLstm& problem) : device_(machine.device()), problem_(problem) {}

  static void call(Cudnn::Status status, const char* what) {
    if (status != 0) throw UnsupportedError(fmt::format("{}: {}", what, cudnn().text(status)));
  }
  int rows() const { return static_cast<int>(problem_.rows); }
  int steps() const { return static_cast<int>(problem_.steps); }
  int hidden() const { return static_cast<int>(problem_.hidden); }
  int data_type() const {
    return problem_.dtype == DType::f16 ? Cudnn::data_half : problem_.dtype == DType::bf16 ? Cudnn::data_bfloat16 : Cudnn::data_float;
  }

  void describe(Cudnn::Algorithm algorithm) {
    call(cudnn().create_dropout(&dropout_), "cudnnCreateDropoutDescriptor");
    call(cudnn().set_dropout(dropout_, handle_, 0, nullptr, 0, 0), "cudnnSetDropoutDescriptor");
    call(cudnn().create_rnn(&rnn_), "cudnnCreateRNNDescriptor");
    const int math = problem_.dtype == DType::f32 ? Cudnn::fma_math : Cudnn::tensor_op_math;
    call(cudnn().set_rnn(rnn_, algorithm, Cudnn::lstm, Cudnn::double_bias, Cudnn::unidirectional, Cudnn::linear_input, data_type(),
                         Cudnn::data_float, math, hidden(), hidden(), hidden(), static_cast<std::int32_t>(problem_.layers), dropout_, 0),
         "cudnnSetRNNDescriptor_v8");
    const std::vector<int> lengths(static_cast<std::size_t>(rows()), steps());
    for (Cudnn::RnnData* desc : {&x_desc_, &y_desc_}) {
      call(cudnn().create_data(desc), "cudnnCreateRNNDataDescriptor");
      call(cudnn().set_data(*desc, data_type(), Cudnn::packed_sequences, steps(), rows(), hidden(), lengths.data(), nullptr),
           "cudnnSetRNNDataDescriptor");
    }
    for (Cudnn::TensorDesc* desc : {&state_desc_, &matrix_desc_, &bias_desc_})
      call(cudnn().create_tensor(desc), "cudnnCreateTensorDescriptor");
    const int dims[3] = {static_cast<int>(problem_.layers), rows(), hidden()};
    const int strides[3] = {rows() * hidden(), hidden(), 1};
    call(cudnn().set_tensor(state_desc_, data_type(), 3, dims, strides), "cudnnSetTensorNdDescriptor");
    std::vector<std::int32_t> all(lengths.begin(), lengths.end());
    lengths_ = on_device(Tensor::from(all, DDim{static_cast<std::int64_t>(all.size())}));
  }

  void make_room() {
    std::size_t weights = 0, work = 0, reserve = 0;
    call(cudnn().weight_bytes(handle_, rnn_, &weights), "cudnnGetRNNWeightSpaceSize");
    call(cudnn().work_bytes(handle_, rnn_, Cudnn::inference, x_desc_, &work, &reserve), "cudnnGetRNNTempSpaceSizes");
    weights_ = room(weights);
    work_ = room(work);
    y_ = Tensor(problem_.dtype, problem_.x.dims(), device_->memory());
    y_.storage()->mark_written();
  }
  Tensor room(std::size_t bytes) const {
    Tensor made(DType::u8, DDim{static_cast<std::int64_t>(bytes)}, device_->memory());
    made.storage()->mark_written();
    return made;
  }
  Tensor on_device(const Tensor& x) const {
    Tensor made(x.dtype(), x.dims(), device_->memory());
    copy(x, made, device_->stream(0));
    made.ready().wait();
    return made;
  }

  /// cuDNN's matrices are [H, C] for each gate (i f g o), first those of the input, then the recurrent ones; ours [C, 4H].
  void fill_weights() {
    Tensor host(DType::u8, weights_.dims());
    auto* bytes = static_cast<std::byte*>(host.raw_mutable());
    std::memset(bytes, 0, host.bytes());
    host.storage()->mark_written();
    for (std::size_t layer = 0; layer < problem_.layers; ++layer)
      for (std::int32_t which = 0; which < 8; ++which) fill(static_cast<std::int32_t>(layer), which, bytes);
    copy(host, weights_, device_->stream(0));
    weights_.ready().wait();
  }
  void fill(std::int32_t layer, std::int32_t which, std::byte* bytes) const {
    void *matrix = nullptr, *bias = nullptr;
    call(cudnn().weight(handle_, rnn_, layer, weights_.bytes(), weights_.raw(), which, matrix_desc_, &matrix, bias_desc_, &bias),
         "cudnnGetRNNWeightParams");
    const auto place = [&](void* of) { return bytes + (static_cast<std::byte*>(of) - static_cast<const std::byte*>(weights_.raw())); };
    const layers::LstmWeights& weights = problem_.weights[static_cast<std::size_t>(layer)];
    const Tensor& from = which < 4 ? weights.input : weights.recurrent;
    const std::size_t size = size_of(problem_.dtype);
    const auto h = static_cast<std::size_t>(problem_.hidden);
    const std::size_t first = static_cast<std::size_t>(which % 4) * h;
    const auto element = [&](const Tensor& of, std::size_t i) { return static_cast<const std::byte*>(of.raw()) + i * size; };
    for (std::size_t unit = 0; unit < h; ++unit)
      for (std::size_t c = 0; c < h; ++c) std::memcpy(place(matrix) + (unit * h + c) * size, element(from, c * 4 * h + first + unit), size);
    if (which < 4 && bias != nullptr) std::memcpy(place(bias), element(*weights.bias, first), h * size);
  }

  std::shared_ptr<Device> device_;
  GpuLstm problem_;
  cudaStream_t stream_ = nullptr;
  Cudnn::Handle handle_ = nullptr;
  Cudnn::Rnn rnn_ = nullptr;
  Cudnn::Dropout dropout_ = nullptr;
  Cudnn::RnnData x_desc_ = nullptr, y_desc_ = nullptr;
  Cudnn::TensorDesc state_desc_ = nullptr, matrix_desc_ = nullptr, bias_desc_ = nullptr;
  Tensor lengths_, weights_, work_, y_;
  bool wants_lengths_ = false;
};

}  // namespace

std::string cudnn_name() { return cudnn().missing.empty() ? "cuDNN " + cudnn().version_text() : "cuDNN"; }

CudnnLstm make_cudnn_lstm(GpuMachine& machine, const GpuLstm& problem, const Effort& effort) {
  CudnnLstm peer;
  peer.name = cudnn_name();
  if (!cudnn().missing.empty()) {
    peer.note = "not measured: " + cudnn().missing;
    return peer;
  }
  double least = 0;
  std::shared_ptr<Forward> best;
  const char* best_name = "";
  for (const auto& [algorithm, name] : algorithms) {
    peer.note += peer.note.empty() ? "" : ", ";
    try {
      auto forward = std::make_shared<Forward>(machine, problem, algorithm);
      const double seconds = timer_of([&] { forward->run(); })(effort.seconds);
      peer.note += fmt::format("{} {:.2f} us a step", name, seconds / static_cast<double>(problem.steps) * 1e6);
      if (best && seconds >= least) continue;
      least = seconds;
      best = std::move(forward);
      best_name = name;
    } catch (const UnsupportedError& error) {
      peer.note += fmt::format("{}: {}", name, error.what());
    } catch (const OutOfMemoryError& error) {
      peer.note += fmt::format("{}: {}", name, error.what());
    }
  }
  if (!best) {
    peer.note = "not measured: " + peer.note;
    return peer;
  }
  peer.name += std::string(" ") + best_name;
  peer.timer = timer_of([best] { best->run(); });
  peer.last_step = [best] { return best->last(); };
  return peer;
}

}  // namespace millrace::bench
