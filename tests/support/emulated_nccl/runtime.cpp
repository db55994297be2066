// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace emulated {
void enqueue(cudaStream_t stream, std::function<void()> work);
}

namespace {

using Bytes = std::vector<std::byte>;

struct Meeting {
  std::vector<Bytes> values;
  std::size_t came = 0;
  std::size_t gone = 0;
};

struct Message {
  Bytes bytes;
  bool taken = false;
};

/// The state that the ranks of one communicator share.
struct World {
  explicit World(int n) : ranks(static_cast<std::size_t>(n)) {}
  const std::size_t ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t here = 0;
  bool aborted = false;
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;
  std::map<std::uint64_t, std::shared_ptr<World>> splits;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
std::uint64_t ids = 0;

using Clock = std::chrono::steady_clock;

/// A call is taken in a little later than it returns, as a connection is made.
constexpr auto settling = std::chrono::microseconds(200);

struct Piece {
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
  std::function<void(World&)> gives;  // never waits
  std::function<void(World&)> takes;
  std::shared_ptr<World> world;
  bool sends = false;
};
thread_local int depth = 0;
thread_local std::vector<Piece> group;

}  // namespace

struct EmulatedComm {
  std::shared_ptr<World> world;
  int rank = 0;
  std::uint64_t calls = 0;
  std::uint64_t splits = 0;
  Clock::time_point busy_until{};
  // The destination of a split's new communicator, once this one is settled.
  ncclComm_t* to = nullptr;
  ncclComm_t made = nullptr;
};

namespace {

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

template <class T>
void add_in(std::byte* to, const std::byte* from, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    const T made = op == ncclSum ? static_cast<T>(a + b) : op == ncclMin ? std::min(a, b) : std::max(a, b);
    std::memcpy(to + i * sizeof(T), &made, sizeof(T));
  }
}

bool add_in(std::byte* to, const std::byte* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt32: add_in<std::int32_t>(to, from, count, op); return true;
    case ncclInt64: add_in<std::int64_t>(to, from, count, op); return true;
    case ncclFloat32: add_in<float>(to, from, count, op); return true;
    case ncclFloat64: add_in<double>(to, from, count, op); return true;
    default: return false;
  }
}

Bytes taken(const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  return Bytes(at, at + bytes);
}

void put(const Bytes& from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

/// A communicator takes no call before it is through with the last one.
bool is_settled(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  return ncclCommGetAsyncError(comm, &state) == ncclSuccess && state != ncclInProgress;
}

ncclResult_t launched(std::vector<Piece> pieces) {
  if (pieces.empty()) return ncclSuccess;
  for (const Piece& one : pieces) one.comm->busy_until = Clock::now() + settling;
  const cudaStream_t stream = pieces.front().stream;
  emulated::enqueue(stream, [pieces = std::move(pieces)] {
    for (const Piece& one : pieces) one.gives(*one.world);
    for (const bool sends : {false, true})  // a send ends when it was received, maybe by another rank's part of the group
      for (const Piece& one : pieces)
        if (one.sends == sends) one.takes(*one.world);
  });
  return ncclInProgress;
}

ncclResult_t asked(ncclComm_t comm, Piece piece) {
  if (!is_settled(comm)) return ncclInvalidArgument;
  piece.comm = comm;
  if (depth > 0) {
    group.push_back(std::move(piece));
    return ncclSuccess;
  }
  return launched({std::move(piece)});
}

/// All ranks bring bytes, and each makes of all of them what it wants.
ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const void* in, std::size_t bytes,
                        std::function<void(const std::vector<Bytes>&)> use) {
  const std::uint64_t call = comm->calls++;
  const auto rank = static_cast<std::size_t>(comm->rank);
  Piece piece;
  piece.world = comm->world;
  piece.stream = stream;
  piece.gives = [=](World& world) {
    const std::lock_guard lock(world.mutex);
    Meeting& meeting = world.meetings[call];
    meeting.values.resize(world.ranks);
    meeting.values[rank] = taken(in, bytes);
    ++meeting.came;
    world.changed.notify_all();
  };
  piece.takes = [=](World& world) {
    std::unique_lock lock(world.mutex);
    world.changed.wait(lock, [&] { return world.aborted || world.meetings[call].came == world.ranks; });
    if (world.aborted) return;
    use(world.meetings[call].values);
    if (++world.meetings[call].gone == world.ranks) world.meetings.erase(call);
  };
  return asked(comm, std::move(piece));
}

