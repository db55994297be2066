// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/config/stream_config.h>

#include <fstream>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

const std::string full = R"([audio]
input = "input"
rate = 16000
window = 512
hop = 256
context = 64
resampler = "best"

[state]
h = "hn"
c = "cn"

[[label]]
name = "speech"
output = "probs"
index = 3
enter = 0.5
leave = 0.35
min_on_ms = 250
min_off_ms = 100
pad_ms = 30

[[label]]
name = "music"
output = "probs"
enter = 1

[learn]
losses = "losses"
k1 = 4
k2 = 12
optimizer = "adamw"
learning_rate = 0.01
clip_norm = 2
sessions = 3
[learn.state]
h = "h_next"
)";

constexpr const char* learning = R"(# [learning]
[learn]
losses = "losses"         # output of the program: a loss for each row
learning_rate = 0.01
k1 = 16                   # rows between two updates
k2 = 32                   # rows that a gradient reaches back
clip_norm = 1
sessions = 8              # at a time, as each has weights of its own
[learn.state]
h = "h_next"              # input : output. The state in front of the first row, and behind the last
# [learning]
)";

void refused(const std::string& text, const std::string& message) {
  INFO(text);
  CHECK_THROWS_WITH_AS(parse_stream_config(text, "m.toml"), doctest::Contains(message.c_str()), ParseError);
}

}  // namespace

TEST_CASE("a config says everything about feeding a program") {
  const StreamConfig config = parse_stream_config(full, "m.toml");
  REQUIRE(config.audio);
  CHECK(config.audio->input == "input");
  CHECK(config.audio->hop == 256);
  CHECK(config.audio->row_samples() == 576);
  CHECK(config.audio->quality == ResampleQuality::best);
  CHECK(config.states == std::vector<std::pair<std::string, std::string>>{{"c", "cn"}, {"h", "hn"}});
  REQUIRE(config.labels.size() == 2);
  CHECK(config.labels[0].index == 3);
  CHECK(config.labels[0].min_on == 0.25);
  CHECK(config.labels[0].pad == 0.03);
  CHECK(config.labels[1].enter == 1);
  CHECK(config.labels[1].leave == 1);
  REQUIRE(config.learn);
  CHECK(config.learn->losses == "losses");
  CHECK(config.learn->k1 == 4);
  CHECK(config.learn->k2 == 12);
  CHECK(config.learn->optimizer == LearnConfig::Optimizer::adamw);
  CHECK(config.learn->learning_rate == 0.01);
  CHECK(config.learn->clip_norm == 2);
  CHECK(config.learn->sessions == 3);
  CHECK(config.learn->states == std::vector<std::pair<std::string, std::string>>{{"h", "h_next"}});
}

TEST_CASE("what is left out has its default") {
  const StreamConfig config = parse_stream_config("[audio]\ninput='x'\nrate=8000\nwindow=200\n", "m.toml");
  CHECK(config.audio->hop == 200);
  CHECK(config.audio->context == 0);
  CHECK(config.audio->quality == ResampleQuality::medium);
  CHECK_FALSE(parse_stream_config("", "m.toml").audio);
  CHECK_FALSE(parse_stream_config("", "m.toml").learn);
  const StreamConfig learns = parse_stream_config("[learn]\nlosses='y'\nlearning_rate=0.1\nk1=5", "m.toml");
  CHECK(learns.learn->k2 == 5);
  CHECK(learns.learn->optimizer == LearnConfig::Optimizer::adam);
  CHECK(learns.learn->clip_norm == 0);
  CHECK(learns.learn->sessions == 16);
  CHECK(parse_stream_config(learning, "m.toml").learn->k2 == 32);
}

