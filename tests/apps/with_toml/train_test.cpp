// SPDX-License-Identifier: Apache-2.0
// millrace train as a person starts it: what it writes, that it writes it again, that it goes on after a kill, and what it says when it cannot.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/training/checkpoint.h>
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
  for (const std::string memory : {"recompute", "spill"}) {
    Job other;
    other.config.replace(other.config.find("[training]"), 10, "[training]\nmemory = \"" + memory + "\"");
    REQUIRE(millrace_command(other.command("a", {"--quiet"})).code == 0);
    CHECK(other.file("a/model.safetensors") == job.file("a/model.safetensors"));
  }
  const Ended spilled = millrace_command(job.command("s", {"--memory", "spill", "--stats"}));
  REQUIRE(spilled.code == 0);
  CHECK(job.file("s/model.safetensors") == job.file("a/model.safetensors"));
  CHECK(spilled.out.find(" under spill kept 0 bytes, and ") != std::string::npos);
  check_refused(job.command("s", {"--memory", "forget"}), 2, {"--memory", "expected keep, spill", "found 'forget'"});
  Job rows;
  rows.config.replace(rows.config.find("lstm"), 4, "linear");
  check_refused(rows.command("a", {"--quiet", "--memory", "recompute(3)"}), 1,
                {"c.toml: memory: expected keep for layers none of which is recurrent, found recompute(3)"});
  CHECK(millrace_command(rows.command("a", {"--quiet", "--memory", "keep", "--epochs", "1"})).code == 0);
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

namespace {

/// The newest step of which the job's folder has a checkpoint; 0: none.
std::int64_t newest_checkpoint(const fs::path& out) {
  const std::vector<std::int64_t> steps = training::CheckpointFolder(out / "checkpoints").steps();
  return steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end());
}

/// Starts the job again and again, each time with a kill behind one of `steps` or, where that step is over, while it starts. Then the job runs to
/// its end. Gives the number of processes that were killed.
int train_with_kills(const Job& job, const std::string& out, const std::vector<std::int64_t>& steps, Random& random) {
  int kills = 0;
  const auto start = [&] {
    const bool resumed = newest_checkpoint(job.folder / out) > 0;
    return job.command(out, resumed ? std::vector<std::string>{"--quiet", "--resume"} : std::vector<std::string>{"--quiet"});
  };
  for (const std::int64_t step : steps) {
    const bool over = newest_checkpoint(job.folder / out) >= step;
    Process process(start());
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (newest_checkpoint(job.folder / out) < step && std::chrono::steady_clock::now() < late)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, over ? 60'000 : 5'000)));
    process.signal(SIGKILL);
    const int code = process.wait();
    INFO("stderr ", process.err());
    REQUIRE((code == -SIGKILL || code == 0));
    kills += code == -SIGKILL;
  }
  const Ended ended = millrace_command(start());
  INFO("stderr ", ended.err);
  REQUIRE(ended.code == 0);
  return kills;
}

}  // namespace

// MILLRACE_KILLS: how many.
TEST_CASE("a job of 200 steps that is killed at random instants ends with the bits of one that never was") {
  Job job;
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 50");
  job.config.replace(job.config.find("every_steps = 3"), 15, "every_steps = 4");
  REQUIRE(millrace_command(job.command("whole", {"--quiet"})).code == 0);
  const char* wanted = std::getenv("MILLRACE_KILLS");
  for (const std::uint64_t seed : seeds(1)) {
    INFO("seed ", seed);
    Random random(seed);
    std::vector<std::int64_t> steps(wanted == nullptr ? 8 : std::strtoull(wanted, nullptr, 10));
    for (std::int64_t& step : steps) step = random.between(0, 195);
    std::sort(steps.begin(), steps.end());
    const int kills = train_with_kills(job, "killed", steps, random);
    MESSAGE(kills, " kills");
    CHECK(kills > 0);
    const std::string state = "checkpoints/step-200/";
    for (const char* name : {"weights", "optimizer", "best", "history"})
      CHECK(fs::exists(job.folder / ("whole/" + state + name + ".safetensors")));
    std::vector<std::string> files = results;
    for (const auto& file : fs::directory_iterator(job.folder / ("whole/" + state)))
      files.push_back(state + file.path().filename().string());
    for (const std::string& name : files) {
      INFO(name, " after ", kills, " kills");
      CHECK(job.file("killed/" + name) == job.file("whole/" + name));
    }
    fs::remove_all(job.folder / "killed");
  }
}

TEST_CASE("a signal that asks for an end leaves a checkpoint to go on from") {
  Job job;
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 4000");
  for (const int signal : {SIGHUP, SIGTERM}) {
    Process process(job.command("a"));
    process.first_line();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    process.signal(signal);
    CHECK(process.wait() == 1);
    INFO("signal ", signal, " stderr ", process.err());
    CHECK(process.err().find("--resume goes on from there") != std::string::npos);
  }
  job.config.replace(job.config.find("units = 8"), 9, "units = 9");
  check_refused(job.command("a", {"--resume", "--quiet"}), 1, {"another config: [[layer]] 1 units: 8 there, 9 here"});
}

TEST_CASE("no drawing of a job is wider than its terminal, and an end that is asked for has a line of its own") {
  Job job;
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 4000");
  for (const unsigned short columns : {40, 80, 200}) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(terminal >= 0);
    REQUIRE(::grantpt(terminal) == 0);
    REQUIRE(::unlockpt(terminal) == 0);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
    Process process(job.command("a"), ::ptsname(terminal));
    std::string drawn;
    char bytes[4096];
    bool asked = false;
    for (ssize_t read = 0; (read = ::read(terminal, bytes, sizeof bytes)) > 0;) {  // EIO: the process has ended
      drawn.append(bytes, static_cast<std::size_t>(read));
      if (asked || std::count(drawn.begin(), drawn.end(), '\r') <= 8) continue;
      asked = true;
      process.signal(SIGTERM);
    }
    ::close(terminal);
    CHECK(process.wait() == 1);
    INFO("columns ", columns, " drawn ", drawn);
    CHECK(drawn.ends_with("\x1b[K\r\n"));
    CHECK((drawn.find("\r[") == std::string::npos) == (columns == 40));
    std::size_t drawings = 0;
    for (std::size_t end = drawn.find("\x1b[K"); end != std::string::npos; end = drawn.find("\x1b[K", end + 1)) {
      const std::size_t begin = drawn.rfind('\r', end) + 1;
      CHECK(end - begin < columns);
      drawings += end > begin;
    }
    CHECK(drawings > 2);
  }
}

