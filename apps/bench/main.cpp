// SPDX-License-Identifier: Apache-2.0
// The measuring half of `./dev bench`: one JSON object on a line. apps/bench/run puts peers in Python beside it and prints the table.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include <bench/frame_time.h>
#include <bench/gemm_row.h>
#include <bench/row.h>
#include <millrace/tensor/error.h>

namespace {

using namespace millrace;
using namespace millrace::bench;

constexpr const char* usage = "usage: millrace-bench gemm M K N | millrace-bench frame MODEL ROWS SECONDS [STATE:NEXT...]\n";

std::string number(const std::optional<double>& value) { return value ? fmt::format("{:.9g}", *value) : "null"; }

int gemm(char** arguments) {
  const Row row = gemm_row(std::atoll(arguments[0]), std::atoll(arguments[1]), std::atoll(arguments[2]));
  fmt::print(R"({{"id": "{}", "shape": "{}", "ours": {}, "peer": {}, "peer_name": "{}", "goal": {}, "note": "{}"}})"
             "\n",
             row.id, row.shape, number(row.ours), number(row.peer), row.peer_name, row.goal, row.note);
  return 0;
}

int frame(int count, char** arguments) {
  std::vector<std::pair<std::string, std::string>> states;
  for (int i = 3; i < count; ++i) {
    const std::string pair = arguments[i];
    const auto colon = pair.find(':');
    if (colon == std::string::npos) throw ArgumentError("state: expected STATE:NEXT, found '" + pair + "'");
    states.emplace_back(pair.substr(0, colon), pair.substr(colon + 1));
  }
  fmt::print("{{\"seconds\": {:.9g}}}\n", frame_time(arguments[0], states, std::atoll(arguments[1]), std::atof(arguments[2])));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::string what = count > 1 ? arguments[1] : "";
    if (what == "gemm" && count == 5) return gemm(arguments + 2);
    if (what == "frame" && count >= 5) return frame(count - 2, arguments + 2);
    std::fputs(usage, stderr);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "millrace-bench: %s\n", error.what());
    return 1;
  }
}
