// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <doctest/doctest.h>

#include <apps/process.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/program/storage.h>
#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// A program of rows of 6 samples: their sum, and the sum of all before.
Program sums() {
  using namespace millrace::build;
  Program program;
  program.set_title("sums");
  const Guard guard(program);
  const Var x = input("samples", VarType(DType::f32, {DDim::unknown, 6}));
  const Var before = input("before", VarType(DType::f32, {1, 1}));
  const Var next = before + sum(x, {1}, true);
  output("y", next);
  output("after", identity(next));
  return program;
}

/// A mono WAV file of 16-bit samples.
std::string wav(const std::vector<std::int16_t>& samples, std::uint32_t rate) {
  std::string text;
  const auto put = [&](std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>((value >> (8 * i)) & 0xffu);
  };
  const auto size = static_cast<std::uint32_t>(2 * samples.size());
  text += "RIFF";
  put(36 + size, 4);
  text += "WAVEfmt ";
  put(16, 4);
  put(1, 2);
  put(1, 2);
  put(rate, 4);
  put(2 * rate, 4);
  put(2, 2);
  put(16, 2);
  text += "data";
  put(size, 4);
  for (const std::int16_t sample : samples) put(static_cast<std::uint16_t>(sample), 2);
  return text;
}

}  // namespace

TEST_CASE("a sound goes through the TOML beside the model, window by window") {
  const ScratchFolder folder;
  save_program(sums(), folder / "sums.mr");
  write_file(folder / "sums.toml", "[audio]\ninput = \"samples\"\nrate = 16000\nwindow = 4\ncontext = 2\n[state]\nbefore = \"after\"\n");
  std::vector<std::int16_t> samples;
  for (int i = 1; i <= 6; ++i) samples.push_back(static_cast<std::int16_t>(i * 1024));
  write_file(folder / "sound.wav", wav(samples, 16000));
  const std::string out = (folder / "out").string(), model = (folder / "sums.mr").string();
  const Ended ended = millrace_command({"run", model, "--input", "samples=" + (folder / "sound.wav").string(), "--output-dir", out});
  CHECK(ended.err == "");
  REQUIRE(ended.code == 0);
  // Rows: 0 0 1 2 3 4, then 3 4 5 6 0 0, in 32nds.
  CHECK(read_npy(folder / "out/y.npy").to_vector<float>() == std::vector<float>{10.0f / 32, 28.0f / 32});
  CHECK(read_npy(folder / "out/after.npy").to_vector<float>() == std::vector<float>{28.0f / 32});

  const std::string whole = read_file(folder / "sound.wav");
  write_file(folder / "cut.wav", whole.substr(0, whole.size() - 4));
  check_refused({"run", model, "--input", "samples=" + (folder / "cut.wav").string(), "--output-dir", out}, 1, {"cut.wav"});
  write_file(folder / "noise.wav", "no sound at all");
  check_refused({"run", model, "--input", "samples=" + (folder / "noise.wav").string(), "--output-dir", out}, 1, {"noise.wav"});
  check_refused({"run", model, "--input", "before=" + (folder / "sound.wav").string(), "--output-dir", out}, 1,
                {"sound.wav", "'samples'", "'before'"});
  REQUIRE(::mkfifo((folder / "pipe.wav").c_str(), 0600) == 0);
  std::filesystem::create_symlink("/dev/zero", folder / "endless.wav");
  write_file(folder / "long.wav", whole);
  std::filesystem::resize_file(folder / "long.wav", std::uintmax_t{1} << 40);
  for (const char* name : {"pipe.wav", "endless.wav", "long.wav"})
    check_refused({"run", model, "--input", "samples=" + (folder / name).string(), "--output-dir", out}, 1, {name});
  std::filesystem::rename(folder / "sound.wav", folder / "LOUD.WAV");
  CHECK(millrace_command({"run", model, "--input", "samples=" + (folder / "LOUD.WAV").string(), "--output-dir", out}).code == 0);
  write_file(folder / "sums.toml", "[audio]\ninput = 5\n");
  check_refused({"run", model, "--input", "samples=" + (folder / "LOUD.WAV").string(), "--output-dir", out}, 1, {"sums.toml"});
}
