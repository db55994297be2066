// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is hit at each of its system calls: by a signal that kills, by an error of the disk, by a disk that is full.
#include <cstdlib>
#include <optional>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/training/checkpoint.h>

#include "support/bytes.h"

using namespace millrace;
using namespace millrace::training;
using millrace::testing::ScratchFolder;

namespace {

constexpr const char* folder_variable = "MILLRACE_TEST_CHECKPOINT";
constexpr int refused = 3;

Checkpoint of(std::int64_t step) {
  Checkpoint made;
  made.step = step;
  made.fields = {{"seed", "7"}};
  made.tensors["weights"]["w"] = Tensor::from(std::vector<float>(1000, static_cast<float>(step)), {1000});
  made.texts["notes.txt"] = "step " + std::to_string(step);
  return made;
}

/// Runs `text` in a shell, with this program's own saving test as "$SAVE"; gives its exit code, or 128 and a signal.
int shell(const std::filesystem::path& folder, const std::string& text) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string save = "'" + self + "' --test-case='step 3 is saved where a variable says*'";
  const std::string command =
      fmt::format("export {}='{}' LSAN_OPTIONS=detect_leaks=0 ASAN_OPTIONS=detect_leaks=0; ({}) >'{}' 2>&1", folder_variable,
                  (folder / "c").string(), fmt::format(fmt::runtime(text), save), (folder / "log").string());
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The paths that a save of step 3 touches.
std::string watched(const std::filesystem::path& folder) {
  std::string text;
  for (const char* path : {"c", "c/step-1", "c/step-2", "c/step-3", "c/step-3.old.tmp", "c/step-3.tmp", "c/step-3.tmp/weights.safetensors",
                           "c/step-3.tmp/notes.txt", "c/step-3.tmp/manifest.json"})
    text += fmt::format(" -P '{}'", (folder / path).string());
  return text;
}

/// Checks that `of(step)` is whole there.
void check_whole(const CheckpointFolder& checkpoints, std::int64_t step) {
  const Checkpoint found = checkpoints.load(step);
  CHECK(found.texts == of(step).texts);
  CHECK(found.tensors.at("weights").at("w").to_vector<float>() == of(step).tensors.at("weights").at("w").to_vector<float>());
}

bool holds(const std::filesystem::path& path, const char* word) {
  return std::filesystem::exists(path) && read_file(path).find(word) != std::string::npos;
}

bool may_trace() {
  const ScratchFolder probe;
  const bool may = shell(probe.path(), "strace -f -o /dev/null true") == 0;
  if (!may) MESSAGE("skipped: strace is not there, or may not trace");
  return may;
}

}  // namespace

TEST_CASE("step 3 is saved where a variable says or else in a folder of its own") {
  const char* const said = std::getenv(folder_variable);
  std::optional<ScratchFolder> own;  // none where the process may be killed: it would be left
  if (said == nullptr) own.emplace();
  CheckpointFolder checkpoints(own ? *own / "c" : std::filesystem::path(said));
  try {
    checkpoints.save(of(3));
  } catch (const IoError& error) {
    std::fprintf(stderr, "refused: %s\n", error.what());
    std::_Exit(refused);
  }
  if (own) check_whole(checkpoints, 3);  // else the case that started this process looks
}

TEST_CASE("a save that is killed or fails at any system call leaves the old checkpoint or the new one, never a torn one") {
  if (!may_trace()) return;
  int hits = 0;
  for (const char* call : {"mkdir", "openat", "write", "fsync", "rename", "unlinkat", "newfstatat", "getdents64"})
    for (const char* fault : {"signal=KILL", "error=EIO", "error=ENOSPC"}) {
      constexpr int most = 60;
      for (int when = 1; when < most; ++when) {
        INFO(call, " number ", when, ", ", fault);
        const ScratchFolder folder;
        CheckpointFolder checkpoints(folder / "c");
        checkpoints.save(of(1));
        checkpoints.save(of(2));
        const int code = shell(folder.path(), fmt::format("strace -f -o '{}' -e trace={} -e inject={}:{}:when={}{} {{}}",
                                                          (folder / "trace").string(), call, call, fault, when, watched(folder.path())));
        const bool hit = holds(folder / "trace", "INJECTED") || holds(folder / "trace", "SIGKILL");
        INFO("exit ", code, " log ", read_file(folder / "log"));
        const std::int64_t newest = checkpoints.load()->step;
        CHECK((newest == 2 || newest == 3));
        check_whole(checkpoints, newest);
        if (code == 0) CHECK(newest == 3);  // what was acknowledged is there
        if (!hit) {
          CHECK(code == 0);
          break;
        }
        ++hits;
        if (code != 0 && std::string(fault) != "signal=KILL") {
          CHECK(code == refused);
          CHECK(holds(folder / "log", "refused: "));
          CHECK(holds(folder / "log", folder.path().c_str()));
        }
        // The next save finds nothing in its way.
        checkpoints.save(of(3));
        CHECK(checkpoints.load()->step == 3);
        CHECK(!std::filesystem::exists(folder / "c/step-3.tmp"));
      }
    }
  CHECK(hits > 40);
}

TEST_CASE("a save that is killed or fails at any system call leaves the only checkpoint, where it is of the same step") {
  if (!may_trace()) return;
  int hits = 0, olds = 0, news = 0;
  for (const char* call : {"rename", "fsync", "unlinkat"})
    for (const char* fault : {"signal=KILL", "error=EIO"})
      for (int when = 1; when < 60; ++when) {
        INFO(call, " number ", when, ", ", fault);
        const ScratchFolder folder;
        CheckpointFolder checkpoints(folder / "c");
        Checkpoint before = of(3);
        before.texts["notes.txt"] = "before";
        before.tensors["weights"]["w"] = Tensor::from<float>({1});
        checkpoints.save(before);
        const int code = shell(folder.path(), fmt::format("strace -f -o '{}' -e trace={} -e inject={}:{}:when={}{} {{}}",
                                                          (folder / "trace").string(), call, call, fault, when, watched(folder.path())));
        CHECK(checkpoints.steps() == std::vector<std::int64_t>{3});
        CHECK(checkpoints.load()->step == 3);
        const bool old = checkpoints.load(3).texts == before.texts;
        if (old)
          CHECK(checkpoints.load(3).tensors.at("weights").at("w").elements() == 1);
        else
          check_whole(checkpoints, 3);
        if (code == 0) CHECK(!old);  // what was acknowledged is there
        (old ? olds : news) += 1;
        if (!holds(folder / "trace", "INJECTED") && !holds(folder / "trace", "SIGKILL")) break;
        ++hits;
        checkpoints.save(of(4));
        CHECK(checkpoints.steps() == std::vector<std::int64_t>{3, 4});
        CHECK((checkpoints.load(3).texts == before.texts) == old);
        check_whole(checkpoints, 4);
        for (const char* left : {"c/step-3.tmp", "c/step-3.old.tmp"}) CHECK(!std::filesystem::exists(folder / left));
      }
  CHECK(hits > 10);
  CHECK(olds > 0);
  CHECK(news > 0);
}

TEST_CASE("a file that is cut short by a limit is an error, and the old checkpoint stays") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder / "c");
  checkpoints.save(of(2));
  CHECK(shell(folder.path(), "trap '' XFSZ; ulimit -f 2; {}") == refused);  // 1 or 2 KiB of more than 4
  CHECK(holds(folder / "log", "cannot write: File too large"));
  CHECK(checkpoints.load()->step == 2);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{2});
}
