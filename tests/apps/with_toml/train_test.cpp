// SPDX-License-Identifier: Apache-2.0
// millrace train as a person starts it: what it writes, that it writes it again, that it goes on after a kill, and what it says when it cannot.
#include <chrono>
#include <fstream>
#include <thread>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/training/metrics.h>

#include <apps/process.h>
#include "support/bytes.h"
#include "support/random_tensor.h"

using namespace millrace;
using namespace millrace::testing;
namespace fs = std::filesystem;

namespace {

/// Ragged rows whose class is the feature that is greatest on average; or the class of each row is its own greatest feature.
NpzTensors problem(std::uint64_t seed, std::int64_t sequences, bool per_row = false) {
  Random random(seed);
  std::vector<std::int64_t> lengths, labels;
  std::vector<float> rows;
  for (std::int64_t i = 0; i < sequences; ++i) {
    lengths.push_back(random.between(1, 9));
    const std::int64_t label = random.between(0, 2);
    if (!per_row) labels.push_back(label);
    for (std::int64_t t = 0; t < lengths.back(); ++t) {
      const std::int64_t greatest = per_row ? random.between(0, 2) : label;
      if (per_row) labels.push_back(greatest);
      for (std::int64_t c = 0; c < 3; ++c)
        rows.push_back(static_cast<float>(random.between(-100, 100)) / 100.0f + (c == greatest ? (per_row ? 2.1f : 0.8f) : 0.0f));
    }
  }
  return {{"rows", Tensor::from(rows, {static_cast<std::int64_t>(rows.size()) / 3, 3})},
          {"lengths", Tensor::from(lengths, {sequences})},
          {"labels", Tensor::from(labels, {static_cast<std::int64_t>(labels.size())})}};
}

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// A job over 60 sequences, of 4 batches an epoch.
struct Job {
  ScratchFolder folder;
  std::string config = R"(epochs = 12
[data]
train = "train.npz"
test = "test.npz"
validation = 0.2
standardize = true
[[layer]]
kind = "lstm"
units = 8
[training]
batch_sequences = 12
learning_rate = 0.02
clip_norm = 1.0
[checkpoint]
every_steps = 3
every_seconds = 0.0
)";

  explicit Job(bool per_row = false) {
    write_npz(folder / "train.npz", problem(1, 60, per_row));
    write_npz(folder / "test.npz", problem(2, 40, per_row));
  }
  std::vector<std::string> command(const std::string& out, std::vector<std::string> more = {}) const {
    write_text(folder / "c.toml", config);
    std::vector<std::string> words{"train", (folder / "c.toml").string(), "--output", (folder / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string file(const std::string& name) const { return read_file(folder / name); }
};

const std::vector<std::string> results{"metrics.jsonl", "curves.svg", "model.mr", "model.safetensors", "live.mr", "live.safetensors"};

}  // namespace

TEST_CASE("a job learns, tells how, and writes the same bits again, whatever the threads") {
  const Job job;
  const Ended ended = millrace_command(job.command("a"));
  INFO("stdout ", ended.out, " stderr ", ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("48 sequences") != std::string::npos);
  CHECK(ended.out.find("epoch 12/12 loss ") != std::string::npos);
  const auto last = ended.out.rfind("final: test_accuracy=");
  REQUIRE(last != std::string::npos);
  CHECK(std::stod(ended.out.substr(last + 21)) > 0.75);
  CHECK(ended.out.back() == '\n');
  const std::string metrics = job.file("a/metrics.jsonl");
  CHECK(std::count(metrics.begin(), metrics.end(), '\n') == 13);
  CHECK(metrics.find("{\"final\": true, \"epoch\": 12, \"step\": 48") != std::string::npos);

  REQUIRE(millrace_command(job.command("b", {"--threads", "2", "--quiet"})).code == 0);
  for (const std::string& name : results) {
    INFO(name);
    CHECK(job.file("b/" + name) == job.file("a/" + name));
  }
  Job recomputed;
  recomputed.config.replace(recomputed.config.find("[training]"), 10, "[training]\nmemory = \"recompute\"");
  REQUIRE(millrace_command(recomputed.command("a", {"--quiet"})).code == 0);
  CHECK(recomputed.file("a/model.safetensors") == job.file("a/model.safetensors"));
  REQUIRE(millrace_command(job.command("c", {"--seed", "2", "--quiet"})).code == 0);
  CHECK(job.file("c/model.safetensors") != job.file("a/model.safetensors"));
}

TEST_CASE("what was trained is run and streamed with the figures that the job gave") {
  const Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const NpzTensors test = problem(2, 40);
  std::string lod;
  for (const std::int64_t length : test.at("lengths").to_vector<std::int64_t>()) lod += (lod.empty() ? "" : ",") + std::to_string(length);
  const auto run = [&](const std::string& model, const std::string& out) {
    const Ended ended =
        millrace_command({"run", (job.folder / ("a/" + model)).string(), "--input", "x=" + (job.folder / "test.npz").string() + ":rows",
                          "--lod", "x=[[" + lod + "]]", "--output-dir", (job.folder / out).string()});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return read_npy(job.folder / (out + "/scores.npy"));
  };
  const Tensor whole = run("model.mr", "whole"), live = run("live.mr", "live");
  const std::int64_t right = training::count_right(whole, test.at("labels"));
  CHECK(job.file("a/metrics.jsonl").find(fmt::format("\"test_accuracy\": {}", static_cast<double>(right) / 40)) != std::string::npos);
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    row += test.at("lengths").to_vector<std::int64_t>()[static_cast<std::size_t>(i)];
    CHECK(live.rows(row - 1, row).to_vector<float>() == whole.rows(i, i + 1).to_vector<float>());
  }
}

TEST_CASE("a job that is killed again and again ends with the bits of one that never was") {
  const Job job;
  REQUIRE(millrace_command(job.command("whole", {"--quiet"})).code == 0);
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::string out = "killed" + std::to_string(seed);
    int kills = 0;
    for (bool over = false; !over;) {
      REQUIRE(kills < 200);
      const bool resumed = fs::exists(job.folder / (out + "/checkpoints")) && !fs::is_empty(job.folder / (out + "/checkpoints"));
      Process process(job.command(out, resumed ? std::vector<std::string>{"--quiet", "--resume"} : std::vector<std::string>{"--quiet"}));
      std::this_thread::sleep_for(std::chrono::milliseconds(random.between(5, 250)));
      process.signal(SIGKILL);
      const int code = process.wait();
      INFO("stderr ", process.err());
      over = code == 0;
      if (!over) {
        const bool nothing_yet = process.err().find("expected a checkpoint to resume from") != std::string::npos;
        REQUIRE((code == -SIGKILL || nothing_yet));
        if (nothing_yet) fs::remove_all(job.folder / out);
        ++kills;
      }
    }
    for (const std::string& name : results) {
      INFO(name, " after ", kills, " kills");
      CHECK(job.file(out + "/" + name) == job.file("whole/" + name));
    }
  }
}