TEST_CASE("a job goes on under a configuration that means the same, or has more epochs, and says which key differs") {
  Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--epochs", "4"})).code == 0);
  REQUIRE(millrace_command(job.command("b", {"--quiet", "--epochs", "14"})).code == 0);
  job.config = R"(# what was learned so far goes on
epochs = 14
seed = 1
[training]
clip_norm = 1
learning_rate = 2e-2   # a comment
batch_sequences = 12
beta1 = 0.9
[checkpoint]
every_steps = 7
[data]
standardize = true
validation = 0.20
test = 'test.npz'
train = "train.npz"
[[layer]]
units = 8
kind = "lstm"
)";
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--resume"})).code == 0);
  CHECK(job.file("a/model.safetensors") == job.file("b/model.safetensors"));
  const auto differs = [&](const std::string& from, const std::string& to, const std::string& words) {
    const std::string good = job.config;
    job.config.replace(job.config.find(from), from.size(), to);
    check_refused(job.command("a", {"--quiet", "--resume"}), 1, {words});
    job.config = good;
  };
  differs("learning_rate = 2e-2", "learning_rate = 0.03", "another config: [training] learning_rate: 0.02 there, 0.03 here");
  differs("test = 'test.npz'", "test = 'train.npz'", "another config: [data] test: \"test.npz\" there, \"train.npz\" here");
  differs("[[layer]]", "[[layer]]\nkind = 'gru'\nunits = 4\n[[layer]]", "another config: [[layer]] 1 kind: lstm there, gru here");
  differs("kind = \"lstm\"", "kind = \"lstm\"\n[[layer]]\nkind = 'gru'\nunits = 4",
          "another config: [[layer]] 2 activation: nothing there, \"\" here");
  differs("beta1 = 0.9", "memory = \"truncate(3)\"", "another config: [training] memory: keep there, truncate(3, 3) here");
  differs("epochs = 14", "epochs = 2", "expected at least");
}

