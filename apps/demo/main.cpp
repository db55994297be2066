// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include "demos.h"
#include "screen.h"

namespace {

/// The folder of this program: where a build and an installation put the command millrace, too.
std::string own_folder() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  return failed ? "." : self.parent_path().string();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shows live sequences, and that their bits are those of the whole.", "millrace-demo");
  millrace::demo::Speech speech;
  speech.bin = own_folder();
  millrace::demo::Trained trained;
  bool offline = false, plain = false;
  app.add_flag("--offline", offline, "The canonical listing, 8 sessions; needs no file");
  app.add_flag("--plain", plain,
               "Prints where each voice speaks in place of drawing what is heard, as it does where stdout is no terminal");
  app.add_option("--bin", speech.bin, "Where the command millrace is")->capture_default_str();
  app.add_option("--model", speech.model, "The voice activity detector");
  app.add_option("--config", speech.config, "Its TOML");
  app.add_option("--sounds", speech.sounds, "The folder of Asterisk's sounds");
  app.add_option("--trained", trained.folder, "Serves what millrace train wrote there, and nothing else");
  app.add_option("--sequences", trained.sequences, "With --trained, a .ts file");
  try {
    app.parse(argc, argv);
    trained.bin = speech.bin;
    speech.draws = !plain && millrace::demo::can_draw();
    if (!trained.folder.empty()) return millrace::demo::trained(trained);
    if (offline) return millrace::demo::offline();
    const int dialogue = millrace::demo::dialogue(speech.bin);
    return std::max(dialogue, millrace::demo::speech(speech));
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : (std::fprintf(stderr, "demo: %s\n", error.what()), 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 1;
  }
}
