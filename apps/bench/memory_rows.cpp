// SPDX-License-Identifier: Apache-2.0
#include <bench/memory_rows.h>

#include <cstdio>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/live/state_slab.h>
#include <support/child.h>

namespace millrace::bench {
namespace {

/// Bytes of memory that this process has in use.
std::int64_t resident() {
  std::int64_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

void take_replies(Session& session) {
  while (session.has_output()) {
    const Message message = session.take_output();
    session.written(message.payload.size());
  }
}

/// In a process of its own, so that nothing was freed before.
std::optional<double> sessions_in_a_process(const Context& context, std::int64_t count, std::string& why) {
  try {
    app::Child child({context.programs + "/millrace-bench", "sessions", std::to_string(count)});
    const std::string line = child.read_line();
    child.finish();
    double besides = 0;
    if (std::sscanf(line.c_str(), "besides %lf", &besides) == 1) return besides;
    why = "not measured: the process that holds the sessions said nothing";
  } catch (const IoError& error) {
    why = std::string("not measured: ") + error.what();
  }
  return std::nullopt;
}

}  // namespace

int sessions_command(std::int64_t count) {
  const auto model = std::make_shared<const ServedModel>(lstm_program(make_problem(128, {1})), StreamConfig());
  StateSlab slab(model->recurrence());
  Batcher batcher(model->recurrence());
  const Limits limits;
  const std::string start = to_json(StartMessage()), row(128 * sizeof(float), '\1');
  std::vector<std::unique_ptr<Session>> sessions;
  const auto add = [&] {
    sessions.push_back(std::make_unique<Session>(model, batcher, limits));
    sessions.back()->receive(text_message(start));
    take_replies(*sessions.back());
    sessions.back()->receive(binary_message(row));
    while (batcher.ready()) batcher.finish(slab.run(batcher.take()));
    take_replies(*sessions.back());
  };
  add();  // the set-up of the first one belongs to none
  const std::int64_t before = resident() - static_cast<std::int64_t>(slab.bytes());
  for (std::int64_t i = 1; i <= count; ++i) add();
  fmt::print("besides {}\n", resident() - static_cast<std::int64_t>(slab.bytes()) - before);
  return 0;
}

void measure_memory(Context& context) {
  // With the first session a power of two: the slab of states doubles, and is then full.
  const std::int64_t many = context.quick ? 1023 : 131071, fewer = context.quick ? 127 : 16383;
  std::string why;
  const std::optional<double> of_many = sessions_in_a_process(context, many, why), of_fewer = sessions_in_a_process(context, fewer, why);
  Row one;
  one.id = "C9";
  one.shape = fmt::format("an idle session besides its state, of {}", many);
  one.unit = Unit::bytes;
  one.peer_name = "goal";
  one.peer = 512;
  one.goal = 1;
  one.note = why;
  if (of_many) one.ours = *of_many / static_cast<double>(many);
  context.emit(one);
  Row linear = one;
  linear.shape = fmt::format("{} suspended sessions, without their states", many);
  linear.peer_name = fmt::format("{:.2f} x the memory of {}", static_cast<double>(many) / static_cast<double>(fewer), fewer);
  linear.goal = 0.9;
  linear.ours = of_many;
  linear.peer.reset();
  if (of_fewer) linear.peer = *of_fewer * static_cast<double>(many) / static_cast<double>(fewer);
  context.emit(linear);
}

}  // namespace millrace::bench
