// SPDX-License-Identifier: Apache-2.0
#include <bench/live_trials.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <sys/resource.h>

#include <bench/on_core.h>
#include <millrace/tensor/error.h>
#include <support/child.h>

namespace millrace::bench {
namespace {

std::int64_t most_sessions() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_max, 16448)) - 64;
}

CpuUsed cpu_used(pid_t process) {
  CpuUsed used;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
    double nanoseconds = 0;
    std::ifstream(entry.path() / "schedstat") >> nanoseconds;
    (entry.path().filename() == std::to_string(process) ? used.transport : used.arithmetic) += nanoseconds * 1e-9;
  }
  return used;
}

double peak_bytes(pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return 1024 * std::stod(line.substr(6));
  return 0;
}

}  // namespace

std::string lags_of(const CrowdSaw& saw) { return fmt::format("p50 lag {:.1f} ms, p99 {:.1f} ms", saw.p50_ms, saw.p99_ms); }

Trials::Trials(const Context& context, LiveLoad load) : context_(context), load_(std::move(load)), most_(most_sessions()) {
  if (!context.quick) return;
  load_.crowd.warm_up = 0.1;
  load_.crowd.seconds = 0.3;
}

Trial Trials::run_once(std::int64_t sessions) const {
  const OnCore server_core(0);
  std::vector<std::string> command{context_.programs + "/millrace", "serve"};
  command.insert(command.end(), load_.served.begin(), load_.served.end());
  // No capacity: the trials find out how much the server holds, and it refuses nobody.
  for (const char* word : {"--port", "0", "--quiet", "--capacity", "0", "--max-sessions"}) command.emplace_back(word);
  command.push_back(std::to_string(most_));
  app::Child server(command);
  const std::string line = server.read_line();
  if (!line.starts_with("millrace: serving ")) throw IoError("millrace serve did not start");
  const OnCore client_core(1);
  Crowd crowd = load_.crowd;
  crowd.url = "tcp://" + line.substr(line.rfind(' ') + 1);
  crowd.sessions = sessions;
  std::vector<std::string> clients{context_.programs + "/millrace-bench", "live-client"};
  for (std::string& word : words_of(crowd)) clients.push_back(std::move(word));
  app::Child client(clients);
  if (client.read_line() != "started") throw IoError("the clients did not start");
  const CpuUsed before = cpu_used(server.pid());
  Trial trial;
  trial.saw = saw_of(client.read_line());
  const CpuUsed after = cpu_used(server.pid());
  const double count = std::max(1.0, static_cast<double>(trial.saw.replies));
  trial.a_reply = {(after.transport - before.transport) / count, (after.arithmetic - before.arithmetic) / count};
  trial.server_busy = (trial.a_reply.transport + trial.a_reply.arithmetic) * count / (crowd.warm_up + crowd.seconds);
  trial.peak_bytes = peak_bytes(server.pid());
  trial.holds =
      trial.saw.expected > 0 && trial.saw.errors == 0 && trial.saw.p99_ms < load_.most_p99_ms && trial.saw.p999_ms < load_.most_p999_ms;
  return trial;
}

Trial Trials::run(std::int64_t sessions) const {
  Trial first = run_once(sessions);
  return first.holds ? std::move(first) : run_once(sessions);
}

std::pair<std::int64_t, Trial> Trials::bisect() const {
  std::pair<std::int64_t, Trial> best;
  std::int64_t low = 0, high = 0;
  for (std::int64_t sessions = context_.quick ? 8 : 128; high == 0; sessions *= 2) {
    sessions = std::min(sessions, most_);
    Trial trial = run(sessions);
    if (!trial.holds && low == 0)
      throw IoError(
          fmt::format("the fewest streams that were tried did not hold: {}", trial.saw.errors > 0 ? trial.saw.why : lags_of(trial.saw)));
    if (!trial.holds) high = sessions;
    if (!trial.holds) break;
    best = {sessions, std::move(trial)};
    low = sessions;
    if (context_.quick || low == most_) return best;
  }
  while (high - low > std::max<std::int64_t>(1, high / 24)) {
    const std::int64_t middle = (low + high) / 2;
    Trial trial = run(middle);
    (trial.holds ? low : high) = middle;
    if (trial.holds) best = {middle, std::move(trial)};
  }
  return best;
}

void emit_costs(const Context& context, const std::string& id, const std::string& shape, const Trial& trial) {
  for (const auto& [what, seconds] :
       {std::pair("the transport of a reply", trial.a_reply.transport), std::pair("the arithmetic of a reply", trial.a_reply.arithmetic)}) {
    Row part;
    part.id = id;
    part.shape = shape + ": " + what;
    part.ours = seconds;
    part.note = "the server's CPU, a part of the row above";
    context.emit(std::move(part));
  }
}

}  // namespace millrace::bench
