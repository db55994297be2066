// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/nccl.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gpu/scenario.h>
#include <millrace/kernels/binary.h>
#include <millrace/runtime/distributed/partition_run.h>
#include <millrace/runtime/distributed/process_run.h>
#include <millrace/runtime/distributed/tcp.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <runtime/distributed/rank_threads.h>
#include <support/lstm_stack.h>

// The work of each rank is a scenario. NCCL takes one process for a rank where ranks share a device, so a scenario's ranks are processes of
// this program, each with an NCCL_HOSTID of its own; of the emulated NCCL they are threads.
namespace millrace::testing {
namespace {

using namespace std::chrono_literals;

/// One rank. All share one device where it is a real one.
struct Rank {
  explicit Rank(const RankEnvironment& where, NcclOptions options = {})
      : number(where.rank), size(where.world_size), device(made(where.rank)), meeting(where) {
    options.max_ctas = 2;
    options.device = device_of(number);
    world = make_nccl_communicator(meeting, options);
  }
  StreamRef stream(std::size_t i = 0) const { return device->stream(i); }
  Tensor up(const Tensor& host) const {
    Tensor made(host.dtype(), host.dims(), stream().memory());
    copy(host, made, stream());
    return made;
  }
  Tensor empty(DType dtype, const DDim& dims) const { return Tensor(dtype, dims, stream().memory()); }

  /// The emulated runtime waits, as CUDA does, for all work of a device when memory goes back to it: ranks in one process need one each.
  static int device_of(int rank) { return cuda_devices().front().name == "emulated" ? rank : 0; }
  static std::shared_ptr<Device> made(int rank) {
    CudaOptions options;
    options.index = device_of(rank);
    return make_cuda_device(options);
  }

