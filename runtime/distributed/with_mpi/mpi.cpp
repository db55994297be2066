// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/check.h>
#include <millrace/runtime/distributed/internal/local_operation.h>
#include <millrace/runtime/distributed/with_mpi/mpi_worker.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

using detail::Asked, detail::Call, detail::check_mpi, detail::MpiLane, detail::MpiOperation, detail::MpiWorker;
using Requests = std::vector<MPI_Request>;

/// Values of fewer bytes go to all ranks as they are.
constexpr std::size_t shared_out = 32 * 1024;
/// Room for the words by which ranks compare what they ask for.
constexpr std::size_t asked_bytes = 120;

/// Elements as MPI moves them: by their size.
MPI_Datatype unit_of(DType dtype) {
  switch (size_of(dtype)) {
    case 8: return MPI_UINT64_T;
    case 4: return MPI_UINT32_T;
    case 2: return MPI_UINT16_T;
    default: return MPI_UINT8_T;
  }
}

/// The type of sums that MPI itself makes, where no order shows in the bits; MPI_DATATYPE_NULL elsewhere.
MPI_Datatype summed_by_mpi(DType dtype, Reduce reduce, int ranks) {
  switch (dtype) {
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::i8: return MPI_INT8_T;
    case DType::u8: return MPI_UINT8_T;
    case DType::f32: return reduce == Reduce::sum && ranks <= 2 ? MPI_FLOAT : MPI_DATATYPE_NULL;
    case DType::f64: return reduce == Reduce::sum && ranks <= 2 ? MPI_DOUBLE : MPI_DATATYPE_NULL;
    default: return MPI_DATATYPE_NULL;
  }
}

MPI_Op op_of(Reduce reduce) { return reduce == Reduce::sum ? MPI_SUM : reduce == Reduce::min ? MPI_MIN : MPI_MAX; }