TEST_CASE("a checkpoint of an earlier build, which has the hash of its configuration alone, is resumed where the text is the same") {
  Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--epochs", "2"})).code == 0);
  training::CheckpointFolder checkpoints(job.folder / "a/checkpoints");
  std::optional<training::Checkpoint> last = checkpoints.load();
  REQUIRE(last);
  REQUIRE(last->fields.erase("configuration") == 1);
  checkpoints.save(*last);
  job.config += "# a comment\n";
  check_refused(job.command("a", {"--quiet", "--resume", "--epochs", "4"}), 1, {"another config"});
  job.config.erase(job.config.find("# a comment"));
  CHECK(millrace_command(job.command("a", {"--quiet", "--resume", "--epochs", "4"})).code == 0);
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

TEST_CASE("a checkpoint that has begun more epochs than are asked for is refused, and a finished job of as many ends again") {
  Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--epochs", "3"})).code == 0);
  const std::string metrics = job.file("a/metrics.jsonl");
  check_refused(job.command("a", {"--resume", "--quiet", "--epochs", "2"}), 1, {"checkpoints: expected at least 3 epochs", "found 2"});
  const Ended again = millrace_command(job.command("a", {"--resume", "--epochs", "3"}));
  CHECK(again.code == 0);
  CHECK(again.out.find("resumed at step 12, behind the last epoch\n") != std::string::npos);
  CHECK(job.file("a/metrics.jsonl") == metrics);
}

TEST_CASE("data with the same numbers and other letters, words or classes is other data") {
  const ScratchFolder folder;
  const auto train = [&](const std::string& head, const std::string& name, const std::string& data, bool resume) {
    write_text(folder / name, data);
    write_text(folder / "c.toml", "epochs = 1\n[data]\ntrain = \"" + name + "\"\n" + head);
    std::vector<std::string> words{"train", (folder / "c.toml").string(), "--quiet", "--output", (folder / name.substr(0, 1)).string()};
    if (!resume) {
      CHECK(millrace_command(words).code == 0);
      return;
    }
    words.insert(words.end(), {"--resume", "--epochs", "2"});
    check_refused(words, 1, {"another data"});
  };
  const std::string embedding = "[[layer]]\nkind = \"embedding\"\nunits = 4\n[[layer]]\nkind = \"gru\"\nunits = 4\n";
  const std::string text = "format = \"text\"\nlength = 8\n" + embedding;
  train(text, "a.txt", "abcabcabcaabbcc", false);
  train(text, "a.txt", "xyzxyzxyzxxyyzz", true);
  const auto series = [](const std::string& first, const std::string& second) {
    return "@problemName p\n@timestamps false\n@univariate true\n@classLabel true " + first + " " + second + "\n@data\n1,2,3:" + first +
           "\n4,5:" + second + "\n";
  };
  train("[[layer]]\nkind = \"gru\"\nunits = 4\n", "t.ts", series("a", "b"), false);
  train("[[layer]]\nkind = \"gru\"\nunits = 4\n", "t.ts", series("x", "y"), true);
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

namespace {

/// Sentences of 1 to 8 words out of three lists, whose places in them are their tags.
std::string tagged(std::uint64_t seed, std::int64_t sentences) {
  const std::vector<std::vector<std::string>> words{{"the", "a"}, {"mill", "race", "water"}, {"turns", "runs", "\"stops, then\""}};
  const char* const tags[] = {"D", "N", "V"};
  Random random(seed);
  std::string text = "sentence,word,tag\n";
  for (std::int64_t i = 0; i < sentences; ++i)
    for (std::int64_t k = random.between(1, 8); k > 0; --k) {
      const auto tag = static_cast<std::size_t>(random.between(0, 2));
      const auto word = static_cast<std::size_t>(random.between(0, std::ssize(words[tag]) - 1));
      text += fmt::format("s{},{},{}\n", i, words[tag][word], tags[tag]);
    }
  return text;
}

constexpr const char* tagging_config = R"(# [tagging]
epochs = 12
[data]
train = "train.csv"
test = "test.csv"
targets = "row"                # a tag for each word
sequence_column = "sentence"
target_columns = "tag"
[[layer]]
kind = "embedding"
units = 8
[[layer]]
kind = "gru"
units = 16
direction = "bidirectional"
[training]
learning_rate = 0.02
# [tagging]
)";

}  // namespace

TEST_CASE("words of a CSV file are tagged, and a series of numbers is continued") {
  Job job;
  job.config = tagging_config;
  write_text(job.folder / "train.csv", tagged(1, 100));
  write_text(job.folder / "test.csv", tagged(2, 30) + "s99,unheard,N\n");
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(std::stod(ended.out.substr(ended.out.find('=') + 1)) > 0.95);
  CHECK(job.file("a/classes.txt") == "D\nN\nV\n");
  CHECK(job.file("a/words.txt") == "\na\nmill\nrace\nruns\nstops, then\nthe\nturns\nwater\n");
  write_text(job.folder / "test.csv", tagged(2, 30) + "s99,mill,X\n");
  check_refused(job.command("a", {"--quiet"}), 1, {"test.csv:", "expected a class of the training data, found 'X'"});
  write_text(job.folder / "train.csv", "sentence,word,tag\n");
  check_refused(job.command("a", {"--quiet"}), 1, {"train.csv: expected at least one sequence to train on, found none"});

  std::string series = "x;next\n";
  for (int i = 0; i < 600; ++i) series += fmt::format("{:.5f};{:.5f}\n", std::sin(i / 5.0), std::sin((i + 1) / 5.0));
  write_text(job.folder / "wave.csv", series);
  job.config =
      "epochs = 30\n[data]\ntrain = \"wave.csv\"\ntest = \"wave.csv\"\nseries = true\nlength = 50\ntargets = \"row\"\ntarget_columns = "
      "\"next\"\n"
      "separator = \";\"\n[model]\nloss = \"mse\"\n[[layer]]\nkind = \"rnn\"\nunits = 16\n[training]\nbatch_sequences = 4\nlearning_rate = "
      "0.01\n";
  const Ended continued = millrace_command(job.command("wave", {"--quiet"}));
  INFO(continued.err);
  REQUIRE(continued.code == 0);
  CHECK(std::stod(continued.out.substr(continued.out.find('=') + 1)) < 0.02);  // 0.5 is that of the mean
  job.config.replace(job.config.find("wave.csv"), 8, "train.npz");
  check_refused(job.command("wave", {"--quiet"}), 1, {"expected a .csv or .tsv file for the keys of columns", "train.npz"});
}

TEST_CASE("numbers of a .ts file are learned with the mean square, and its classes are not") {
  Job job;
  std::string lines;
  for (int i = 0; i < 24; ++i) lines += fmt::format("{0},{1}:{1},0.5:{2}\n", i % 3, i % 5, 0.25 * (i % 3));
  write_text(job.folder / "a.ts", "@timestamps false\n@targetlabel true\n@data\n" + lines);
  job.config = "epochs = 3\n[data]\ntrain = \"a.ts\"\ntest = \"a.ts\"\n[[layer]]\nkind = \"gru\"\nunits = 4\n[model]\nloss = \"mse\"\n";
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  CHECK(ended.code == 0);
  CHECK(ended.out.find("test_loss=") != std::string::npos);
  write_text(job.folder / "a.ts", "@classLabel true 0 0.25 0.5\n@data\n" + lines);
  check_refused(job.command("a", {"--quiet"}), 1, {"a.ts: expected floating values for mse, found classes"});
}

TEST_CASE("the demo of a trained classifier says what it heard, and no line for each session") {
  Job job;
  std::string lines;
  for (int i = 0; i < 24; ++i) lines += fmt::format("{0},{1},0.5:{2}\n", i % 3, i % 5, i % 3);
  write_text(job.folder / "a.ts", "@timestamps false\n@classLabel true 0 1 2\n@data\n" + lines);
  job.config = "epochs = 3\n[data]\ntrain = \"a.ts\"\n[[layer]]\nkind = \"gru\"\nunits = 4\n";
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const char* set = std::getenv("MILLRACE_BIN");
  const std::string bin = set == nullptr ? "build/release/bin" : set;
  const std::string command = fmt::format("'{0}/millrace-demo' --bin '{0}' --trained '{1}' --sequences '{2}' >'{3}' 2>&1", bin,
                                          (job.folder / "a").string(), (job.folder / "a.ts").string(), (job.folder / "log").string());
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 0);
  const std::string log = job.file("log");
  INFO(log);
  CHECK(log.starts_with("live: the speaker"));
  CHECK(log.find("demo: 24 sessions live") != std::string::npos);
  CHECK(std::count(log.begin(), log.end(), '\n') == 7);
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
  // Milliseconds of an epoch: a mean square that no epoch moves.
  NpzTensors great = tensors;
  for (float& value : values) value = 1.7e12f + 6e4f * value;
  great["labels"] = Tensor::from(values, {60, 1});
  write_npz(job.folder / "train.npz", great);
  const Ended wide = millrace_command(job.command("wide", {"--epochs", "1"}));
  CHECK(wide.code == 0);
  CHECK(job.file("wide/curves.svg").find("nan") == std::string::npos);
  write_npz(job.folder / "train.npz", tensors);
  job.config.replace(job.config.find("\"mse\""), 5, "\"cross_entropy\"");
  check_refused(job.command("a", {"--quiet"}), 1,
                {"train.npz: expected classes, i64, for cross_entropy (loss = \"mse\" is for numbers), found f32"});
}

