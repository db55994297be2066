// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include <millrace/runtime/files/file.h>
#include <millrace/streaming/client/file_plan.h>
#include <millrace/streaming/client/session_plan.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/transport/tls.h>
#include <millrace/streaming/transport/token_set.h>

#include <support/standard_streams.h>

#include "commands.h"
#include "feeds.h"
#include "model_flags.h"
#include "output_files.h"

namespace millrace::app {
namespace {

struct StreamFlags {
  std::string url;
  std::vector<std::string> files;
  std::vector<std::string> inputs;
  std::vector<std::string> lods;
  SessionPlanOptions sessions;
  double speed = 1;
  double piece_ms = 20;
  std::string folder;
  std::string token_file, authorities;
  bool insecure = false;
  std::string save, state, model;
  double reconnect_s = 5, silence_s = 120;

  /// The options of a connection to `server`.
  ClientOptions client(const StreamUrl& server) const {
    ClientOptions options;
    if (!token_file.empty()) options.token = read_token(token_file);
    options.token_in_clear = insecure;
    options.silence = std::chrono::milliseconds(static_cast<std::int64_t>(silence_s * 1000));
    if (server.is_encrypted()) options.tls = std::make_shared<TlsClient>(insecure ? TlsClient::trusting_anyone() : TlsClient(authorities));
    return options;
  }
};

/// A bar on stderr, redrawn when it has moved.
class Bar {
 public:
  explicit Bar(bool shown) : shown_(shown) {}
  ~Bar() {
    if (drawn_ >= 0) std::fputs("\r\033[K", stderr);
  }
  void show(const ClientProgress& progress) {
    constexpr int width = 40;
    const int cells =
        progress.bytes == 0 ? width : static_cast<int>(width * static_cast<double>(progress.sent) / static_cast<double>(progress.bytes));
    if (!shown_ || (cells == drawn_ && progress.over == over_)) return;
    drawn_ = cells;
    over_ = progress.over;
    std::string bar(static_cast<std::size_t>(cells), '#');
    bar.resize(width, '.');
    fmt::print(stderr, "\r[{}] {}/{} sessions over", bar, progress.over, progress.sessions);
    std::fflush(stderr);
  }

 private:
  const bool shown_;
  int drawn_ = -1;
  std::size_t over_ = 0;
};

NamedOutputs outputs_of(const ClientRecord& record) {
  NamedOutputs outputs;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    const PortSpec& port = record.started->outputs[i];
    Tensor made(port.dtype, port.shape.inserted(0, static_cast<std::int64_t>(record.received.size())));
    made.storage()->mark_written();
    if (made.bytes() != record.outputs[i].size())
      throw ParseError(fmt::format("output '{}': expected {} bytes, found {}", port.name, made.bytes(), record.outputs[i].size()));
    std::copy(record.outputs[i].begin(), record.outputs[i].end(), static_cast<char*>(made.raw_mutable()));
    outputs.emplace_back(port.name, std::move(made));
  }
  return outputs;
}

/// A folder's name for each file: its stem, numbered where another file has it.
std::vector<std::string> folders_of(const std::vector<std::string>& files) {
  std::set<std::string> taken;
  std::vector<std::string> names;
  for (const std::string& file : files) {
    const std::string stem = file_name_of(std::filesystem::path(file).stem().string());
    std::string name = stem;
    for (int number = 2; !taken.insert(name).second; ++number) name = fmt::format("{}-{}", stem, number);
    names.push_back(name);
  }
  return names;
}

struct Answers {
  std::vector<ClientRecord> records;
  double seconds = 0;
};

/// The state that a plan begins with, and whether it is saved at its end.
void plan_states(std::vector<ClientPlan>& plans, const StreamFlags& flags) {
  if (flags.save.empty() && flags.state.empty()) return;
  if (plans.size() != 1) throw UsageError(fmt::format("--save, --state: expected one session, found {}", plans.size()));
  plans[0].save = !flags.save.empty();
  if (flags.state.empty()) return;
  std::string state = read_file(flags.state);
  state.erase(state.find_last_not_of("\r\n") + 1);
  plans[0].start.state = std::move(state);
}

Answers send(const StreamUrl& url, std::vector<ClientPlan> plans, const StreamFlags& flags) {
  for (ClientPlan& plan : plans) plan.start.model = flags.model;
  plan_states(plans, flags);
  ClientOptions options = flags.client(url);
  options.speed = flags.speed;
  options.reconnect = std::chrono::milliseconds(static_cast<std::int64_t>(flags.reconnect_s * 1000));
  options.paced_piece = std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(flags.piece_ms)));
  const auto begin = std::chrono::steady_clock::now();
  Answers answers;
  Bar bar(::isatty(STDERR_FILENO) != 0);
  options.on_progress = [&bar](const ClientProgress& progress) { bar.show(progress); };
  answers.records = stream_plans(url, std::move(plans), std::move(options));
  answers.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const ClientRecord& record : answers.records)
    if (record.state) write_file(flags.save, *record.state + "\n");
  return answers;
}