  int number;
  int size;
  std::shared_ptr<Device> device;
  Rendezvous meeting;
  std::unique_ptr<Communicator> world;
};

template <class T>
std::vector<T> numbers(const Tensor& tensor) {
  return tensor.copy_to(CpuPlace{}).to_vector<T>();
}

/// Scenarios run on other threads and in other processes: what is wrong is thrown.
void expect(bool holds, const std::string& what) {
  if (!holds) throw CommunicationError("not so: " + what);
}

/// Values whose sum depends on the order.
std::vector<float> awkward(int rank) {
  return {rank == 0 ? 1e8f : rank == 1 ? 1.0f : rank == 2 ? -1e8f : 0.3f, 0.1f * static_cast<float>(rank + 1), static_cast<float>(rank)};
}

void collectives(const RankEnvironment& where) {
  const Rank rank(where);
  const int size = rank.size;
  Communicator& world = *rank.world;
  const Tensor mine = rank.up(Tensor::from(awkward(rank.number), DDim{3}));

  Tensor sum = rank.empty(DType::f32, DDim{3});
  Tensor most = rank.empty(DType::f32, DDim{3});
  Tensor all = rank.empty(DType::f32, DDim{size, 3});
  Tensor shared = rank.number == size - 1 ? rank.up(Tensor::from<std::int64_t>({7, 8, 9})) : rank.empty(DType::i64, DDim{3});
  Tensor count = rank.up(Tensor::from<std::int32_t>({1, rank.number}));
  world.all_reduce(mine, sum, Reduce::sum, rank.stream());
  world.all_reduce(mine, most, Reduce::max, rank.stream(1));
  world.all_gather(mine, all, rank.stream(2));
  world.broadcast(shared, size - 1, rank.stream());
  world.all_reduce(count, count, Reduce::sum, rank.stream());
  const Tensor twice = binary(Binary::add, sum, sum, rank.stream());  // behind it, without a word from the host

  std::vector<float> wanted = awkward(0), wanted_most = awkward(0), everything;
  for (int r = 0; r < size; ++r)
    for (std::size_t i = 0; i < 3; ++i) {
      if (r > 0) wanted[i] = wanted[i] + awkward(r)[i];
      wanted_most[i] = std::max(wanted_most[i], awkward(r)[i]);
      everything.push_back(awkward(r)[i]);
    }
  expect(numbers<float>(sum) == wanted, "the sum in the order of the ranks");
  expect(numbers<float>(most) == wanted_most, "the maximum");
  expect(numbers<float>(all) == everything, "what was gathered");
  expect(numbers<std::int64_t>(shared) == std::vector<std::int64_t>{7, 8, 9}, "what was broadcast");
  expect(numbers<std::int32_t>(count) == std::vector<std::int32_t>{size, size * (size - 1) / 2}, "the sum of integers in place");
  for (float& value : wanted) value += value;
  expect(numbers<float>(twice) == wanted, "what another kernel made of the sum");
}

task<void> awaited(Point point) { co_await ready(point); }

/// Each gives to the next and takes from the one before, all at once, over a duplicate, while the world has work too.
void ring(const RankEnvironment& where) {
  const Rank rank(where);
  const auto duplicate = rank.world->duplicate("ring");
  const int next = (rank.number + 1) % rank.size;
  const int before = (rank.number + rank.size - 1) % rank.size;
  Tensor token = rank.up(Tensor::from<std::int64_t>({rank.number}));
  Tensor total = rank.up(Tensor::from<std::int64_t>({1}));
  for (int iteration = 0; iteration < 2 * rank.size; ++iteration) {
    Tensor got = rank.empty(DType::i64, DDim{1});
    {
      const CommunicatorGroup group(*duplicate);
      duplicate->send(token, next, rank.stream());
      duplicate->recv(got, before, rank.stream());
    }
    rank.world->all_reduce(total, total, Reduce::sum, rank.stream(1));
    token = got;
  }
  ThreadExecutor executor(1);
  sync_wait(executor, awaited(token.ready()));
  expect(numbers<std::int64_t>(token) == std::vector<std::int64_t>{rank.number}, "the token is back");
  std::int64_t wanted = 1;
  for (int iteration = 0; iteration < 2 * rank.size; ++iteration) wanted *= rank.size;
  expect(numbers<std::int64_t>(total) == std::vector<std::int64_t>{wanted}, "the world's own sums");
}

/// Rank 0 waits for what nobody sends. The others hear of it, by NCCL or by their own deadline.
void silence(const RankEnvironment& where) {
  NcclOptions options;
  options.deadline = 1500ms;
  options.leaving = 500ms;
  const Rank rank(where, options);
  Tensor got = rank.empty(DType::f32, DDim{2});
  const Tensor untouched = rank.up(Tensor::from<float>({1, 2}));
  std::string said;
  try {
    if (rank.number == 0) {
      rank.world->recv(got, 1, rank.stream()).wait();
    } else {
      rank.world->all_reduce(untouched, got, Reduce::sum, rank.stream()).wait();
    }
  } catch (const DeadlineError& error) {
    said = error.what();
  } catch (const RankError& error) {
    said = error.what();
  }
  const std::string name = "by rank " + std::to_string(rank.number) + " on communicator 'nccl' of " + std::to_string(rank.size) + " ranks";
  expect(said.find(name) != std::string::npos, "an error that names the operation and the rank: " + said);
  expect(rank.world->aborted(), "the communicator is aborted");
  expect(numbers<float>(binary(Binary::add, untouched, untouched, rank.stream())) == std::vector<float>{2, 4}, "the stream goes on");
  try {
    rank.world->broadcast(got, 0, rank.stream());
    expect(false, "a later call is refused");
  } catch (const AbortedError&) {
  }
}

/// A rank that aborts ends its own wait at once, and one that is destroyed while it waits ends it too.
void give_up(const RankEnvironment& where) {
  NcclOptions options;
  options.leaving = 500ms;
  Rank rank(where, options);
  Tensor got = rank.empty(DType::f32, DDim{2});
  if (rank.number == 0) {
    const Point done = rank.world->recv(got, 1, rank.stream());
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      rank.world->abort("the user went home");
    });
    std::string said;
    try {
      done.wait();
    } catch (const std::exception& error) {
      said = error.what();
    }
    other.join();
    expect(said.find("the user went home") != std::string::npos, "the reason: " + said);
  } else {
    const Point done = rank.world->recv(got, 0, rank.stream());
    std::this_thread::sleep_for(500ms);  // after rank 0
    rank.world.reset();
    expect(done.error() != nullptr, "what was under way has failed");
  }
}