namespace {

/// Sequences of letters 0 … 5; each one's tokens are its letters from the last to the first, less letter 5.
NpzTensors turned(std::uint64_t seed, std::int64_t sequences) {
  Random random(seed);
  std::vector<std::int64_t> rows, lengths, labels, label_lengths;
  for (std::int64_t i = 0; i < sequences; ++i) {
    lengths.push_back(random.between(0, 5));
    for (std::int64_t k = 0; k < lengths.back(); ++k) rows.push_back(random.between(0, 5));
    label_lengths.push_back(0);
    for (std::int64_t k = 1; k <= lengths.back(); ++k)
      if (rows[rows.size() - static_cast<std::size_t>(k)] != 5)
        labels.push_back(rows[rows.size() - static_cast<std::size_t>(k)]), ++label_lengths.back();
  }
  const auto tensor = [](const std::vector<std::int64_t>& values) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
  };
  return {{"rows", tensor(rows)}, {"lengths", tensor(lengths)}, {"labels", tensor(labels)}, {"label_lengths", tensor(label_lengths)}};
}

double figure(const std::string& line, const std::string& name) {
  const auto at = line.find(name + "=");
  INFO(line);
  REQUIRE(at != std::string::npos);
  return std::stod(line.substr(at + name.size() + 1));
}

}  // namespace

TEST_CASE("a decoder with attention learns to turn sequences around, and its beam search runs from the file") {
  Job job;
  write_npz(job.folder / "train.npz", turned(1, 400));
  write_npz(job.folder / "test.npz", turned(2, 60));
  job.config = R"(epochs = 30
[data]
train = "train.npz"
test = "test.npz"
targets = "tokens"
[[layer]]
kind = "embedding"
units = 8
[[layer]]
kind = "gru"
units = 16
direction = "bidirectional"
dropout = 0.05
[decoder]
units = 24
embedding = 8
beam = 3
max_length = 8
[training]
batch_sequences = 20
learning_rate = 0.02
schedule = "cosine"
clip_norm = 1.0
)";
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  INFO(ended.out, ended.err);
  REQUIRE(ended.code == 0);
  CHECK(figure(ended.out, "test_accuracy") > 0.95);
  CHECK(figure(ended.out, "test_token_error_greedy") < 0.06);
  CHECK(figure(ended.out, "test_token_error_beam") < 0.06);
  CHECK(job.file("a/metrics.jsonl").find("\"test_token_error_beam\": ") != std::string::npos);
  CHECK(!fs::exists(job.folder / "a/live.mr"));

  write_npy(job.folder / "x.npy", Tensor::from<std::int64_t>({0, 1, 2, 4, 5, 3}));
  const Ended run = millrace_command({"run", (job.folder / "a/model.mr").string(), "--input", "x=" + (job.folder / "x.npy").string(),
                                      "--lod", "x=[[3,0,3]]", "--output-dir", (job.folder / "out").string()});
  INFO(run.err);
  REQUIRE(run.code == 0);
  // The best of three hypotheses of the first sequence comes first.
  const std::vector<std::int64_t> tokens = read_npy(job.folder / "out/tokens.npy").to_vector<std::int64_t>();
  REQUIRE(tokens.size() > 4);
  CHECK(std::vector<std::int64_t>(tokens.begin(), tokens.begin() + 4) == std::vector<std::int64_t>{2, 1, 0, 5});

  // A job that stops and goes on, and one of two threads, have the same bits.
  REQUIRE(millrace_command(job.command("b", {"--quiet", "--threads", "2"})).code == 0);
  CHECK(job.file("b/model.safetensors") == job.file("a/model.safetensors"));
  const auto wrong = [&](const std::string& from, const std::string& to, const std::vector<std::string>& words) {
    const std::string good = job.config;
    job.config.replace(job.config.find(from), from.size(), to);
    check_refused(job.command("c", {"--quiet"}), 1, words);
    job.config = good;
  };
  wrong("\"tokens\"", "\"row\"", {"c.toml", "[decoder]: expected targets = \"tokens\" in [data] with it"});
  wrong("beam = 3", "beams = 3", {"[decoder]: expected the keys units, embedding, beam", "found 'beams'"});
  wrong("kind = \"gru\"\nunits = 16\ndirection = \"bidirectional\"", "kind = \"linear\"\nunits = 16",
        {"decoder: expected a recurrent layer in front of it, found none"});
  check_refused(job.command("c", {"--quiet", "--memory", "truncate(3, 5)"}), 1,
                {"c.toml: memory: expected truncate of one number beside [decoder], found truncate(3, 5)"});
  NpzTensors broken = turned(1, 400);
  broken.erase("label_lengths");
  write_npz(job.folder / "train.npz", broken);
  check_refused(job.command("c", {"--quiet"}), 1, {"train.npz: expected a tensor 'label_lengths', found labels, lengths, rows"});
}

namespace {

/// The job becomes that of a language model of 300 copies of `piece`, with the tables `model` behind its data.
void learn_text(Job& job, const std::string& piece, int epochs, const std::string& model) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += piece;
  write_text(job.folder / "text", text);
  job.config = fmt::format("epochs = {}\n[data]\ntrain = \"text\"\nformat = \"text\"\nlength = 30\n{}", epochs, model);
}

}  // namespace