std::uint64_t steps_of(const ClientRecord& record) {
  std::uint64_t steps = record.steps.value_or(0);
  for (const std::uint64_t before : record.resets) steps += before;
  return record.steps ? steps : std::max<std::uint64_t>(steps, record.received.size());
}

/// Prints the errors by session, and the totals; gives whether all is well. `names`: of the sessions.
bool report(const Answers& answers, const std::vector<std::string>& names) {
  std::size_t good = 0, resumed = 0, restarted = 0;
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < answers.records.size(); ++i) {
    const ClientRecord& record = answers.records[i];
    steps += steps_of(record);
    for (const SegmentMessage& segment : record.segments)
      fmt::print("{}: {} {:.3f} {:.3f}\n", names[i], one_line(segment.label), segment.start, segment.end);
    if (!record.error.empty()) complain("millrace", fmt::format("{}: {}", names[i], record.error));
    good += record.error.empty() ? 1 : 0;
    resumed += record.resumed;
    restarted += record.restarted;
  }
  fmt::print("millrace: sessions={} ended={} steps={} seconds={:.3f}\n", answers.records.size(), good, steps, answers.seconds);
  if (resumed + restarted > 0) fmt::print("millrace: lost connections: resumed={} restarted={}\n", resumed, restarted);
  return good == answers.records.size();
}

int stream_files(const StreamFlags& flags, const StreamUrl& url, const StartedMessage& server) {
  if (server.inputs.size() > 1)
    throw UsageError(fmt::format("FILE: expected --input NAME=FILE for each of {} inputs", server.inputs.size()));
  std::vector<ClientPlan> plans;
  for (const std::string& file : flags.files) plans.push_back(plan_file(file, server));
  const Answers answers = send(url, std::move(plans), flags);
  const std::vector<std::string> folders = folders_of(flags.files);
  for (std::size_t i = 0; i < answers.records.size() && !flags.folder.empty(); ++i)
    if (const ClientRecord& record = answers.records[i]; record.error.empty())
      write_outputs(std::filesystem::path(flags.folder) / folders[i], outputs_of(record));
  return report(answers, flags.files) ? 0 : 1;
}

/// Ragged rows of named inputs: what `millrace run` takes whole.
int stream_sequences(const StreamFlags& flags, const StreamUrl& url, const StartedMessage& server) {
  for (const std::string& text : flags.inputs)
    if (ending_of(text) == ".wav") throw UsageError(fmt::format("--input: expected sound as FILE, found '{}'", text));
  SessionPlan plan(read_feeds(flags.inputs, flags.lods, StreamConfig()), server, flags.sessions);
  const Answers answers = send(url, plan.take(), flags);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < answers.records.size(); ++i) names.push_back(fmt::format("sequence {}", i));
  const bool good = report(answers, names);
  if (good && !flags.folder.empty()) write_outputs(flags.folder, plan.outputs(answers.records));
  return good ? 0 : 1;
}

