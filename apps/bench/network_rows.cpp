// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/frame_time.h>
#include <bench/library/lstm_problem.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/models/import/model.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

/// A graph of library/model_graphs.py.
struct Network {
  const char* name;
  const char* about;
  bool causal = false;
  std::vector<const char*> more = {};  ///< inputs beside x
};

const Network networks[] = {
    {"silero", "Silero: 5 convolutions, LSTM 128", true},
    {"resemblyzer", "Resemblyzer: 3 x LSTM 256", true},
    {"beatnet", "BeatNet: convolution, dense, 2 x LSTM 150", true},
    {"g2pm", "g2pM: BiLSTM 32 with lengths, B32", false, {"lengths"}},
    {"sleepecg", "sleepecg: BiGRU 8", false},
    {"crnn_image", "CRNN of a line of text: 4 convolutions, BiLSTM 64", false},
    {"crnn_sound", "CRNN of sound: 3 convolutions, BiGRU 32", false},
    {"decoder", "attention decoder: GRU 128 over 32 rows", false, {"memory"}},
    {"layer_norm_lstm", "layer-norm LSTM 64 as a Scan", true},
    {"lstm_12", "LSTM 12", true},
};

/// Seconds of a step of a program over sequences: the difference of two lengths.
Timer marginal(const Timer& few, const Timer& many, std::int64_t steps) {
  return [=](double seconds) {
    const double less = few(seconds / 4);
    return (many(seconds * 3 / 4) - less) / static_cast<double>(steps);
  };
}

class NetworkRows {
 public:
  NetworkRows(Context& context, const Network& network)
      : context_(context), network_(network), short_(context.quick ? 8 : 64), long_(context.quick ? 16 : 256) {
    const PythonPeer writer =
        make_python_peer(context.python, "ONNX Runtime",
                         {"models_write", folder_.path().string(), network.name, std::to_string(short_), std::to_string(long_)});
    note_ = writer.note;
  }

  void whole(int threads) const {
    Row made = row(threads, "a step of many");
    if (!note_.empty()) return without(std::move(made), note_);
    PythonPeer peer = make_python_peer(
        context_.python, "ONNX Runtime",
        {"models_whole", folder_.path().string(), network_.name, std::to_string(short_), std::to_string(long_), std::to_string(threads)});
    made.peer_name = peer.name;
    const Program program = load_model(file("").string());
    const OurProgram few(program, feeds(short_), threads), many(program, feeds(long_), threads);
    if (peer.timer) check_peer(difference(many.output(program.outputs()[0].name).tensor(), peer.result()), peer.timer, peer.note);
    emit_pair(context_, std::move(made), marginal(few.timer(), many.timer(), long_ - short_), peer.timer, peer.note);
  }

  void live() const {
    if (!network_.causal) return;
    Row made = row(1, "a live step");
    if (!note_.empty()) return without(std::move(made), note_);
    const PythonPeer peer = make_python_peer(context_.python, "ONNX Runtime", {"models_live", folder_.path().string(), network_.name, "1"});
    made.peer_name = peer.name;
    emit_pair(context_, std::move(made), frame_timer(file("").string(), {}, 1), peer.timer, peer.note);
  }

 private:
  std::filesystem::path file(const std::string& ending) const { return folder_ / (network_.name + ending + ".onnx"); }
  Feeds feeds(std::int64_t steps) const {
    const auto read = [&](const std::string& input) { return read_npy(folder_ / fmt::format("{}_{}.npy", input, steps)); };
    Feeds made{{"x", Value(LoDTensor(read("x")))}};
    for (const char* input : network_.more) made.emplace(input, Value(LoDTensor(read(input))));
    return made;
  }
  Row row(int threads, const char* how) const {
    Row made;
    made.id = "models";
    made.shape = fmt::format("{}, {}, {}", network_.about, how, threads_text(threads));
    made.peer_name = "ONNX Runtime";
    made.goal = 1.0;
    return made;
  }
  void without(Row made, const std::string& why) const {
    made.note = why;
    context_.emit(std::move(made));
  }

  Context& context_;
  const Network& network_;
  std::int64_t short_, long_;
  app::ScratchFolder folder_{"millrace-bench"};
  std::string note_;
};

}  // namespace

std::set<std::string> network_names() {
  std::set<std::string> names;
  for (const Network& network : networks) names.insert(network.name);
  return names;
}

void measure_networks(Context& context) {
  for (const Network& network : networks) {
    if (!context.networks.empty() && !context.networks.contains(network.name)) continue;
    const NetworkRows rows(context, network);
    for (const int threads : context.threads) rows.whole(threads);
    rows.live();
  }
}

}  // namespace millrace::bench
