// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <doctest/doctest.h>

#include "apps/process.h"

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("millrace bench cpu prints a table and writes the same rows as JSON and a plot") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json", plot = folder / "rows.svg";
  const Ended ended = millrace_command({"bench", "cpu", "--only", "C2,C8", "--quick", "--json", json, "--plot=" + plot});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  for (const char* part : {"ratio", "goal", "floor", "C2 ", "C8 ", "empty iteration"}) CHECK(ended.out.find(part) != std::string::npos);
  const std::string text = read_file(json);
  CHECK(text.starts_with("{\"device\": \""));
  for (const char* part :
       {"\"id\": \"C8\"", "\"peer_name\": \"asio::co_spawn and its completion\"", "bf16 weights, 1 thread\"", "int8 weights, 1 thread\""})
    CHECK(text.find(part) != std::string::npos);
  // A row that is the difference of two timings has no ratio where noise hides it, and says so: the rows of C2 are none.
  for (std::size_t row = text.find("\"id\": \"C2\""); row != std::string::npos; row = text.find("\"id\": \"C2\"", row + 1))
    CHECK(text.substr(row, text.find('\n', row) - row).find("\"ratio\": null") == std::string::npos);
  CHECK(read_file(plot).starts_with("<svg "));
}

TEST_CASE("millrace bench shows padded, bucketed and packed peers beside ragged sequences that are not padded") {
  const Ended ended = millrace_command({"bench", "cpu", "--only", "C4", "--threads", "1", "--quick"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  for (const char* part : {"C4 ", "ragged, N32", "LSTM padded", "LSTM bucketed", "packed"})
    CHECK(ended.out.find(part) != std::string::npos);
}

TEST_CASE("millrace bench measures ours where a peer cannot be had, and the row says why") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json";
  const Ended ended =
      millrace_command({"bench", "cpu", "--only", "C1", "--threads", "1", "--quick", "--python", folder / "no_python", "--json", json});
  REQUIRE(ended.code == 0);
  const std::string text = read_file(json);
  CHECK(text.find("\"peer\": null, \"peer_name\": \"PyTorch\", \"ratio\": null") != std::string::npos);
  CHECK(text.find("no_python: cannot start: No such file or directory") != std::string::npos);
}

TEST_CASE(
    "millrace bench lists each network of the family models, and says why none is measured without the Python that writes their graphs") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json";
  const Ended ended = millrace_command({"bench", "cpu", "--only", "models", "--threads", "1", "--clock", "processor", "--quick", "--python",
                                        folder / "no_python", "--json", json});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string text = read_file(json);
  for (const char* part : {"Silero", "Resemblyzer", "BeatNet", "g2pM", "sleepecg", "CRNN of a line of text", "CRNN of sound",
                           "attention decoder", "layer-norm LSTM 64", "LSTM 12, a live step"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  CHECK(text.find("no_python: cannot start: No such file or directory") != std::string::npos);
}

TEST_CASE("millrace bench serves sessions with both kinds of replies, without an error") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json";
  const Ended ended = millrace_command({"bench", "cpu", "--only", "R1", "--quick", "--json", json});
  INFO(ended.out);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string text = read_file(json);
  for (const std::string kind : {"binary", "JSON"}) {
    CHECK(text.find("GRU 128 at 25 Hz, " + kind + " replies: sessions a core") != std::string::npos);
    const std::size_t row = text.find(kind + " replies: rows answered");
    REQUIRE(row != std::string::npos);
    CHECK(text.substr(row, text.find('\n', row) - row).find("0 errors;") != std::string::npos);
  }
  CHECK(text.find("memory") != std::string::npos);
}

TEST_CASE("millrace bench refuses what it does not know, with the exit codes of the command") {
  check_refused({"bench"}, 2, {"bench: expected cpu or gpu, found nothing"});
  check_refused({"bench", "tpu"}, 2, {"found 'tpu'"});
  check_refused({"bench", "gpu", "--only", "C1"}, 2, {"--only", "G10", "found 'C1'"});
  check_refused({"bench", "gpu", "--device", "first"}, 2, {"--device", "found 'first'"});
  check_refused({"bench", "cpu", "--only", "C1,C99"}, 2, {"--only", "C4", "found 'C99'"});
  check_refused({"bench", "cpu", "--threads", "1,zero"}, 2, {"--threads", "from 1 to 256", "found 'zero'"});
  check_refused({"bench", "cpu", "--networks", "silero,gold"}, 2, {"--networks", "sleepecg", "found 'gold'"});
  check_refused({"bench", "cpu", "--clock", "sun"}, 2, {"--clock", "wall or processor", "found 'sun'"});
  check_refused({"bench", "cpu", "--json"}, 2, {"--json", "expected a value"});
  check_refused({"bench", "cpu", "fast"}, 2, {"'fast'"});
  check_refused({"bench", "cpu", "--only", "C2", "--json", "/no/such/folder/rows.json"}, 1, {"/no/such/folder/rows.json"});
  CHECK(millrace_command({"bench", "cpu", "--help"}).code == 0);
}

TEST_CASE("millrace bench gpu measures a stack of layers where there is a device, and else says so and leaves with 77") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json";
  const Ended ended = millrace_command({"bench", "gpu", "--quick", "--only", "G4", "--json", json});
  INFO(ended.err);
  if (ended.code == 77) {
    CHECK(ended.err.find("expected a CUDA device, found none") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(json));
    return;
  }
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("G4 ") != std::string::npos);
  CHECK(ended.out.find("our layer") != std::string::npos);
  CHECK(read_file(json).find("\"ratio\": ") != std::string::npos);
}

TEST_CASE("millrace bench measures the bindings beside C++, or says why they cannot be had") {
  const ScratchFolder folder;
  const std::string json = folder / "rows.json";
  const Ended ended = millrace_command({"bench", "cpu", "--only", "Python", "--quick", "--json", json});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string text = read_file(json);
  std::size_t rows = 0, told = 0;
  for (std::size_t row = text.find("\"id\": \"Python\""); row != std::string::npos;
       row = text.find("\"id\": \"Python\"", row + 1), ++rows) {
    const std::string line = text.substr(row, text.find('\n', row) - row);
    told += line.find("\"ratio\": null") == std::string::npos || line.find("not measured: ") != std::string::npos ? 1 : 0;
  }
  CHECK(rows == 5);
  CHECK(told == rows);
}