std::shared_ptr<World> entered(std::shared_ptr<World>& world, int ranks) {
  if (!world) world = std::make_shared<World>(ranks);
  const std::lock_guard lock(world->mutex);
  ++world->here;
  return world;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = 22800;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(worlds_mutex);
  std::memset(id->internal, 0, sizeof(id->internal));
  const std::uint64_t number = ++ids;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  const std::lock_guard lock(worlds_mutex);
  *comm = new EmulatedComm{entered(worlds[std::string(id.internal, sizeof(id.internal))], ranks), rank};
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int, int, ncclComm_t* made, ncclConfig_t* config) {
  if (!is_settled(comm) || config->blocking != 0) return ncclInvalidArgument;
  const std::lock_guard lock(comm->world->mutex);
  comm->made = new EmulatedComm{entered(comm->world->splits[comm->splits++], static_cast<int>(comm->world->ranks)), comm->rank};
  comm->to = made;
  comm->busy_until = Clock::now() + settling;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(comm->world->mutex);
  *state = comm->world->aborted                                                        ? ncclRemoteError
           : comm->world->here < comm->world->ranks || Clock::now() < comm->busy_until ? ncclInProgress
                                                                                       : ncclSuccess;
  if (*state == ncclSuccess && comm->to != nullptr) *std::exchange(comm->to, nullptr) = comm->made;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!is_settled(comm)) return ncclInvalidArgument;
  comm->busy_until = Clock::now() + settling;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!is_settled(comm)) return ncclInvalidArgument;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->world->mutex);
    comm->world->aborted = true;
    comm->world->changed.notify_all();
  }
  if (comm->to != nullptr) delete comm->made;
  delete comm;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "another error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return "emulated"; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --depth > 0 ? ncclSuccess : launched(std::exchange(group, {})); }

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  if (std::byte none[8]{}; !add_in(none, none, 0, type, op)) return ncclInvalidArgument;
  return collective(comm, stream, in, count * bytes_of(type), [=](const std::vector<Bytes>& values) {
    Bytes sum = values[0];
    for (std::size_t rank = 1; rank < values.size(); ++rank) add_in(sum.data(), values[rank].data(), count, type, op);
    put(sum, out);
  });
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  const bool gives = comm->rank == root;
  return collective(comm, stream, in, gives ? count * bytes_of(type) : 0,
                    [=](const std::vector<Bytes>& values) { put(values[static_cast<std::size_t>(root)], out); });
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return collective(comm, stream, in, bytes, [=](const std::vector<Bytes>& values) {
    for (std::size_t rank = 0; rank < values.size(); ++rank) put(values[rank], static_cast<std::byte*>(out) + rank * bytes);
  });
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream) {
  Piece piece;
  piece.world = comm->world;
  piece.stream = stream;
  piece.sends = true;
  const auto message = std::make_shared<Message>();
  const std::pair<int, int> route{comm->rank, to};
  const std::size_t bytes = count * bytes_of(type);
  piece.gives = [=](World& world) {
    const std::lock_guard lock(world.mutex);
    message->bytes = taken(in, bytes);
    world.messages[route].push_back(message);
    world.changed.notify_all();
  };
  piece.takes = [=](World& world) {
    std::unique_lock lock(world.mutex);
    world.changed.wait(lock, [&] { return world.aborted || message->taken; });
  };
  return asked(comm, std::move(piece));
}
ncclResult_t ncclRecv(void* out, std::size_t, ncclDataType_t, int from, ncclComm_t comm, cudaStream_t stream) {
  Piece piece;
  piece.world = comm->world;
  piece.stream = stream;
  const std::pair<int, int> route{from, comm->rank};
  piece.gives = [](World&) {};
  piece.takes = [=](World& world) {
    std::unique_lock lock(world.mutex);
    auto& coming = world.messages[route];
    world.changed.wait(lock, [&] { return world.aborted || !coming.empty(); });
    if (world.aborted) return;
    put(coming.front()->bytes, out);
    coming.front()->taken = true;
    coming.pop_front();
    world.changed.notify_all();
  };
  return asked(comm, std::move(piece));
}