TEST_CASE("a signal that asks for an end leaves a checkpoint to go on from") {
  Job job;
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 4000");
  Process process(job.command("a"));
  process.first_line();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.signal(SIGTERM);
  CHECK(process.wait() == 1);
  INFO(process.err());
  CHECK(process.err().find("--resume goes on from there") != std::string::npos);
  job.config.replace(job.config.find("epochs = 4000"), 13, "epochs = 12");
  check_refused(job.command("a", {"--resume", "--quiet"}), 1, {"another config"});
}

TEST_CASE("a torn checkpoint is skipped, and one of another seed or data refused") {
  const Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const std::string wanted = job.file("a/model.safetensors");
  write_text(job.folder / "a/checkpoints/step-48/weights.safetensors", "torn");
  const Ended ended = millrace_command(job.command("a", {"--resume"}));
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(ended.out.find("a checkpoint is skipped: ") != std::string::npos);
  CHECK(job.file("a/model.safetensors") == wanted);
  check_refused(job.command("a", {"--resume", "--quiet", "--seed", "5"}), 1, {"another seed"});
  write_npz(job.folder / "train.npz", problem(7, 60));
  check_refused(job.command("a", {"--resume", "--quiet"}), 1, {"another data"});
  check_refused(job.command("none", {"--resume", "--quiet"}), 1, {"expected a checkpoint to resume from, found none"});
}