TEST_CASE("a language model writes on, the same text for a seed, from each of the files that its job exports") {
  Job job;
  learn_text(job, "abcd.\n", 6, R"([[layer]]
kind = "embedding"
units = 6
[[layer]]
kind = "gru"
units = 16
[training]
batch_sequences = 6
learning_rate = 0.02
clip_norm = 1.0
)");
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const auto sample = [&](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> words{"sample", (job.folder / model).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = millrace_command(words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return ended.out;
  };
  CHECK(sample("a", {"--length", "11", "--top-k", "1"}) == "\nabcd.\nabcd.\n");
  CHECK(sample("a", {"--length", "4", "--top-k", "1", "--prompt", "d.\nab"}) == "d.\nabcd.\n\n");
  // A temperature that makes bytes nearly equal shows the draws.
  const std::vector<std::string> hot{"--length", "60", "--temperature", "8", "--seed", "5"};
  const std::string drawn = sample("a/live.mr", hot);
  CHECK(drawn.size() == 62);
  CHECK(sample("a", hot) == drawn);
  CHECK(sample("a/model.mr", hot) == drawn);
  CHECK(sample("a", {"--length", "60", "--temperature", "8", "--seed", "6"}) != drawn);
  const std::string narrow = sample("a", {"--length", "40", "--temperature", "8", "--top-k", "2", "--prompt", "a"});
  CHECK(narrow != sample("a", {"--length", "40", "--temperature", "8", "--prompt", "a"}));
  if (fs::exists(job.folder / "a/model.onnx")) CHECK(sample("a/model.onnx", hot) == drawn);
  check_refused({"sample", (job.folder / "a").string(), "--prompt", "abx"}, 1,
                {"--prompt, byte 2: expected a byte of", "alphabet.npy, found 120"});
  check_refused({"sample", (job.folder / "no").string()}, 1, {"no: cannot open: No such file"});
  check_refused({"sample", (job.folder / "a").string(), "--temperature", "0"}, 2, {"--temperature"});
  for (const char* seed : {"-1", "2147483648", "99999999999999999999999"})
    check_refused({"sample", (job.folder / "a").string(), "--seed", seed}, 2, {"--seed", "0 to 2147483647"});
}

TEST_CASE("without a prompt, a text of an alphabet without a new line begins with its first byte") {
  Job job;
  learn_text(job, "dcba", 1, R"([[layer]]
kind = "embedding"
units = 3
[[layer]]
kind = "rnn"
units = 4
)");
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  const Ended ended = millrace_command({"sample", (job.folder / "a").string(), "--length", "9"});
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(ended.out.size() == 11);
  CHECK(ended.out.front() == static_cast<char>(read_npy(job.folder / "a" / "alphabet.npy").to_vector<std::uint8_t>().at(0)));
}

TEST_CASE("a job begins with the weights of another, and says which one does not fit") {
  Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet"})).code == 0);
  job.config += "[model]\nstart = \"a/model.safetensors\"\n";
  job.config.replace(job.config.find("learning_rate = 0.02"), 20, "learning_rate = 0.0");
  REQUIRE(millrace_command(job.command("b", {"--quiet"})).code == 0);
  CHECK(job.file("b/model.safetensors") == job.file("a/model.safetensors"));
  job.config.replace(job.config.find("units = 8"), 9, "units = 7");
  check_refused(job.command("b", {"--quiet"}), 1, {"a/model.safetensors: expected 'lstm1_0_bias' of f32[28]", "found f32[32]"});
  job.config.replace(job.config.find("kind = \"lstm\""), 13, "kind = \"rnn\"");
  check_refused(job.command("b", {"--quiet"}), 1, {"a/model.safetensors: expected a tensor 'rnn1_0_bias'", "found none"});
  job.config.replace(job.config.find("a/model.safetensors"), 19, "no.safetensors");
  check_refused(job.command("b", {"--quiet"}), 1, {"no.safetensors: cannot open"});
}

TEST_CASE("a validation or test loss that is not finite is said once, and is null in the metrics") {
  Job job;
  NpzTensors tensors = problem(1, 60);
  std::vector<float> values(60, 0.0f);
  tensors["labels"] = Tensor::from(values, {60, 1});
  write_npz(job.folder / "train.npz", tensors);
  values[3] = 3e38f;  // its square is infinite
  tensors["labels"] = Tensor::from(values, {60, 1});
  write_npz(job.folder / "test.npz", tensors);
  job.config.replace(job.config.find("validation = 0.2"), 16, "validation = \"test.npz\"");
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 3");
  job.config += "[model]\nloss = \"mse\"\n";
  const Ended ended = millrace_command(job.command("a"));
  INFO(ended.out, ended.err);
  REQUIRE(ended.code == 0);
  const auto note = ended.out.find("millrace: the validation loss of epoch 1 is not finite: inf\n");
  CHECK(note != std::string::npos);
  CHECK(ended.out.find("millrace: the validation loss", note + 1) == std::string::npos);
  CHECK(ended.out.find("millrace: the test loss is not finite: inf\n") != std::string::npos);
  CHECK(job.file("a/metrics.jsonl").find("\"validation_loss\": null") != std::string::npos);
  CHECK(job.file("a/curves.svg").find("inf") == std::string::npos);
}

TEST_CASE("at least one sequence is held out, and data without one to measure is refused by its key") {
  Job job;
  write_npz(job.folder / "one.npz", problem(1, 1));
  NpzTensors none = problem(1, 4);
  none["rows"] = none.at("rows").rows(0, 0);
  none["lengths"] = none["labels"] = Tensor::from(std::vector<std::int64_t>{}, {0});
  write_npz(job.folder / "none.npz", none);
  const std::string good = job.config;
  job.config.replace(job.config.find("validation = 0.2"), 16, "validation = 0.001");
  Ended ended = millrace_command(job.command("a", {"--epochs", "1"}));
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(ended.out.find("59 sequences") != std::string::npos);
  CHECK(ended.out.find(", 1 sequences") != std::string::npos);
  const auto refused = [&](const std::string& from, const std::string& to, const std::vector<std::string>& words) {
    job.config = good;
    job.config.replace(job.config.find(from), from.size(), to);
    check_refused(job.command("b", {"--quiet"}), 1, words);
  };
  refused("\"train.npz\"", "\"one.npz\"", {"c.toml: [data]: validation: expected at least 2 sequences in ", "one.npz", "found 1"});
  refused("\"test.npz\"", "\"none.npz\"", {"c.toml: [data]: test: expected at least one sequence in ", "none.npz, found none"});
  refused("validation = 0.2", "validation = \"none.npz\"", {"c.toml: [data]: validation: expected at least one sequence in "});
  CHECK(!fs::exists(job.folder / "b"));
}

TEST_CASE("data to validate or to test that the model has no inputs or classes for is refused before a step, by file and place") {
  Job job;
  const NpzTensors good = problem(1, 60);
  const auto refused = [&](const NpzTensors& train, const NpzTensors& further, const std::vector<std::string>& words) {
    write_npz(job.folder / "train.npz", train);
    write_npz(job.folder / "test.npz", further);
    check_refused(job.command("a", {"--quiet"}), 1, words);
    CHECK(!fs::exists(job.folder / "a"));
  };
  NpzTensors other = good;
  std::vector<std::int64_t> labels = good.at("labels").to_vector<std::int64_t>();
  labels[17] = 3;
  other["labels"] = Tensor::from(labels, {60});
  refused(good, other, {"test.npz: expected classes from 0 to 2, as in the training data, found 3 as target 17"});
  other["labels"] = Tensor::from(std::vector<float>(60), {60});
  refused(good, other, {"test.npz, targets: expected classes, i64, as in the training data, found f32"});
  other = good;
  other["rows"] = Tensor::from(std::vector<float>(static_cast<std::size_t>(good.at("rows").dim(0)) * 2), {good.at("rows").dim(0), 2});
  refused(good, other, {"test.npz, rows: expected 3 features of f32, as in the training data, found 2 features of f32"});
  other["rows"] = Tensor::from(std::vector<double>(static_cast<std::size_t>(good.at("rows").elements())), good.at("rows").dims());
  refused(good, other, {"test.npz, rows: expected 3 features of f32, as in the training data, found 3 features of f64"});

  job.config += "[model]\nloss = \"mse\"\n";
  NpzTensors wide = good, narrow = good;
  wide["labels"] = Tensor::from(std::vector<float>(120), {60, 2});
  narrow["labels"] = Tensor::from(std::vector<float>(60), {60});
  refused(wide, narrow, {"test.npz, targets: expected 2 values each, as in the training data, found f32[60, 1]"});
  refused(narrow, wide, {"test.npz, targets: expected 1 values each, as in the training data, found f32[60, 2]"});
  refused(narrow, good, {"test.npz, targets: expected values of f32, as in the training data, found i64"});

  Job words;
  NpzTensors few = good, more = good;
  const std::int64_t rows = good.at("rows").dim(0);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(rows), 4);
  few["rows"] = Tensor::from(numbers, {rows});
  numbers[9] = 5;
  more["rows"] = Tensor::from(numbers, {rows});
  write_npz(words.folder / "train.npz", few);
  write_npz(words.folder / "test.npz", more);
  words.config.erase(words.config.find("standardize = true\n"), 19);
  words.config.replace(words.config.find("[[layer]]"), 9, "[[layer]]\nkind = \"embedding\"\nunits = 4\n[[layer]]");
  check_refused(words.command("a", {"--quiet"}), 1,
                {"test.npz: expected words from 0 to 4, as in the training data, found 5 as element 9"});
}

TEST_CASE("classes that only sequences of the held-out share have are classes of the model") {
  Job job;
  NpzTensors tensors = problem(1, 10);
  std::vector<std::int64_t> labels(10);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i);
  tensors["labels"] = Tensor::from(labels, {10});
  write_npz(job.folder / "train.npz", tensors);
  job.config.erase(job.config.find("test = \"test.npz\"\n"), 18);
  for (const char* seed : {"1", "2", "3"}) {
    const Ended ended = millrace_command(job.command("a", {"--quiet", "--epochs", "1", "--seed", seed}));
    INFO(ended.err);
    CHECK(ended.code == 0);
  }
}