int stream(const StreamFlags& flags) {
  if (flags.files.empty() == flags.inputs.empty()) throw UsageError("stream: expected either FILE… or --input NAME=FILE…");
  if (flags.inputs.empty() && (!flags.lods.empty() || flags.sessions.flush || flags.sessions.one_session))
    throw UsageError("--lod, --flush, --one-session: expected rows of --input");
  StreamUrl url;
  try {
    url = parse_stream_url(flags.url);
  } catch (const ParseError& error) {
    throw UsageError(error.what());
  }
  const StartedMessage server = describe_server(url, flags.client(url), flags.model);
  return flags.inputs.empty() ? stream_files(flags, url, server) : stream_sequences(flags, url, server);
}

}  // namespace

void add_stream(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<StreamFlags>();
  CLI::App* command = app.add_subcommand("stream", "Sends files to a server as concurrent live sessions");
  command->add_option("URL", flags->url, "tcp://HOST:PORT or ws://HOST:PORT/stream; tcps and wss for TLS")->required();
  command->add_option("FILE", flags->files, "FILE.wav for a server that takes audio, else FILE.npy with time as axis 0: a session each");
  command
      ->add_option("--input", flags->inputs,
                   "NAME=FILE.npy or NAME=FILE.npz:TENSOR, in place of FILE: the rows of an input, with time as axis 0 ([T, B, C], also "
                   "for a model to which 'millrace run' gives [B, T, C]); a session for each outermost sequence. A name that is no input "
                   "of the server's is given at the start, a row for each session")
      ->allow_extra_args(false);
  command
      ->add_option("--lod", flags->lods,
                   "NAME=[[2,1],[3,1,2]]: lengths of its sequences, level by level, outermost first: inner ones open and close in their "
                   "session. Inputs "
                   "without levels have those of the others")
      ->allow_extra_args(false);
  command->add_flag("--flush", flags->sessions.flush, "With --input: sends flush behind every innermost sequence");
  command->add_flag("--one-session", flags->sessions.one_session,
                    "With --input: sends the outermost sequences through one session, with reset between them");
  command->add_option("--speed", flags->speed, "Times real time, for sound; 0: as fast as the server takes it")
      ->check(within(0, 1e6))
      ->capture_default_str();
  command->add_option("--piece-ms", flags->piece_ms, "How much sound a piece holds")->check(within(1, 10000))->capture_default_str();
  command->add_option("--model", flags->model, "Which model of the server's; else that of the address ws://HOST:PORT/NAME, or the default");
  command->add_option("--token-file", flags->token_file, "Its first token is shown to the server");
  command->add_option("--ca", flags->authorities,
                      "PEM file of the authorities that may have given the server's certificate; else the system's");
  command->add_flag("--insecure", flags->insecure, "Trusts any certificate, and lets the token go to another machine without TLS");
  command
      ->add_option("--state", flags->state,
                   "The session goes on from the state in FILE, which --save wrote, at any server with the same model and key")
      ->check(CLI::ExistingFile);
  command->add_option("--save", flags->save, "Saves the session in FILE behind its data, in place of ending it");
  command
      ->add_option("--reconnect", flags->reconnect_s,
                   "Seconds in which a session that lost its connection tries to get another: it goes on by its ticket, from the state of "
                   "a draining server, or starts over. 0: it ends")
      ->check(within(0, 86400))
      ->capture_default_str();
  command
      ->add_option("--silence", flags->silence_s,
                   "Seconds in which nothing at all comes of a server that owes the end of a session, or takes nothing more of it, until "
                   "its connection counts as lost. 0: it never does")
      ->check(within(0, 86400))
      ->capture_default_str();
  command->add_option("--output-dir", flags->folder,
                      "Writes DIR/FILE/NAME.npy for each file and output NAME; with --input DIR/NAME.npy, as 'millrace run' does");
  DeviceFlags::refuse_in(*command, "expected where the model runs, which is the server's: see 'millrace serve'");
  command->callback([flags, &action] { action = [flags] { return stream(*flags); }; });
}

}  // namespace millrace::app
