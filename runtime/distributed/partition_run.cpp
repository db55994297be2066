// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/partition_run.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/value_message.h>
#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/this_task.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {
namespace {

/// Values that cross, each over a communicator of its own, so that none waits behind another.
class Transfers final : public RunExchange {
 public:
  Transfers(const PartitionPart& part, std::unique_ptr<Communicator> communicator)
      : device_(part.executable().device()), communicator_(std::move(communicator)) {
    if (const Place place = device_.place(); std::holds_alternative<CudaPlace>(place)) carrier_ = make_device(place, 1, 1);
    for (const Partition::Transfer& transfer : part.transfers()) {
      if (transfer.to == part.rank()) arriving_[transfer.name] = &ways_.emplace_back(transfer, *communicator_);
      if (transfer.from == part.rank()) leaving_[transfer.name].push_back(&ways_.emplace_back(transfer, *communicator_));
    }
  }

  /// Aborts the communicator, so that the other ranks end and know why.
  void abort(const std::string& reason) noexcept { communicator_->abort(reason); }
  bool aborted() const noexcept { return communicator_->aborted(); }
  /// Fails with what the ranks were aborted for.
  Point why_aborted() { return meet(); }
  /// The point at which all ranks are done, where tensors of devices are carried: their carrier must not lose a rank while others still use it.
  Point all_done() { return carrier_ == nullptr ? Point() : meet(); }

  bool provides(const std::string& input) const override { return arriving_.contains(input); }
  bool takes(const std::string& output) const override { return leaving_.contains(output); }
  task<Value> receive(std::string input, Scope* rest) override { return detail::receive_value(link(*arriving_.at(input)), rest); }
  task<void> send(std::string output, Value value, Scope* rest) override {
    for (const Way* way : leaving_.at(output))
      rest->spawn(send_one(link(*way), value, rest), fmt::format("'{}' to rank {}", output, way->to));
    return nothing();
  }

 private:
  struct Way {
    Way(const Partition::Transfer& transfer, Communicator& whole)
        : from(transfer.from), to(transfer.to), communicator(whole.duplicate(fmt::format("'{}' to rank {}", transfer.name, transfer.to))) {}
    int from;
    int to;
    std::unique_ptr<Communicator> communicator;
  };

  detail::ValueLink link(const Way& way) {
    const StreamRef host = host_;
    const StreamRef stream = device_.place().is_cpu() ? host : (carrier_ == nullptr ? device_ : *carrier_).stream(0);
    return {*way.communicator, way.from, way.to, host, stream};
  }
  static task<void> send_one(detail::ValueLink way, Value value, Scope* rest) { return detail::send_value(way, std::move(value), rest); }
  static task<void> nothing() { co_return; }
  Point meet() {
    done_ = Tensor::scalar<std::int32_t>(1);
    return communicator_->all_reduce(done_, done_, Reduce::sum, host_);
  }

  Device& device_;
  std::shared_ptr<Device> carrier_;  // has a stream that waits for nothing that has yet to come from another rank
  std::unique_ptr<Communicator> communicator_;
  CpuStream host_{std::make_shared<ThreadTeam>(1)};  // not the device's, which loops are at work on
  Tensor done_;
  std::deque<Way> ways_;
  std::map<std::string, const Way*> arriving_;
  std::map<std::string, std::vector<const Way*>> leaving_;
};

Feeds needed(const Program& part, const Feeds& feeds, int rank) {
  if (rank == 0) return feeds;
  Feeds made;
  for (const Program::Port& port : part.inputs())
    if (const auto fed = feeds.find(port.name); fed != feeds.end()) made.insert(*fed);
  return made;
}

/// Collects the errors of the ranks and names the rank. An error that a rank has from another one comes behind that one's.
struct Failures {
  void add(int rank) {
    try {
      throw;
    } catch (Error& error) {
      error.add_context(fmt::format(" (on rank {})", rank));
      const bool follows = dynamic_cast<CommunicationError*>(&error) != nullptr || dynamic_cast<CancelledError*>(&error) != nullptr;
      (follows ? following : first).push_back(std::current_exception());
      if (follows) words.push_back(error.what());
    } catch (...) {
      first.push_back(std::current_exception());
    }
  }
  void check() const {
    if (!first.empty()) std::rethrow_exception(first.front());
    if (following.empty()) return;
    try {
      std::rethrow_exception(following.front());
    } catch (Error& error) {
      for (std::size_t i = 1; i < words.size(); ++i) error.add_context("; " + words[i]);
      throw;
    }
  }
  std::vector<std::exception_ptr> first, following;
  std::vector<std::string> words;  // of the following
};

}  // namespace