TEST_CASE("targets of rows, other layers and a text are trained too") {
  Job job(true);
  job.config.replace(job.config.find("[[layer]]"), 0, "targets = \"row\"\n");
  job.config += "[[layer]]\nkind = \"linear\"\nunits = 6\nactivation = \"relu\"\n";
  for (const char* kind : {"gru", "rnn"})
    for (const char* direction : {"forward", "bidirectional"}) {
      INFO(kind, " ", direction);
      const std::string before = job.config;
      job.config.replace(job.config.find("\"lstm\""), 6, fmt::format("\"{}\"\ndirection = \"{}\"", kind, direction));
      const Ended ended = millrace_command(job.command(kind, {"--quiet"}));
      job.config = before;
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK(std::stod(ended.out.substr(ended.out.find('=') + 1)) > 0.7);  // a third is right by chance
    }
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the wheel turns and ";
  write_text(job.folder / "t.txt", text);
  job.config =
      "epochs = 15\n[data]\ntrain = \"t.txt\"\ntest = \"t.txt\"\nformat = \"text\"\nlength = 40\n"
      "[[layer]]\nkind = \"embedding\"\nunits = 8\n[[layer]]\nkind = \"gru\"\nunits = 24\n[training]\nlearning_rate = 0.02\n";
  const Ended ended = millrace_command(job.command("text", {"--quiet"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(std::stod(ended.out.substr(ended.out.find('=') + 1)) > 0.8);
}

TEST_CASE("what drops out is a function of seed, epoch and sequence, and nothing drops out of what is exported") {
  Job job;
  job.config.replace(job.config.find("units = 8"), 9, "units = 8\ndropout = 0.3\n[[layer]]\nkind = \"gru\"\nunits = 6\ndropout = 0.2");
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  REQUIRE(millrace_command(job.command("b", {"--quiet", "--threads", "2"})).code == 0);
  CHECK(job.file("a/model.safetensors") == job.file("b/model.safetensors"));
  CHECK(job.file("a/model.mr").find("dropout") == std::string::npos);
  const std::string with = job.config;
  for (const char* line : {"dropout = 0.3\n", "dropout = 0.2\n"}) job.config.erase(job.config.find(line), 14);
  REQUIRE(millrace_command(job.command("c", {"--quiet"})).code == 0);
  CHECK(job.file("a/model.safetensors") != job.file("c/model.safetensors"));
  job.config = with;
  // A job that stopped within an epoch draws what it would have drawn.
  fs::remove_all(job.folder / "b/checkpoints/step-48");
  fs::remove(job.folder / "b/model.safetensors");
  REQUIRE(millrace_command(job.command("b", {"--quiet", "--resume"})).code == 0);
  CHECK(job.file("a/model.safetensors") == job.file("b/model.safetensors"));
}

TEST_CASE("values are learned with the mean square") {
  Job job;
  NpzTensors tensors = problem(1, 60);
  std::vector<float> values;
  for (const std::int64_t label : tensors.at("labels").to_vector<std::int64_t>()) values.push_back(static_cast<float>(label) - 1);
  tensors["labels"] = Tensor::from(values, {60, 1});
  write_npz(job.folder / "train.npz", tensors);
  write_npz(job.folder / "test.npz", tensors);
  job.config += "[model]\nloss = \"mse\"\n";
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.starts_with("final: test_loss="));
  CHECK(std::stod(ended.out.substr(17)) < 0.55);  // 0.67 is that of the mean
  job.config.replace(job.config.find("\"mse\""), 5, "\"cross_entropy\"");
  check_refused(job.command("a", {"--quiet"}), 1, {"train.npz", "expected classes, i64, for cross_entropy"});
}

TEST_CASE("whatever is wrong is one line that names the place, and an old checkpoint stays") {
  Job job;
  const std::string good = job.config;
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const auto wrong = [&](const std::string& from, const std::string& to, const std::vector<std::string>& words) {
    job.config = good;
    job.config.replace(job.config.find(from), from.size(), to);
    check_refused(job.command("a", {"--quiet", "--resume"}), 1, words);
    job.config = good;
  };
  wrong("units = 8", "unit = 8", {"c.toml:9: [[layer]]: expected the keys kind, units", "found 'unit'"});
  wrong("\"test.npz\"", "\"no.npz\"", {"no.npz: cannot open: No such file"});
  wrong("kind = \"lstm\"", "kind = \"embedding\"", {"layer 1 (embedding): expected an embedding first, over numbers of words"});
  check_refused({"train", (job.folder / "no.toml").string()}, 1, {"no.toml: cannot open"});
  check_refused({"train"}, 2, {"CONFIG"});
  check_refused(job.command("a", {"--epochs", "0"}), 2, {"--epochs"});

  NpzTensors broken = problem(1, 60);
  Tensor rows = Tensor::from(broken.at("rows").to_vector<float>(), broken.at("rows").dims());
  rows[DDim{100, 1}] = std::numeric_limits<double>::quiet_NaN();
  broken["rows"] = rows;
  write_npz(job.folder / "train.npz", broken);
  job.config.erase(job.config.find("standardize = true\n"), 19);
  check_refused(job.command("nan", {"--quiet"}), 1, {"expected a finite loss, found nan", "epoch 1, batch ", "c.toml"});

  // A disk that is full.
  const char* bin = std::getenv("MILLRACE_BIN");
  const std::string program = std::string(bin == nullptr ? "build/release/bin" : bin) + "/millrace";
  const Job full;
  full.command("a");
  const std::string command = fmt::format("ulimit -f 4; '{}' train '{}' --output '{}' --quiet >'{}' 2>&1", program,
                                          (full.folder / "c.toml").string(), (full.folder / "a").string(), (full.folder / "log").string());
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 1);
  const std::string log = full.file("log");
  INFO(log);
  CHECK(log.starts_with("millrace: "));
  CHECK(log.find("cannot write: File too large") != std::string::npos);
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);
}
