// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/wav.h>

#include <fstream>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

template <class T>
std::string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A WAV file by the letter: RIFF, fmt, data. `tag` 1 is PCM, 3 is float.
std::string wav(int tag, int bits, int channels, int rate, const std::string& samples) {
  const auto block = static_cast<std::uint16_t>(channels * bits / 8);
  const std::string format = le<std::uint16_t>(static_cast<std::uint16_t>(tag)) + le<std::uint16_t>(static_cast<std::uint16_t>(channels)) +
                             le<std::uint32_t>(static_cast<std::uint32_t>(rate)) +
                             le<std::uint32_t>(static_cast<std::uint32_t>(rate) * block) + le(block) +
                             le<std::uint16_t>(static_cast<std::uint16_t>(bits));
  const std::string body = "WAVEfmt " + le<std::uint32_t>(16) + format + "data" + le(static_cast<std::uint32_t>(samples.size())) + samples;
  return "RIFF" + le(static_cast<std::uint32_t>(body.size())) + body;
}

std::string text(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

TEST_CASE("16-bit samples come out as they are") {
  const std::string samples = le<std::int16_t>(-32768) + le<std::int16_t>(32767) + le<std::int16_t>(1) + le<std::int16_t>(0);
  const AudioFile sound = parse_wav(wav(1, 16, 2, 8000, samples), "a.wav");
  CHECK(sound.format.format == SampleFormat::s16);
  CHECK(sound.format.rate == 8000);
  CHECK(sound.format.channels == 2);
  CHECK(sound.frames() == 2);
  CHECK(sound.seconds() == 2.0 / 8000);
  CHECK(text(sound.bytes) == samples);
}

TEST_CASE("float samples come out as they are, and 8-bit ones as 16-bit ones") {
  const std::string floats = le(0.1f) + le(-1.5f) + le(1e-30f);
  const AudioFile sound = parse_wav(wav(3, 32, 1, 48000, floats), "a.wav");
  CHECK(sound.format.format == SampleFormat::f32);
  CHECK(text(sound.bytes) == floats);
  const AudioFile bytes = parse_wav(wav(1, 8, 1, 16000, std::string("\x80\xff\0", 3)), "a.wav");
  CHECK(bytes.format.format == SampleFormat::s16);
  CHECK(text(bytes.bytes) == le<std::int16_t>(0) + le<std::int16_t>(32512) + le<std::int16_t>(-32768));
}

TEST_CASE("a file without samples is a file without samples") { CHECK(parse_wav(wav(1, 16, 1, 8000, ""), "a.wav").frames() == 0); }

TEST_CASE("a file that was cut anywhere is refused in one line that names it") {
  const std::string whole = wav(1, 16, 1, 8000, std::string(64, 'x'));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("size ", size);
    try {
      parse_wav(std::string_view(whole).substr(0, size), "cut.wav");
      FAIL("taken");
    } catch (const ParseError& error) {
      CHECK(std::string(error.what()).starts_with("cut.wav: expected"));
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("what no session can send is refused") {
  CHECK_THROWS_WITH_AS(parse_wav(wav(1, 16, 9, 8000, std::string(18, 'x')), "a.wav"), "a.wav: expected 1 to 8 channels, found 9",
                       ParseError);
  CHECK_THROWS_WITH_AS(parse_wav(wav(1, 16, 1, 100, "xx"), "a.wav"), "a.wav: expected a rate from 4000 to 192000 Hz, found 100",
                       ParseError);
  CHECK_THROWS_AS(parse_wav("fLaC and so on, long enough to be something", "a.flac"), ParseError);
}

TEST_CASE("damaged files give samples or one typed error") {
  const std::string whole = wav(1, 16, 2, 8000, std::string(400, 'x'));
  for (const auto seed : seeds(500)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::string bytes = damaged(whole, random);
    try {
      const std::size_t size = parse_wav(bytes, "a.wav").bytes.size();
      CHECK(size <= 64 * bytes.size());
    } catch (const ParseError& error) {
      CHECK(std::string(error.what()).starts_with("a.wav: "));
    }
  }
}

TEST_CASE("a file is read from its path, and one that is not there is named") {
  ScratchFolder folder;
  const std::string path = (folder / "a.wav").string();
  std::ofstream(path, std::ios::binary) << wav(1, 16, 1, 8000, "abcd");
  CHECK(read_wav(path).frames() == 2);
  CHECK_THROWS_WITH_AS(read_wav(path + ".none"), doctest::Contains("a.wav.none: cannot open"), IoError);
  CHECK_THROWS_AS(read_wav(folder.path().string()), IoError);
}