TEST_CASE("a job that ends removes results of an earlier one that it has none of, but no file that it read") {
  Job job;
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--epochs", "2"})).code == 0);
  REQUIRE(fs::exists(job.folder / "a/live.mr"));
  write_text(job.folder / "a/classes.txt", "of another job");
  write_text(job.folder / "a/notes.txt", "of a person");
  write_text(job.folder / "a/model.mr.tmp0", "torn");
  write_text(job.folder / "a/model.mr.tmp", "of a person");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the wheel turns and ";
  write_text(job.folder / "a/words.txt", text);
  job.config =
      "epochs = 1\n[data]\ntrain = \"a/words.txt\"\nformat = \"text\"\nlength = 40\n"
      "[[layer]]\nkind = \"embedding\"\nunits = 8\n[[layer]]\nkind = \"gru\"\nunits = 8\ndirection = \"bidirectional\"\n";
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  for (const char* gone : {"live.mr", "live.safetensors", "classes.txt", "model.mr.tmp0"}) CHECK(!fs::exists(job.folder / "a" / gone));
  for (const char* there : {"model.mr", "model.safetensors", "alphabet.npy", "notes.txt", "model.mr.tmp", "metrics.jsonl", "curves.svg"})
    CHECK(fs::exists(job.folder / "a" / there));
  CHECK(job.file("a/words.txt") == text);
}

TEST_CASE("a job that reads a file of the checkpoints in its folder is refused before it clears them") {
  Job job;
  fs::create_directories(job.folder / "a/checkpoints/step-3");
  fs::copy_file(job.folder / "train.npz", job.folder / "a/checkpoints/step-3/train.npz");
  job.config.replace(job.config.find("train.npz"), 9, "a/checkpoints/step-3/train.npz");
  write_text(job.folder / "c.toml", job.config);
  check_refused({"train", (job.folder / "c.toml").string(), "--data", job.folder.path().string(), "--output", (job.folder / "a").string()},
                1, {"step-3/train.npz", "expected inputs of the job outside the folder of its checkpoints"});
  CHECK(fs::exists(job.folder / "a/checkpoints/step-3/train.npz"));
}

TEST_CASE("a job whose results have the name of a file that it reads is refused before it writes") {
  Job job;
  const NpzTensors data = problem(1, 60);
  const auto expect_kept = [&](const std::string& name) {
    const std::string before = job.file(name);
    check_refused({"train", (job.folder / "c.toml").string(), "--data", job.folder.path().string(), "--output", job.folder.path().string()},
                  1, {name, "expected an output folder whose results are none of the job's inputs"});
    CHECK(job.file(name) == before);
    CHECK(!fs::exists(job.folder / "checkpoints"));
  };
  write_safetensors(job.folder / "model.safetensors", {{data.begin(), data.end()}, {}});
  job.config.replace(job.config.find("train.npz"), 9, "model.safetensors");
  write_text(job.folder / "c.toml", job.config);
  expect_kept("model.safetensors");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the wheel turns and ";
  write_text(job.folder / "metrics.jsonl", text);
  write_text(job.folder / "c.toml",
             "epochs = 1\n[data]\ntrain = \"metrics.jsonl\"\nformat = \"text\"\nlength = 40\n"
             "[[layer]]\nkind = \"embedding\"\nunits = 8\n[[layer]]\nkind = \"gru\"\nunits = 8\n");
  expect_kept("metrics.jsonl");
}