/// The error of a producer is that of the operation.
void lost_input(const RankEnvironment& where) {
  NcclOptions options;
  options.deadline = 1500ms;
  std::string said;
  try {
    const Rank rank(where, options);  // the other rank may have gone by the time that this one's communicator is made
    const auto timeline = std::make_shared<Timeline>();
    Tensor value = rank.up(Tensor::from<float>({1}));
    if (rank.number == 0) value.storage()->set_ready(Point(timeline, 1));
    const Point done = rank.world->broadcast(value, 0, rank.stream());
    timeline->fail(std::make_exception_ptr(IoError("the line is dead")));
    done.wait();
  } catch (const std::exception& error) {
    said = error.what();
  }
  expect(!said.empty() && (where.rank != 0 || said == "the line is dead"), "the producer's error: " + said);
}

/// A program over ranks, whose layers hand on steps, gives rank 0 the bytes of one.
void program(const RankEnvironment& where) {
  const LstmStack stack(5, 4, 6, {7, 0, 12, 1});
  const std::shared_ptr<Device> device = Rank::made(where.rank);
  Rendezvous meeting(where);
  ProcessRunOptions options;
  options.deadline = 60s;
  const RunResult found = run_as_rank(meeting, partition_over_ranks(stack.program, where.world_size), device, stack.feeds, options);
  if (where.rank != 0) return;
  ThreadExecutor executor(1);
  expect(bytes_of(found) == bytes_of(sync_wait(executor, run(Executable(stack.program, device), stack.feeds, RunOptions()))),
         "the bytes of one rank");
}

/// More ranks than loops: who has nothing to do holds nobody up.
void idle(const RankEnvironment& where) {
  const LstmStack stack(5, 2, 6, {7, 3});
  Rendezvous meeting(where);
  const std::shared_ptr<Device> device = Rank::made(where.rank);
  const RunResult found = run_as_rank(meeting, partition_over_ranks(stack.program, where.world_size), device, stack.feeds);
  if (where.rank == 0) expect(!bytes_of(found).empty(), "outputs");
}

/// The last rank goes away while the others make their communicators of NCCL, which would wait for it for a minute.
void gone(const RankEnvironment& where) {
  Rendezvous meeting(where);
  const std::shared_ptr<Device> device = Rank::made(where.rank);
  const bool last = where.rank + 1 == where.world_size;
  TcpOptions options;
  options.device = [&](const Hopeless& hopeless) {
    NcclOptions nccl;
    nccl.device = Rank::device_of(where.rank);
    nccl.hopeless = hopeless;
    if (last) {
      meeting.exchange("nccl communicator nccl", nccl_status() + "\n");
      throw IoError("the device fell out");
    }
    return make_device_ways(make_nccl_communicator(meeting, nccl), {{0, 1}}, device->stream(0), hopeless);
  };
  const auto begin = std::chrono::steady_clock::now();
  std::string said;
  try {
    make_tcp_communicator(meeting, options);
  } catch (const Error& error) {
    said = error.what();
  }
  const std::string wanted = last ? "the device fell out" : "rank " + std::to_string(where.world_size - 1) + " has left";
  expect(said.find(wanted) != std::string::npos, wanted + ": " + said);
  expect(std::chrono::steady_clock::now() - begin < 20s, "at once");
}

const std::map<std::string, std::function<void(const RankEnvironment&)>>& scenarios() {
  static const std::map<std::string, std::function<void(const RankEnvironment&)>> known{
      {"collectives", collectives}, {"ring", ring},      {"silence", silence}, {"give_up", give_up}, {"idle", idle}, {"gone", gone},
      {"lost_input", lost_input},   {"program", program}};
  return known;
}

std::string said_by(const std::string& scenario, const RankEnvironment& where) {
  try {
    scenarios().at(scenario)(where);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> on_threads(const std::string& scenario, int size, std::uint16_t port) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { said[static_cast<std::size_t>(rank)] = said_by(scenario, member(rank, size, port)); });
  for (std::thread& thread : threads) thread.join();
  return said;
}

