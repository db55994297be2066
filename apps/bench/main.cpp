// SPDX-License-Identifier: Apache-2.0
// `millrace bench` ends here.
#include <csignal>
#include <string>
#include <vector>

#include <bench/cpu_command.h>
#include <bench/live_client.h>
#include <bench/memory_rows.h>
#include <millrace/tensor/error.h>
#include <support/standard_streams.h>

int main(int count, char** arguments) {
  using namespace millrace::bench;
  using millrace::app::complain;
  millrace::app::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended is an error of write
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    if (!words.empty() && words[0] == "cpu") return cpu_command({words.begin() + 1, words.end()});
    if (words.size() == 6 && words[0] == "live-client")  // of C5
      return live_client_command({words[1], std::stoll(words[2]), std::stoll(words[3]), std::stod(words[4]), std::stod(words[5])});
    if (words.size() == 2 && words[0] == "sessions") return sessions_command(std::stoll(words[1]));  // of C9
    if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) return cpu_command({"--help"});
    if (!words.empty() && words[0] == "gpu") throw millrace::UnsupportedError("bench gpu: this build has no code for GPUs");
    throw UsageError("expected cpu or gpu, found " + (words.empty() ? "nothing" : "'" + words[0] + "'"));
  } catch (const UsageError& error) {
    complain("millrace", std::string("bench: ") + error.what() + " (millrace bench cpu --help explains)");
    return millrace::app::bad_usage;
  } catch (const std::exception& error) {
    complain("millrace", error.what());
    return millrace::app::failed;
  }
}
