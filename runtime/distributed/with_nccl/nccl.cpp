// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/nccl.h>

#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <millrace/kernels/cuda/kernels.h>
#include <millrace/runtime/distributed/internal/check.h>
#include <millrace/runtime/distributed/with_nccl/nccl_worker.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {
namespace {

using detail::NcclFamily, detail::NcclOperation, detail::NcclWorker;

std::string version_text(int version) { return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::i8: return ncclInt8;
    default: return ncclUint8;
  }
}

ncclRedOp_t op_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::min: return ncclMin;
    case Reduce::max: return ncclMax;
    default: return ncclSum;
  }
}

Binary binary_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::min: return Binary::minimum;
    case Reduce::max: return Binary::maximum;
    default: return Binary::add;
  }
}

/// NCCL adds in an order of its own, and says nothing of NaN: these are what no order and no NaN can change.
bool same_in_any_order(DType dtype, Reduce reduce, int world_size) {
  return world_size == 1 || is_integer(dtype) || (reduce == Reduce::sum && world_size == 2);
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::string name, int rank, int world_size, NcclOptions options, std::shared_ptr<NcclFamily> family)
      : name_(std::move(name)),
        rank_(rank),
        world_size_(world_size),
        options_(std::move(options)),
        family_(std::move(family)),
        worker_(std::make_shared<NcclWorker>(fmt::format("by rank {} on communicator '{}' of {} ranks", rank, name_, world_size), rank,
                                             options_, family_)) {
    family_->add(worker_);
  }
  ~NcclCommunicator() override { worker_->leave(); }

  const std::shared_ptr<NcclWorker>& worker() const noexcept { return worker_; }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_size_; }
  const std::string& name() const noexcept override { return name_; }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    NcclOperation operation;
    operation.what = text(fmt::format("duplicate '{}'", name));
    if (group_) throw ArgumentError(operation.what + ": not within a group");
    if (!duplicates_.insert(name).second) throw ArgumentError(operation.what + ": was already asked for");
    auto made = std::make_unique<NcclCommunicator>(name_ + "/" + name, rank_, world_size_, options_, family_);
    made->worker_->start();
    operation.duplicate = made->worker_;
    worker_->push(std::move(operation));
    return made;
  }

  Point all_reduce(const Tensor& in, Tensor& out, Reduce reduce, StreamRef stream) override {
    const std::string what = text(fmt::format("all_reduce ({}) of {}", to_string(reduce), said(in)));
    give(in, what, stream);
    take(out, what, stream);
    detail::check_reduced(in, out, what);
    const auto count = static_cast<std::size_t>(in.elements());
    if (!same_in_any_order(in.dtype(), reduce, world_size_)) return reduce_in_order(what, in, out, reduce, stream);
    const auto call = [in, out, count, reduce](ncclComm_t comm, cudaStream_t on) {
      return ncclAllReduce(in.raw(), out.raw_mutable(), count, type_of(in.dtype()), op_of(reduce), comm, on);
    };
    return ask(what, {&in, &out}, &out, call, stream);
  }

  Point broadcast(Tensor& value, int root, StreamRef stream) override {
    const std::string what = text(fmt::format("broadcast from {} of {}", root, said(value)));
    if (root < 0 || root >= world_size_)
      throw ArgumentError(fmt::format("{}: expected a root from 0 to {}, found {}", what, world_size_ - 1, root));
    const bool gives = root == rank_;
    gives ? give(value, what, stream) : take(value, what, stream);
    const auto call = [value, root](ncclComm_t comm, cudaStream_t on) {
      return ncclBroadcast(value.raw(), value.raw_mutable(), value.bytes(), ncclInt8, root, comm, on);
    };
    return ask(what, {&value}, gives ? nullptr : &value, call, stream);
  }

  Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) override {
    const std::string what = text("all_gather of " + said(in));
    give(in, what, stream);
    take(out, what, stream);
    detail::check_gathered(in, out, world_size_, what);
    if (in.shares_storage_with(out) && in.raw() != out.select(0, rank_).raw())
      throw ArgumentError(what + ": expected values that are not a part of the result, or those of this rank in it");
    return ask(what, {&in, &out}, &out, gathering(in, out), stream);
  }

  Point send(const Tensor& value, int to, StreamRef stream) override {
    const std::string what = text(fmt::format("send to rank {} of {}", to, said(value)));
    detail::check_peer(to, rank_, world_size_, what);
    give(value, what, stream);
    const auto call = [value, to](ncclComm_t comm, cudaStream_t on) {
      return ncclSend(value.raw(), value.bytes(), ncclInt8, to, comm, on);
    };
    return ask(what, {&value}, nullptr, call, stream);
  }

  Point recv(Tensor& value, int from, StreamRef stream) override {
    const std::string what = text(fmt::format("recv from rank {} of {}", from, said(value)));
    detail::check_peer(from, rank_, world_size_, what);
    take(value, what, stream);
    const auto call = [value, from](ncclComm_t comm, cudaStream_t on) {
      return ncclRecv(value.raw_mutable(), value.bytes(), ncclInt8, from, comm, on);
    };
    return ask(what, {&value}, &value, call, stream);
  }

  void begin_group() override { group_.emplace(); }
  void end_group() override {
    if (!group_) return;
    NcclOperation operation = std::move(*group_);
    group_.reset();
    if (!operation.calls.empty()) worker_->push(std::move(operation));
  }

  void abort(const std::string& reason) noexcept override { family_->abort(fmt::format("by rank {}: {}", rank_, reason)); }
  bool aborted() const noexcept override { return family_->reason().has_value(); }

 private:
  using NcclCall = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  static std::string said(const Tensor& tensor) { return std::string(name_of(tensor.dtype())) + tensor.dims().to_string(); }
  std::string text(const std::string& call) const {
    if (const auto reason = family_->reason())
      throw AbortedError(fmt::format("communicator '{}' of {} ranks was aborted: {}", name_, world_size_, *reason));
    return call + " " + worker_->title();
  }
  void check_device(const std::string& what, StreamRef stream) const {
    const Place place = stream.place();
    const auto* cuda = std::get_if<CudaPlace>(&place);
    if (cuda == nullptr || cuda->index != options_.device)
      throw PlaceError(fmt::format("{}: expected a stream of cuda:{}, found one of {}", what, options_.device, place.to_string()));
  }
  void give(const Tensor& tensor, const std::string& what, StreamRef stream) const {
    check_device(what, stream);
    detail::check_exchanged(tensor, what, stream);
    tensor.check_written();
  }
  void take(const Tensor& tensor, const std::string& what, StreamRef stream) const {
    check_device(what, stream);
    detail::check_result(tensor, what, stream);
  }

  static NcclCall gathering(const Tensor& in, const Tensor& out) {
    return
        [in, out](ncclComm_t comm, cudaStream_t on) { return ncclAllGather(in.raw(), out.raw_mutable(), in.bytes(), ncclInt8, comm, on); };
  }

  /// The values of all, and then one after the other into the result: as the other communicators do it, bit for bit.
  Point reduce_in_order(const std::string& what, const Tensor& in, const Tensor& out, Reduce reduce, StreamRef stream) {
    const Tensor all(in.dtype(), DDim{world_size_, in.elements()}, stream.memory());
    const auto add = [all, out, reduce, ranks = world_size_](KernelContext& context) {
      const auto of_rank = [&](int rank) { return Tensor(out.dtype(), out.dims(), out.strides(), rank * out.elements(), all.storage()); };
      cuda::binary(binary_of(reduce), of_rank(0), of_rank(1), out, context);
      for (int rank = 2; rank < ranks; ++rank) cuda::binary(binary_of(reduce), out, of_rank(rank), out, context);
    };
    return ask(what, {&in, &out, &all}, &out, gathering(in, all), stream, add);
  }

  Point ask(const std::string& what, const std::vector<const Tensor*>& used, const Tensor* result, NcclCall call, StreamRef stream,
            std::function<void(KernelContext&)> after = nullptr) {
    NcclOperation alone;
    NcclOperation& operation = group_ ? *group_ : alone;
    if (operation.what.empty()) operation.what = group_ ? "a group that begins with " + what : what;
    operation.behind.push_back(stream.position());
    for (const Tensor* tensor : used) {
      operation.behind.push_back(tensor->ready());
      operation.kept.push_back(*tensor);
    }
    operation.calls.push_back(std::move(call));
    if (after) operation.after.push_back(std::move(after));
    const Point done = worker_->point(worker_->next_number());
    if (!group_) worker_->push(std::move(alone));
    if (result != nullptr) {
      result->storage()->set_ready(done);
      result->storage()->mark_written();
    }
    return done;
  }

  const std::string name_;
  const int rank_;
  const int world_size_;
  const NcclOptions options_;
  const std::shared_ptr<NcclFamily> family_;
  const std::shared_ptr<NcclWorker> worker_;
  std::set<std::string> duplicates_;
  std::optional<NcclOperation> group_;
};