TEST_CASE("a schedule without decay_steps ends with the job, also where rows bound the batches") {
  Job job;
  NpzTensors data;
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 6; ++i) lengths.insert(lengths.end(), {50, 51});
  lengths.insert(lengths.end(), {1, 1, 1});
  std::int64_t rows = 0;
  for (const std::int64_t length : lengths) rows += length;
  const auto count = static_cast<std::int64_t>(lengths.size());
  data["rows"] = Tensor::from(std::vector<float>(static_cast<std::size_t>(rows), 0.5f), {rows, 1});
  data["lengths"] = Tensor::from(lengths, {count});
  data["labels"] = Tensor::from(std::vector<std::int64_t>(static_cast<std::size_t>(count), 0), {count});
  write_npz(job.folder / "train.npz", data);
  for (const int seed : {2, 5}) {
    INFO("seed ", seed);
    job.config =
        "epochs = 20\n[data]\ntrain = \"train.npz\"\n[[layer]]\nkind = \"gru\"\nunits = 2\n"
        "[training]\nbatch_sequences = 0\nbatch_rows = 101\nlearning_rate = 1e-3\nschedule = \"linear\"\n";
    const Ended ended = millrace_command(job.command("a", {"--quiet", "--seed", std::to_string(seed)}));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const std::string lines = job.file("a/metrics.jsonl");
    std::vector<double> rates, steps;
    for (std::size_t at = 0; (at = lines.find("\"learning_rate\": ", at)) != lines.npos; ++at)
      rates.push_back(std::stod(lines.substr(at + 17)));
    for (std::size_t at = 0; (at = lines.find("\"step\": ", at)) != lines.npos; ++at) steps.push_back(std::stod(lines.substr(at + 8)));
    REQUIRE(rates.size() == 20);
    CHECK(rates.back() == doctest::Approx(1e-3 / steps.back()));  // that of the last step: one step from 0
  }
}