std::string scenario_of(const std::string& ranks_do) { return "one rank over NCCL: " + ranks_do; }

/// A rank with a process of its own is the one that RANK and WORLD_SIZE say.
const bool are_scenarios = [] {
  for (const auto& [name, work] : scenarios())
    Scenario(scenario_of(name), [play = work] {
      const auto where = rank_environment();
      REQUIRE(where.has_value());
      play(*where);
    });
  return true;
}();

std::vector<std::string> in_processes(const std::string& scenario, int size, std::uint16_t port) {
  std::vector<ScenarioProcess> processes;
  for (int rank = 0; rank < size; ++rank)
    processes.emplace_back(scenario_of(scenario),
                           std::vector<std::string>{"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
                                                    "MASTER_PORT=" + std::to_string(port), "NCCL_HOSTID=millrace" + std::to_string(rank),
                                                    "NCCL_SOCKET_IFNAME=lo", "CUDA_MODULE_LOADING=EAGER"});
  std::vector<std::string> said;
  for (ScenarioProcess& process : processes) {
    const int code = process.ended_with(10min);
    said.push_back(code == 0 ? "" : "its process ended with " + std::to_string(code) + ", and said why above");
  }
  return said;
}

void run(const std::string& scenario, std::initializer_list<int> sizes) {
  if (nccl_status() == "not in this build") {
    MESSAGE("left out: no NCCL in this build");
    return;
  }
  for (const int size : sizes) {
    const std::uint16_t port = free_port();
    const bool emulated = cuda_devices().front().name == "emulated";
    const std::vector<std::string> said = emulated ? on_threads(scenario, size, port) : in_processes(scenario, size, port);
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      INFO(scenario, ": rank ", rank, " of ", size);
      CHECK(said[rank] == "");
    }
  }
}

/// The flags that ranks_run gives to `millrace run`.
const Scenario stack_as_files("a stack of layers and its rows as files", [] {
  const char* folder = std::getenv("MILLRACE_TEST_FOLDER");
  REQUIRE(folder != nullptr);
  const LstmStack stack(7, 4, 64, {120});
  save_program(stack.program, std::filesystem::path(folder) / "stack.mr");
  write_npy(std::filesystem::path(folder) / "x.npy", stack.feeds.at("x").tensor().tensor());
});

}  // namespace

TEST_CASE("ranks over NCCL reduce, gather and broadcast, with the bits of the order of the ranks") { run("collectives", {1, 2, 4}); }

TEST_CASE("ranks over NCCL pass messages around in groups on a duplicate, while the world reduces") { run("ring", {2, 3}); }

TEST_CASE("a program over ranks in several processes, whose layers hand on steps over NCCL, has the bits of one rank") {
  run("program", {2, 4});
  run("idle", {4});
}

TEST_CASE("a rank that goes away while the others meet in NCCL is known to them at once, by name") { run("gone", {2, 3}); }

TEST_CASE("ranks of one process that share devices have the bits of one rank") {
  const LstmStack stack(6, 4, 6, {3, 8});
  ThreadExecutor executor(1);
  const std::string wanted =
      bytes_of(sync_wait(executor, millrace::run(Executable(stack.program, Rank::made(0)), stack.feeds, RunOptions())));
  const auto count = static_cast<int>(cuda_devices().size());
  for (const int size : {2, 4}) {
    for (const int used : {1, count}) {
      std::vector<std::shared_ptr<Device>> devices;
      for (int rank = 0; rank < size; ++rank) {
        CudaOptions options;
        options.index = rank % used;
        devices.push_back(make_cuda_device(options));
      }
      INFO(size, " ranks on ", used, " devices");
      CHECK(bytes_of(run_on_local_ranks(partition_over_ranks(stack.program, size), devices, stack.feeds)[0]) == wanted);
    }
  }
}

TEST_CASE("ranks over NCCL that wait for what never comes end with an error that names them, and their streams go on") {
  run("silence", {2, 3});
}

TEST_CASE("a rank over NCCL that aborts, or goes away with operations under way, ends them") { run("give_up", {2}); }

TEST_CASE("an operation over NCCL whose value fails ends with the value's error") { run("lost_input", {2}); }

}  // namespace millrace::testing