/// The number of `elements` that each rank adds, and their beginnings.
struct Shares {
  Shares(std::int64_t elements, int ranks) : counts(static_cast<std::size_t>(ranks)), begins(counts.size()) {
    std::int64_t begin = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t end = elements * (rank + 1) / ranks;
      begins[static_cast<std::size_t>(rank)] = static_cast<int>(begin);
      counts[static_cast<std::size_t>(rank)] = static_cast<int>(end - begin);
      begin = end;
    }
  }
  std::vector<int> counts, begins;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorker> worker, std::string name, int parent, std::chrono::milliseconds deadline)
      : worker_(std::move(worker)), name_(std::move(name)), deadline_(deadline), channel_(worker_->open(title(), parent, deadline)) {}

  int rank() const noexcept override { return worker_->rank(); }
  int world_size() const noexcept override { return worker_->world_size(); }
  const std::string& name() const noexcept override { return name_; }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    check_not_aborted();
    return std::make_unique<MpiCommunicator>(worker_, name_ + "/" + name, channel_, deadline_);
  }

  Point all_reduce(const Tensor& in, Tensor& out, Reduce reduce, StreamRef stream) override {
    const auto operation = collective({Call::all_reduce, reduce, 0, in.dtype(), in.dims()});
    const std::string& what = operation->what;
    detail::check_reduced(in, out, what);
    give(in, what, stream);
    take(out, what, stream);
    const MPI_Datatype added = summed_by_mpi(in.dtype(), reduce, world_size());
    if (added != MPI_DATATYPE_NULL) {
      operation->stages.push_back([in, out, added, reduce, what](MPI_Comm comm, Requests& requests) {
        const void* from = in.raw() == out.raw() ? MPI_IN_PLACE : in.raw();
        requests.emplace_back();
        check_mpi(MPI_Iallreduce(from, out.raw_mutable(), static_cast<int>(in.elements()), added, op_of(reduce), comm, &requests.back()),
                  "MPI_Iallreduce", what);
      });
    } else if (in.bytes() < shared_out) {
      reduce_everywhere(*operation, in, out, reduce);
    } else {
      reduce_by_shares(*operation, in, out, reduce);
    }
    return ask(operation, {&in, &out}, &out, stream);
  }

  Point broadcast(Tensor& value, int root, StreamRef stream) override {
    const auto operation = collective({Call::broadcast, Reduce::sum, root, value.dtype(), value.dims()});
    const std::string& what = operation->what;
    if (root < 0 || root >= world_size())
      throw ArgumentError(fmt::format("{}: expected a root from 0 to {}, found {}", what, world_size() - 1, root));
    const bool gives = root == rank();
    gives ? give(value, what, stream) : take(value, what, stream);
    void* const elements = gives ? const_cast<void*>(value.raw()) : value.raw_mutable();  // the root's are only read
    operation->stages.push_back([value, elements, root, what](MPI_Comm comm, Requests& requests) {
      requests.emplace_back();
      check_mpi(MPI_Ibcast(elements, static_cast<int>(value.elements()), unit_of(value.dtype()), root, comm, &requests.back()),
                "MPI_Ibcast", what);
    });
    return ask(operation, {&value}, gives ? nullptr : &value, stream);
  }

  Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) override {
    const auto operation = collective({Call::all_gather, Reduce::sum, 0, in.dtype(), in.dims()});
    detail::check_gathered(in, out, world_size(), operation->what);
    give(in, operation->what, stream);
    take(out, operation->what, stream);
    const Tensor own = in.shares_storage_with(out) ? clone(in, stream) : in;
    gather(*operation, own, out);
    return ask(operation, {&own, &out}, &out, stream);
  }

  Point send(const Tensor& value, int to, StreamRef stream) override {
    const auto operation = message(fmt::format("send to rank {} of {}", to, said(value)), to, true);
    detail::check_peer(to, rank(), world_size(), operation->what);
    give(value, operation->what, stream);
    operation->stages.push_back([value, to, what = operation->what](MPI_Comm comm, Requests& requests) {
      requests.emplace_back();
      check_mpi(MPI_Isend(value.raw(), static_cast<int>(value.elements()), unit_of(value.dtype()), to, 0, comm, &requests.back()),
                "MPI_Isend", what);
    });
    return ask(operation, {&value}, nullptr, stream);
  }

  Point recv(Tensor& value, int from, StreamRef stream) override {
    const auto operation = message(fmt::format("recv from rank {} of {}", from, said(value)), from, false);
    detail::check_peer(from, rank(), world_size(), operation->what);
    take(value, operation->what, stream);
    operation->stages.push_back([value, from, what = operation->what](MPI_Comm comm, Requests& requests) {
      requests.emplace_back();
      check_mpi(MPI_Irecv(value.raw_mutable(), static_cast<int>(value.elements()), unit_of(value.dtype()), from, 0, comm, &requests.back()),
                "MPI_Irecv", what);
    });
    operation->finish = [value, what = operation->what](const std::vector<MPI_Status>& statuses) {
      int elements = 0;
      MPI_Get_count(&statuses.at(0), unit_of(value.dtype()), &elements);
      if (elements != value.elements())
        throw MismatchError(fmt::format("{}: expected {} elements, found a message of {}", what, value.elements(), elements));
    };
    return ask(operation, {&value}, &value, stream);
  }

  void abort(const std::string& reason) noexcept override { worker_->abort(fmt::format("by rank {}: {}", rank(), reason)); }
  bool aborted() const noexcept override { return worker_->aborted().has_value(); }

 private:
  static std::string said(const Tensor& tensor) { return std::string(name_of(tensor.dtype())) + tensor.dims().to_string(); }
  std::string title() const {
    return fmt::format("by rank {} on communicator '{}' of {} ranks", worker_->rank(), name_, worker_->world_size());
  }
  void check_not_aborted() const {
    if (const auto reason = worker_->aborted())
      throw AbortedError(fmt::format("communicator '{}' of {} ranks was aborted: {}", name_, world_size(), *reason));
  }

  std::shared_ptr<MpiOperation> operation(const std::string& call, MpiLane lane) const {
    check_not_aborted();
    auto made = std::make_shared<MpiOperation>();
    made->what = call + " " + title();
    made->lane = lane;
    made->deadline = deadline_;
    return made;
  }
  std::shared_ptr<MpiOperation> message(const std::string& call, int peer, bool sends) const {
    return operation(call, MpiLane{channel_, peer, sends});
  }
  /// Begins with a comparison of what the ranks ask for.
  std::shared_ptr<MpiOperation> collective(const Asked& asked) const {
    auto made = operation(asked.to_string(), MpiLane{channel_, -1, false});
    if (world_size() == 1) return made;
    const auto words = std::make_shared<std::vector<char>>(asked_bytes * static_cast<std::size_t>(world_size() + 1));
    const std::string text = asked.to_string();
    std::memcpy(words->data(), text.data(), std::min(text.size(), asked_bytes - 1));
    made->stages.push_back([words, what = made->what](MPI_Comm comm, Requests& requests) {
      requests.emplace_back();
      check_mpi(MPI_Iallgather(words->data(), static_cast<int>(asked_bytes), MPI_CHAR, words->data() + asked_bytes,
                               static_cast<int>(asked_bytes), MPI_CHAR, comm, &requests.back()),
                "MPI_Iallgather", what);
    });
    made->stages.push_back([words, ranks = world_size(), title = title()](MPI_Comm, Requests&) {
      std::string all;
      bool same = true;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string_view of_rank(words->data() + asked_bytes * static_cast<std::size_t>(rank + 1));
        same = same && of_rank == std::string_view(words->data());
        all += fmt::format("{}rank {} asked for {}", rank == 0 ? "" : ", ", rank, of_rank);
      }
      if (!same) throw MismatchError(fmt::format("operation {}: expected the same of all, found: {}", title, all));
    });
    return made;
  }

  static void gather(MpiOperation& operation, const Tensor& in, const Tensor& out) {
    operation.stages.push_back([in, out, what = operation.what](MPI_Comm comm, Requests& requests) {
      const int count = static_cast<int>(in.elements());
      requests.emplace_back();
      check_mpi(MPI_Iallgather(in.raw(), count, unit_of(in.dtype()), out.raw_mutable(), count, unit_of(in.dtype()), comm, &requests.back()),
                "MPI_Iallgather", what);
    });
  }
  static void put_sum(const Tensor& all, Reduce reduce, const Tensor& to) {
    all.storage()->mark_written();
    std::vector<Tensor> values;
    for (std::int64_t rank = 0; rank < all.dim(0); ++rank) values.push_back(all.select(0, rank));
    const Tensor sum = detail::reduced(reduce, values);
    if (sum.bytes() > 0) std::memcpy(to.raw_mutable(), sum.raw(), sum.bytes());
  }
  void reduce_everywhere(MpiOperation& operation, const Tensor& in, const Tensor& out, Reduce reduce) const {
    const Tensor all(in.dtype(), in.dims().inserted(0, world_size()));
    gather(operation, in, all);
    operation.finish = [all, out, reduce](const std::vector<MPI_Status>&) { put_sum(all, reduce, out); };
    operation.kept.push_back(all);
  }
  /// Twice the bytes of the values a rank, whatever the number of ranks.
  void reduce_by_shares(MpiOperation& operation, const Tensor& in, const Tensor& out, Reduce reduce) const {
    const auto shares = std::make_shared<Shares>(in.elements(), world_size());
    const auto own = static_cast<std::size_t>(rank());
    const Tensor all(in.dtype(), DDim{world_size(), shares->counts[own]});
    const Tensor sum(in.dtype(), DDim{shares->counts[own]});
    const auto arriving = std::make_shared<Shares>(0, world_size());  // MPI reads the numbers until the operation is done
    for (int from = 0; from < world_size(); ++from) {
      arriving->counts[static_cast<std::size_t>(from)] = shares->counts[own];
      arriving->begins[static_cast<std::size_t>(from)] = from * shares->counts[own];
    }
    operation.stages.push_back([in, all, shares, arriving, what = operation.what](MPI_Comm comm, Requests& requests) {
      requests.emplace_back();
      check_mpi(MPI_Ialltoallv(in.raw(), shares->counts.data(), shares->begins.data(), unit_of(in.dtype()), all.raw_mutable(),
                               arriving->counts.data(), arriving->begins.data(), unit_of(in.dtype()), comm, &requests.back()),
                "MPI_Ialltoallv", what);
    });
    operation.stages.push_back([all, sum, out, shares, own, reduce, what = operation.what](MPI_Comm comm, Requests& requests) {
      put_sum(all, reduce, sum);
      requests.emplace_back();
      check_mpi(MPI_Iallgatherv(sum.raw(), shares->counts[own], unit_of(sum.dtype()), out.raw_mutable(), shares->counts.data(),
                                shares->begins.data(), unit_of(sum.dtype()), comm, &requests.back()),
                "MPI_Iallgatherv", what);
    });
    operation.kept.insert(operation.kept.end(), {all, sum});
  }

  void give(const Tensor& tensor, const std::string& what, StreamRef stream) const {
    detail::check_exchanged(tensor, what, stream);
    check_exchangeable(tensor, what);
    tensor.check_written();
  }
  void take(const Tensor& tensor, const std::string& what, StreamRef stream) const {
    detail::check_result(tensor, what, stream);
    check_exchangeable(tensor, what);
  }
  static void check_exchangeable(const Tensor& tensor, const std::string& what) {
    if (!tensor.host_accessible())
      throw PlaceError(what + ": expected memory that the host can reach, found " + tensor.to_string() + ": devices exchange over NCCL");
    if (tensor.elements() > std::numeric_limits<int>::max())
      throw ArgumentError(
          fmt::format("{}: expected at most {} elements, found {}", what, std::numeric_limits<int>::max(), tensor.elements()));
  }

  Point ask(const std::shared_ptr<MpiOperation>& operation, const std::vector<const Tensor*>& used, const Tensor* result,
            StreamRef stream) {
    std::vector<Point> behind{stream.position()};
    for (const Tensor* tensor : used) {
      behind.push_back(tensor->ready());
      operation->kept.push_back(*tensor);
    }
    const Point done = worker_->push(operation, behind);
    if (result != nullptr) {
      result->storage()->set_ready(done);
      result->storage()->mark_written();
    }
    return done;
  }

  const std::shared_ptr<MpiWorker> worker_;
  const std::string name_;
  const std::chrono::milliseconds deadline_;
  const int channel_;
};

}  // namespace

std::string mpi_status() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "its version is unknown";
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  throw_on_runtime_thread("make_mpi_communicator");
  if (options.deadline.count() <= 0)
    throw ArgumentError(
        fmt::format("communicator '{}': expected a deadline above 0 ms, found {} ms", options.name, options.deadline.count()));
  return std::make_unique<MpiCommunicator>(MpiWorker::instance(), options.name, 0, options.deadline);
}

}  // namespace millrace
