// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>

#include <bench/families.h>
#include <bench/library/measure.h>
#include <bench/library/python_peer.h>
#include <bench/live_client.h>
#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>
#include <support/child.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

constexpr double most_lag_ms = 32;
constexpr const char* config = R"([audio]
input = "input"
rate = 16000
window = 512
context = 64
[state]
h = "hn"
c = "cn"
)";

/// Every process that is started while it lives runs on one core: number `index` of those that this process may use.
class OnCore {
 public:
  explicit OnCore(int index) {
    CPU_ZERO(&before_);
    if (::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &before_)) cores.push_back(core);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[static_cast<std::size_t>(index) % cores.size()], &one);
    changed_ = ::sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OnCore() {
    if (changed_) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_;
  bool changed_ = false;
};

std::size_t most_sessions() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_max, 16448)) - 64;
}

/// Seconds of CPU that a process has used: by its first thread, which has the sockets, and by the others, which compute.
struct CpuUsed {
  double transport = 0;
  double arithmetic = 0;
};
CpuUsed cpu_used(pid_t process) {
  CpuUsed used;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
    double nanoseconds = 0;
    std::ifstream(entry.path() / "schedstat") >> nanoseconds;
    (entry.path().filename() == std::to_string(process) ? used.transport : used.arithmetic) += nanoseconds * 1e-9;
  }
  return used;
}

struct Trial {
  CrowdSaw saw;
  CpuUsed a_reply;
  bool holds() const { return saw.expected > 0 && saw.p99_ms < most_lag_ms; }
};

class Trials {
 public:
  Trials(const Context& context, std::int64_t windows) : context_(context), windows_(windows), most_(most_sessions()) {
    write_file(scratch_ / "silero.toml", config);
  }

  /// A server and clients of their own, each on a core.
  Trial run(std::int64_t sessions) {
    const OnCore server_core(0);
    app::Child server({context_.programs + "/millrace", "serve", context_.models + "/silero_vad_v6.onnx", "--config",
                       (scratch_ / "silero.toml").string(), "--port", "0", "--quiet", "--max-sessions", std::to_string(most_)});
    const std::string line = server.read_line();
    if (!line.starts_with("millrace: serving ")) throw IoError("millrace serve did not start");
    const OnCore client_core(1);
    const std::string url = "tcp://" + line.substr(line.rfind(' ') + 1);
    app::Child client({context_.programs + "/millrace-bench", "live-client", url, std::to_string(sessions), std::to_string(windows_),
                       context_.quick ? "0.1" : "1", context_.quick ? "0.3" : "3"});
    if (client.read_line() != "started") throw IoError("the clients did not start");
    const CpuUsed before = cpu_used(server.pid());
    const std::string answer = client.read_line();
    const CpuUsed after = cpu_used(server.pid());
    Trial trial;
    long long expected = 0, received = 0, replies = 0;
    if (std::sscanf(answer.c_str(), "saw %lf %lf %lld %lld %lld", &trial.saw.p50_ms, &trial.saw.p99_ms, &expected, &received, &replies) !=
        5)
      throw IoError("the clients ended early");
    trial.saw.expected = expected;
    trial.saw.received = received;
    const double count = std::max(1.0, static_cast<double>(replies));
    trial.a_reply = {(after.transport - before.transport) / count, (after.arithmetic - before.arithmetic) / count};
    return trial;
  }

  /// The most sessions that hold, to some per cent, with what was seen there. 0: not even the first.
  std::pair<std::int64_t, Trial> bisect() {
    std::pair<std::int64_t, Trial> best;
    std::int64_t low = 0, high = 0;
    for (std::int64_t sessions = context_.quick ? 8 : 128; high == 0; sessions *= 2) {
      sessions = std::min(sessions, static_cast<std::int64_t>(most_));
      const Trial trial = run(sessions);
      if (!trial.holds()) high = sessions;
      if (!trial.holds()) break;
      best = {sessions, trial};
      low = sessions;
      if (context_.quick || low == static_cast<std::int64_t>(most_)) return best;
    }
    while (high - low > std::max<std::int64_t>(1, high / 24)) {
      const std::int64_t middle = (low + high) / 2;
      const Trial trial = run(middle);
      (trial.holds() ? low : high) = middle;
      if (trial.holds()) best = {middle, trial};
    }
    return best;
  }

 private:
  const Context& context_;
  std::int64_t windows_;
  std::size_t most_;
  app::ScratchFolder scratch_{"millrace-bench"};
};

Row live_row(std::int64_t windows, const std::string& what) {
  Row row;
  row.id = "C5";
  row.shape = fmt::format("live Silero, {} ms chunks: {}", 32 * windows, what);
  return row;
}

/// Seconds of one call of ONNX Runtime for one frame, on one core, without any socket; and its name, or why there is none.
struct FrameCall {
  std::string name = "ONNX Runtime, one call a frame";
  std::optional<double> seconds;
  std::string note;
};
FrameCall measure_frame_call(const Context& context) {
  FrameCall call;
  const OnCore core(0);
  const PythonPeer peer = make_python_peer(context.python, "ONNX Runtime", {"onnx_frame", context.models + "/silero_vad_v6.onnx", "1"});
  call.name = peer.name;
  call.note = peer.note;
  if (!peer.timer) return call;
  std::vector<double> seconds(9);
  for (double& each : seconds) each = peer.timer(context.quick ? 0.01 : 0.2);
  call.seconds = median(seconds);
  return call;
}

/// The rows of one size of chunk: streams against those that the peer's calls alone would allow a core, then what a reply costs.
void chunk_rows(Context& context, std::int64_t windows, double goal) {
  Row row = live_row(windows, "streams a core, p99 lag < 32 ms");
  row.unit = Unit::streams;
  row.goal = goal;
  row.peer_name = FrameCall().name;
  std::pair<std::int64_t, Trial> best;
  try {
    if (!std::filesystem::exists(context.models + "/silero_vad_v6.onnx")) throw IoError("no silero_vad_v6.onnx in the folder of --models");
    best = Trials(context, windows).bisect();
    const FrameCall call = measure_frame_call(context);
    row.peer_name = call.name;
    if (call.seconds) row.peer = 0.032 / *call.seconds;
    if (best.first == 0) throw IoError("the fewest streams that were tried did not hold");
    row.ours = static_cast<double>(best.first);
    row.note = fmt::format("p50 lag {:.1f} ms, p99 {:.1f} ms", best.second.saw.p50_ms, best.second.saw.p99_ms);
    if (!call.note.empty()) row.note += "; " + call.note;
  } catch (const Error& error) {
    row.note = std::string("not measured: ") + error.what();
  }
  context.emit(std::move(row));
  if (best.first == 0) return;
  for (const auto& [what, seconds] : {std::pair("the transport of a reply", best.second.a_reply.transport),
                                      std::pair("the arithmetic of a reply", best.second.a_reply.arithmetic)}) {
    Row part = live_row(windows, what);
    part.ours = seconds;
    part.note = "the server's CPU, a part of the row above";
    context.emit(std::move(part));
  }
}

}  // namespace

void measure_live(Context& context) {
  chunk_rows(context, 1, 5);
  chunk_rows(context, 3, 10);
}

}  // namespace millrace::bench
