// SPDX-License-Identifier: Apache-2.0
#include <bench/library/python_peer.h>

#include <cstdlib>
#include <cstring>

#include <support/child.h>
#include <support/scratch_folder.h>

#include <millrace/runtime/files/file.h>

namespace millrace::scripts {
extern const char* const model_graphs;
extern const char* const peers;
}  // namespace millrace::scripts

namespace millrace::bench {
namespace {

/// The process, with the folder that its problem lies in.
struct Talk {
  std::shared_ptr<const app::ScratchFolder> scratch;
  app::Child child;
  Talk(const std::string& python, std::shared_ptr<const app::ScratchFolder> folder)
      : scratch(std::move(folder)), child({python, "-u", "-c", std::string(scripts::model_graphs) + scripts::peers}, true) {}

  std::string ask(const std::string& line) {
    child.write_line(line);
    return child.read_line();
  }
  double seconds(double wanted) {
    const double taken =
        std::atof(ask("time\t" + std::to_string(wanted) + (timer_clock() == TimerClock::processor ? "\tprocessor" : "")).c_str());
    if (!(taken > 0)) throw IoError("a peer in Python ended while it was measured");
    return taken;
  }
  Tensor result() {
    const std::filesystem::path file = *scratch / "result";
    if (ask("result\t" + file.string()) != "ok") throw IoError("a peer in Python ended while it was asked for its result");
    const std::string bytes = read_file(file);
    Tensor made(DType::f32, DDim{static_cast<std::int64_t>(bytes.size() / sizeof(float))});
    std::memcpy(made.mutable_data<float>(), bytes.data(), made.bytes());
    return made;
  }
};

PythonPeer started(const std::string& python, const std::string& name, const std::vector<std::string>& set_up,
                   std::shared_ptr<const app::ScratchFolder> scratch) {
  PythonPeer peer;
  peer.name = name;
  try {
    const auto talk = std::make_shared<Talk>(python, std::move(scratch));
    std::string line;
    for (const std::string& word : set_up) line += (line.empty() ? "" : "\t") + word;
    const std::string answer = talk->ask(line);
    if (!answer.starts_with("ok ")) {
      peer.note = "not measured: " + (answer.starts_with("no ") ? answer.substr(3) : python + " ended; it needs numpy");
      return peer;
    }
    peer.name = answer.substr(3);
    peer.timer = [talk](double seconds) { return talk->seconds(seconds); };
    peer.result = [talk] { return talk->result(); };
  } catch (const IoError& error) {
    peer.note = std::string("not measured: ") + error.what();
  }
  return peer;
}

void write_raw(const std::filesystem::path& file, const void* bytes, std::size_t count) {
  write_file(file, std::string(static_cast<const char*>(bytes), count));
}

}  // namespace

PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::vector<std::string>& set_up) {
  return started(python, name, set_up, std::make_shared<const app::ScratchFolder>("millrace-bench"));
}

PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::vector<std::string>& set_up,
                            const RawFiles& files) {
  auto scratch = std::make_shared<const app::ScratchFolder>("millrace-bench");
  for (const auto& [file, tensor] : files) write_raw(*scratch / file, tensor.raw(), tensor.bytes());
  std::vector<std::string> words = set_up;
  words.insert(words.begin() + 1, scratch->path().string());
  return started(python, name, words, std::move(scratch));
}

PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::string& set_up, const LstmProblem& problem,
                            int threads, const RawFiles& more) {
  RawFiles files{{"w", problem.w}, {"r", problem.r}, {"bias", problem.bias}, {"x", problem.x}, {"h", problem.h}, {"c", problem.c}};
  files["lengths"] = Tensor::from(problem.lengths, DDim{problem.sequences()});
  files.insert(more.begin(), more.end());
  return make_python_peer(python, name, {set_up, std::to_string(problem.hidden), std::to_string(threads)}, files);
}

}  // namespace millrace::bench