TEST_CASE("an error names the file, the line, what was expected and what was found") {
  refused("[audio\n", "m.toml:1: expected TOML");
  refused("# Größe\n[state]\nh = 'größe'", "m.toml:3: expected ASCII");
  CHECK(parse_stream_config("# Größe\n[state]\nh = \"gr\\u00f6\\u00dfe\"", "m.toml").states[0].second == "größe");
  CHECK(parse_stream_config("[state]\nh = \"größe\"  # Größe", "m.toml").states[0].second == "größe");
  std::string deep = "[a";
  while (deep.size() < 100000) deep += ".a";
  refused(deep + "]", "m.toml:1: expected a line of at most 1000 bytes");
  refused("[!", "m.toml:1: expected TOML");
  refused("\n\n[audio]\ninput='x'\nrate='fast'\nwindow=1",
          "m.toml:5: [audio]: rate: expected an integer from 4000 to 192000, found string");
  refused("[audio]\ninput='x'\nrate=100\nwindow=1", "m.toml:3: [audio]: rate: expected an integer from 4000 to 192000, found 100");
  refused("[audio]\ninput='x'\nrate=8000\n", "[audio]: expected the key 'window', found none");
  refused("[audio]\ninput=''\nrate=8000\nwindow=1", "input: expected a text");
  refused("[audio]\ninput='x'\nrate=8000\nwindow=1\nwindows=2", "m.toml:5: [audio]: expected the keys input, rate");
  refused("[audio]\ninput='x'\nrate=8000\nwindow=1\nresampler='fast'", "expected fastest, medium or best, found 'fast'");
  refused("audio = 3", "audio: expected a table, found integer");
  refused("[extra]", "expected the keys audio, state, label, learn, found 'extra'");
  refused("[state]\nh = 3", "[state]: h: expected a text, found integer");
  const std::string audio = "[audio]\ninput='x'\nrate=8000\nwindow=1\n";
  refused(audio + "[label]\nname='a'", "label: expected [[label]] tables");
  refused(audio + "[[label]]\nname='a'\noutput='y'\nenter=nan", "enter: expected a number");
  refused(audio + "[[label]]\nname='a'\noutput='y'\nenter=0.5\nleave=0.6", "leave: expected at most enter");
  refused(audio + "[[label]]\nname='a'\noutput='y'\nenter=0.5\npad_ms=1", "pad_ms: expected at most min_off_ms");
  refused("[[label]]\nname='a'\noutput='y'\nenter=0.5", "expected [audio] with it");
  refused("[learn]\nlearning_rate=1", "[learn]: expected the key 'losses', found none");
  refused("[learn]\nlosses='y'", "[learn]: expected the key 'learning_rate', found none");
  refused("[learn]\nlosses='y'\nlearning_rate=1\nk1=4\nk2=6", "m.toml:5: [learn]: k2: expected a multiple of k1, found 6 and 4");
  refused("[learn]\nlosses='y'\nlearning_rate=1\noptimizer='lion'", "m.toml:4: [learn]: optimizer: expected one of sgd, adam, adamw");
  refused("[learn]\nlosses='y'\nlearning_rate=1\n[learn.state]\nh=1", "[learn.state]: h: expected a text, found integer");
}

TEST_CASE("damaged configs give a config or one typed line") {
  for (const auto seed : seeds(400)) {
    INFO("seed ", seed);
    Random random(seed);
    try {
      parse_stream_config(damaged(full, random), "m.toml");
    } catch (const ParseError& error) {
      CHECK(std::string(error.what()).starts_with("m.toml:"));
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("a file is read from its path, and one that is not there is named") {
  ScratchFolder folder;
  const std::string path = (folder / "m.toml").string();
  std::ofstream(path) << full;
  CHECK(read_stream_config(path).labels.size() == 2);
  CHECK_THROWS_WITH_AS(read_stream_config(path + ".none"), doctest::Contains("m.toml.none: cannot open"), IoError);
  CHECK_THROWS_WITH_AS(read_stream_config("/dev/zero"), doctest::Contains("/dev/zero: cannot read"), IoError);
}
