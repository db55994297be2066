// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/process_run.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/distributed/nccl.h>
#include <millrace/runtime/distributed/partition_run.h>
#include <millrace/runtime/distributed/tcp.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace {
namespace {

/// FNV-1a: finds differences, and resists no attacker.
class Fingerprint {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ at[i]) * 0x100000001b3u;
  }
  void add(const std::string& text) { add(text.data(), text.size() + 1); }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string fingerprint(const Partition& partition) {
  Fingerprint made;
  made.add(partition.to_string());
  for (const Program& part : partition.parts) made.add(part.to_string());
  return made.text();
}

std::string fingerprint(const Feeds& feeds) {
  Fingerprint made;
  for (const auto& [name, value] : feeds) {
    made.add(name);
    made.add(value.is_tensor() ? value.tensor().dims().to_string() : std::string("no tensor"));
    if (!value.is_tensor()) continue;
    made.add(value.tensor().lod().to_string());
    const Tensor host = value.tensor().tensor().copy_to(CpuPlace{});
    made.add(host.raw(), host.bytes());
  }
  return made.text();
}

/// Checks a value that all ranks must have alike, or their messages would not fit.
void agree(Rendezvous& ranks, const std::string& what, const std::string& here) {
  const std::vector<std::string> all = ranks.exchange(what, here);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw MismatchError(fmt::format("run on {} ranks: expected the same {} of all, found {} on rank 0 and {} on rank {}",
                                      ranks.world_size(), what, all[0], all[rank], rank));
}

std::set<RankRoute> routes_of(const Partition& partition) {
  std::set<RankRoute> routes;
  for (const Partition::Transfer& transfer : partition.transfers) routes.insert({transfer.from, transfer.to});
  return routes;
}

std::unique_ptr<Communicator> connected(Rendezvous& ranks, const Partition& partition, Device& device, const ProcessRunOptions& options) {
  const Place place = device.place();
  TcpOptions tcp;
  tcp.name = "ranks";
  tcp.meeting = options.meeting;
  tcp.deadline = options.deadline;
  if (const auto* cuda = std::get_if<CudaPlace>(&place); cuda != nullptr && ranks.world_size() > 1) {
    NcclOptions nccl;
    nccl.device = cuda->index;
    nccl.meeting = options.meeting;
    nccl.deadline = options.deadline;
    nccl.max_ctas = options.max_ctas;
    tcp.device = [&ranks, &device, nccl, routes = routes_of(partition)](const Hopeless& hopeless) {
      NcclOptions asking = nccl;
      asking.hopeless = hopeless;
      return make_device_ways(make_nccl_communicator(ranks, asking), routes, device.stream(0), hopeless);
    };
  }
  std::unique_ptr<Communicator> made = make_tcp_communicator(ranks, std::move(tcp));
  // Nobody begins, and maybe has nothing to do and leaves, while others still wait for it.
  CpuStream host(std::make_shared<ThreadTeam>(1));
  Tensor here = Tensor::scalar<std::int32_t>(1);
  made->all_reduce(here, here, Reduce::sum, host).wait();
  return made;
}

}  // namespace

RunResult run_as_rank(Rendezvous& ranks, const Partition& partition, std::shared_ptr<Device> device, const Feeds& feeds,
                      const ProcessRunOptions& options) {
  throw_on_runtime_thread("run_as_rank");
  if (ranks.world_size() != partition.ranks)
    throw ArgumentError(fmt::format("run on {} ranks: expected a process for each, found {}", partition.ranks, ranks.world_size()));
  try {
    const Place place = device->place();
    agree(ranks, "kind of place", place.is_cpu() ? "cpu" : std::holds_alternative<CudaPlace>(place) ? "cuda" : place.to_string());
    agree(ranks, "program", fingerprint(partition));
    agree(ranks, "feeds", fingerprint(feeds));
    const PartitionPart part(partition, ranks.rank(), device);
    std::unique_ptr<Communicator> communicator = connected(ranks, partition, *device, options);
    ThreadExecutor executor(1);
    return sync_wait(executor, run_part(part, std::move(communicator), feeds, options.run, OnFailure::abort));
  } catch (Error& error) {
    error.add_context(fmt::format(" (on rank {})", ranks.rank()));
    throw;
  }
}

}  // namespace millrace