TEST_CASE("a schedule without decay_steps ends with the job where batches without a term of the loss make no step") {
  Job job;
  write_npz(job.folder / "train.npz", {{"rows", Tensor::from(std::vector<float>(5, 0.5f), {5, 1})},
                                       {"lengths", Tensor::from(std::vector<std::int64_t>{3, 0, 0, 2, 0}, {5})},
                                       {"labels", Tensor::from(std::vector<std::int64_t>(5, 0), {5})}});
  job.config =
      "epochs = 10\n[data]\ntrain = \"train.npz\"\ntargets = \"row\"\n[[layer]]\nkind = \"gru\"\nunits = 2\n"
      "[training]\nbatch_sequences = 1\nlearning_rate = 1e-3\nschedule = \"linear\"\n";
  const Ended ended = millrace_command(job.command("a", {"--quiet"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string lines = job.file("a/metrics.jsonl");
  const std::size_t last = lines.rfind("\"learning_rate\": ");
  REQUIRE(last != lines.npos);
  CHECK(std::stod(lines.substr(last + 17)) == doctest::Approx(1e-3 / 20));  // two of five batches make a step
}

TEST_CASE("a job that cannot write its results has its last checkpoint") {
  Job job;
  job.command("a");
  fs::create_directories(job.folder / "a/model.mr");  // a folder cannot be replaced by a file
  check_refused(job.command("a", {"--quiet"}), 1, {"a/model.mr: cannot write: it is a folder"});
  CHECK(newest_checkpoint(job.folder / "a") == 48);
  fs::remove(job.folder / "a/model.mr");
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--resume"})).code == 0);
  REQUIRE(millrace_command(job.command("b", {"--quiet"})).code == 0);
  CHECK(job.file("a/model.safetensors") == job.file("b/model.safetensors"));
}

TEST_CASE("a truncated job is resumed under the same truncation alone, and with the same validation and test") {
  Job job;
  job.config.replace(job.config.find("[training]"), 10, "[training]\nmemory = \"truncate(3)\"");
  REQUIRE(millrace_command(job.command("a", {"--quiet", "--epochs", "2"})).code == 0);
  for (const char* other : {"keep", "recompute", "truncate(2)"})
    check_refused(job.command("a", {"--quiet", "--resume", "--epochs", "4", "--memory", other}), 1, {"another config"});
  CHECK(millrace_command(job.command("a", {"--quiet", "--resume", "--epochs", "4", "--memory", "truncate(3, 3)"})).code == 0);
  job.config.erase(job.config.find("memory = "), 23);
  REQUIRE(millrace_command(job.command("b", {"--quiet", "--epochs", "2"})).code == 0);
  CHECK(millrace_command(job.command("b", {"--quiet", "--resume", "--epochs", "3", "--memory", "recompute"})).code == 0);
  check_refused(job.command("b", {"--quiet", "--resume", "--epochs", "4", "--memory", "truncate(3)"}), 1, {"another config"});
  write_npz(job.folder / "test.npz", problem(5, 40));
  check_refused(job.command("b", {"--quiet", "--resume", "--epochs", "4"}), 1, {"another test data"});
}

TEST_CASE("a folder in which a job trains is refused to another job, and free when that has ended") {
  Job job;
  job.config.replace(job.config.find("epochs = 12"), 11, "epochs = 100000");
  Process first(job.command("a"));
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (newest_checkpoint(job.folder / "a") == 0 && std::chrono::steady_clock::now() < late)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const char* flag : {"--quiet", "--resume"})
    check_refused(job.command("a", {"--quiet", flag}), 1, {"a: expected a folder in which no other job trains, found one that does"});
  first.signal(SIGKILL);
  CHECK(first.wait() == -SIGKILL);
  job.config.replace(job.config.find("epochs = 100000"), 15, "epochs = 2");
  CHECK(millrace_command(job.command("a", {"--quiet"})).code == 0);
}

TEST_CASE("a model whose activation needs rows that are still to come has no live.mr") {
  Job job(true);
  job.config.replace(job.config.find("[[layer]]"), 0, "targets = \"row\"\n");
  job.config += "[[layer]]\nkind = \"linear\"\nunits = 6\nactivation = \"sequence_reverse\"\n";
  const Ended ended = millrace_command(job.command("a", {"--epochs", "1"}));
  INFO(ended.out, ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("millrace: no live.mr: ") != std::string::npos);
  CHECK(fs::exists(job.folder / "a/model.mr"));
  CHECK(!fs::exists(job.folder / "a/live.mr"));
}

TEST_CASE("a model whose pooled rows are mixed by an activation is trained, and has no live.mr") {
  Job job;
  job.config += "[[layer]]\nkind = \"linear\"\nunits = 6\nactivation = \"cumsum\"\n";
  const Ended ended = millrace_command(job.command("a", {"--epochs", "1"}));
  INFO(ended.out, ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("millrace: no live.mr: ") != std::string::npos);
  CHECK(fs::exists(job.folder / "a/model.mr"));
}

TEST_CASE("words have no scale") {
  Job job;
  job.config.replace(job.config.find("kind = \"lstm\""), 13, "kind = \"embedding\"");
  NpzTensors tensors = problem(1, 20);
  tensors["rows"] =
      Tensor::from(std::vector<std::int64_t>(static_cast<std::size_t>(tensors.at("rows").dim(0)), 1), {tensors.at("rows").dim(0)});
  write_npz(job.folder / "train.npz", tensors);
  write_npz(job.folder / "test.npz", tensors);
  check_refused(job.command("a", {"--quiet"}), 1,
                {"c.toml:6: [data]: standardize: expected rows of features, found words for an embedding"});
}

TEST_CASE("a disk that fills up while a job trains leaves a checkpoint to go on from") {
  const Job job;
  job.command("a");
  fs::create_directory(job.folder / "disk");
  write_text(job.folder / "fill.sh", R"sh(cd "$1" || exit 77
mount -t tmpfs -o size=1m none disk || exit 77
program=$2
train() { "$program" train c.toml --output disk/a --quiet "$@" >log 2>&1; }
manifests() { cat disk/a/checkpoints/step-*[0-9]/manifest.json | cksum; }
train --epochs 2 || exit 3
before=$(manifests)
dd if=/dev/zero of=disk/rest bs=1k 2>/dev/null
train --resume --epochs 6
test $? = 1 || exit 4
cp log full
test "$before" = "$(manifests)" || exit 5
rm disk/rest
train --resume --epochs 6 || exit 6
)sh");
  const char* bin = std::getenv("MILLRACE_BIN");
  const std::string program = fs::absolute(bin == nullptr ? "build/release/bin" : bin).string() + "/millrace";
  const int code = WEXITSTATUS(std::system(
      fmt::format("unshare -m sh '{}' '{}' '{}' 2>/dev/null", (job.folder / "fill.sh").string(), job.folder.path().string(), program)
          .c_str()));
  if (code == 77 || code == 1) {
    MESSAGE("skipped: a disk of its own cannot be mounted here");
    return;
  }
  INFO("log ", job.file("log"));
  CHECK(code == 0);
  const std::string full = job.file("full");
  CHECK(full.find("cannot write: No space left on device") != std::string::npos);
  CHECK(full.find("disk/a/") != std::string::npos);
  CHECK(std::count(full.begin(), full.end(), '\n') == 1);
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
  wrong("units = 8", "units = 8\nactivation = \"relu\"",
        {"c.toml:7: layer 1 (lstm): expected an activation behind a linear layer alone\n"});
  check_refused({"train", (job.folder / "no.toml").string()}, 1, {"no.toml: cannot open"});
  check_refused({"train"}, 2, {"CONFIG"});
  for (const char* epochs : {"0", "-5", "1000000001", "99999999999999999999999"})
    check_refused(job.command("a", {"--epochs", epochs}), 2, {"--epochs", "1 to 1000000000"});
  for (const char* seed : {"-1", "2147483648", "99999999999999999999999"})
    check_refused(job.command("a", {"--seed", seed}), 2, {"--seed", "0 to 2147483647"});

  NpzTensors broken = problem(1, 60);
  Tensor rows = Tensor::from(broken.at("rows").to_vector<float>(), broken.at("rows").dims());
  rows[DDim{100, 1}] = std::numeric_limits<double>::quiet_NaN();
  broken["rows"] = rows;
  write_npz(job.folder / "train.npz", broken);
  job.config.erase(job.config.find("standardize = true\n"), 19);
  check_refused(job.command("nan", {"--quiet"}), 1, {"train.npz, rows: row 100 (row ", "element 1: expected a finite number, found nan"});

  NpzTensors great = problem(1, 60);
  great["labels"] = Tensor::from(std::vector<float>(60, 1e30f), {60, 1});
  write_npz(job.folder / "train.npz", great);
  write_npz(job.folder / "test.npz", great);
  job.config = good + "[model]\nloss = \"mse\"\n";
  check_refused(job.command("nan", {"--quiet"}), 1,
                {"expected a finite loss, found inf: nothing was learnt yet", "epoch 1, batch 1 of ", "c.toml"});
  for (const DDim& extents : {DDim{60, 3, 2}, DDim{60, 0}}) {
    great["labels"] = Tensor::from(std::vector<float>(static_cast<std::size_t>(extents.elements())), extents);
    write_npz(job.folder / "train.npz", great);
    check_refused(job.command("a", {"--quiet"}), 1, {"train.npz: expected targets (labels) [N] or [N, K]"});
    CHECK(!fs::is_empty(job.folder / "a/checkpoints"));
  }

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