PartitionPart::PartitionPart(const Partition& partition, int rank, std::shared_ptr<Device> device)
    : rank_(rank), ranks_(partition.ranks), executable_([&] {
        if (rank < 0 || rank >= partition.ranks)
          throw ArgumentError(
              fmt::format("part of a partition program: expected a rank from 0 to {}, found {}", partition.ranks - 1, rank));
        return Executable(partition.parts[static_cast<std::size_t>(rank)], std::move(device));
      }()) {
  std::copy_if(partition.transfers.begin(), partition.transfers.end(), std::back_inserter(transfers_),
               [rank](const Partition::Transfer& transfer) { return transfer.from == rank || transfer.to == rank; });
}

task<RunResult> run_part(PartitionPart part, std::unique_ptr<Communicator> communicator, Feeds feeds, RunOptions options,
                         OnFailure on_failure) {
  if (communicator->rank() != part.rank() || communicator->world_size() != part.ranks())
    throw ArgumentError(fmt::format("part of rank {} of {}: expected a communicator of that rank, found {} of {}", part.rank(),
                                    part.ranks(), communicator->rank(), communicator->world_size()));
  const auto exchange = std::make_shared<Transfers>(part, std::move(communicator));
  Feeds own = needed(part.executable().program(), feeds, part.rank());
  feeds.clear();
  RunResult result;
  std::exception_ptr hearsay;
  try {
    result = co_await run(part.executable(), std::move(own), options, exchange);
    const Point all = exchange->all_done();
    co_await ready(all);
  } catch (const RankError&) {
    if (on_failure == OnFailure::leave) throw;
    hearsay = std::current_exception();
  } catch (const CommunicationError&) {  // the other ranks know it
    throw;
  } catch (const CancelledError&) {
    throw;
  } catch (const std::exception& error) {
    if (on_failure == OnFailure::abort) exchange->abort(error.what());
    throw;
  }
  if (hearsay != nullptr) {
    // An array ends with the words of a task that was cancelled when its run failed, or by its rank's leaving it; the cause comes behind them, as
    // that rank aborts.
    for (int tries = 0; tries < 1000 && !exchange->aborted(); ++tries) co_await this_task::sleep_for(std::chrono::milliseconds(1));
    if (!exchange->aborted()) std::rethrow_exception(hearsay);
    const Point cause = exchange->why_aborted();
    co_await ready(cause);
  }
  co_return std::move(result);
}

std::vector<RunResult> run_on_local_ranks(const Partition& partition, const std::vector<std::shared_ptr<Device>>& devices,
                                          const Feeds& feeds, RunOptions options) {
  throw_on_runtime_thread("run_on_local_ranks");
  if (std::cmp_not_equal(devices.size(), partition.ranks))
    throw ArgumentError(fmt::format("run on {} ranks: expected as many devices, found {}", partition.ranks, devices.size()));
  LocalOptions local;
  local.tracer = options.tracer;
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(partition.ranks, local);
  std::vector<PartitionPart> parts;
  for (int rank = 0; rank < partition.ranks; ++rank) parts.emplace_back(partition, rank, devices[static_cast<std::size_t>(rank)]);
  std::vector<std::unique_ptr<ThreadExecutor>> executors;
  std::vector<Running<RunResult>> running;
  for (int rank = 0; rank < partition.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    executors.push_back(std::make_unique<ThreadExecutor>(1));
    running.push_back(start_run(*executors.back(), run_part(parts[at], std::move(communicators[at]), feeds, options),
                                fmt::format("rank {}", rank), options.tracer));
  }
  std::vector<RunResult> results(running.size());
  Failures failures;
  for (int rank = 0; rank < partition.ranks; ++rank) {
    try {
      results[static_cast<std::size_t>(rank)] = running[static_cast<std::size_t>(rank)].get();
    } catch (...) {
      failures.add(rank);
    }
  }
  failures.check();
  return results;
}

}  // namespace millrace