/// Rank 0 makes the id; all must have one version, since what they say to one another is that version's own.
ncclUniqueId meet(Rendezvous& ranks, const std::string& name) {
  int version = 0;
  static_cast<void>(ncclGetVersion(&version));
  ncclUniqueId id{};
  std::string blob = version_text(version) + "\n";
  const std::size_t head = blob.size();
  if (ranks.rank() == 0) {
    if (const ncclResult_t code = ncclGetUniqueId(&id); code != ncclSuccess)
      throw NcclError(fmt::format("communicator '{}' of {} ranks: ncclGetUniqueId by rank 0: {}: {}", name, ranks.world_size(),
                                  ncclGetErrorString(code), ncclGetLastError(nullptr)),
                      static_cast<int>(code));
    blob.append(id.internal, sizeof(id.internal));
  }
  const std::vector<std::string> all = ranks.exchange("nccl communicator " + name, blob);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].starts_with(blob.substr(0, head)) || all[rank].size() != head + (rank == 0 ? sizeof(id.internal) : 0))
      throw MismatchError(fmt::format("communicator '{}': expected NCCL {} of all ranks, found {} on rank {}", name, version_text(version),
                                      all[rank].substr(0, all[rank].find('\n')), rank));
  std::memcpy(id.internal, all[0].data() + head, sizeof(id.internal));
  return id;
}

}  // namespace

std::string nccl_status() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version_text(version) : "its version is unknown";
}

std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous& ranks, const NcclOptions& options) {
  const std::string what = fmt::format("communicator '{}'", options.name);
  int count = 0;  // without a look at each, which would take memory of all of them
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    count = 0;
  }
  if (options.device < 0 || options.device >= count)
    throw PlaceError(fmt::format("{}: expected one of {} devices ({}), found cuda:{}", what, count, cuda_status(), options.device));
  if (options.max_ctas < 0) throw ArgumentError(fmt::format("{}: expected max_ctas of at least 0, found {}", what, options.max_ctas));
  for (const std::chrono::milliseconds limit : {options.meeting, options.deadline, options.leaving})
    if (limit.count() <= 0) throw ArgumentError(fmt::format("{}: expected times above 0 ms, found {} ms", what, limit.count()));
  const ncclUniqueId id = meet(ranks, options.name);
  auto made = std::make_unique<NcclCommunicator>(options.name, ranks.rank(), ranks.world_size(), options, std::make_shared<NcclFamily>());
  made->worker()->connect(ranks.world_size(), id);
  return made;
}

}  // namespace millrace
