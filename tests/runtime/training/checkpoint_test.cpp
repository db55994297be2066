// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <functional>

#include <doctest/doctest.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/training/checkpoint.h>

#include "support/bytes.h"

using namespace millrace;
using namespace millrace::training;
using millrace::testing::ScratchFolder;

namespace {

Checkpoint of(std::int64_t step) {
  Checkpoint made;
  made.step = step;
  made.fields = {{"seed", "7"}, {"text", "a \"quoted\"\nline"}};
  made.tensors["weights"]["w"] = Tensor::from<float>({static_cast<float>(step), 0.1f});
  made.tensors["optimizer"]["steps"] = Tensor::scalar(step);
  made.texts["notes.txt"] = "step " + std::to_string(step);
  return made;
}

void overwrite(const std::filesystem::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("a checkpoint is read as it was written, and the two newest are kept") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder / "deep/checkpoints");
  CHECK(!checkpoints.load());
  for (const std::int64_t step : {5, 10, 15}) checkpoints.save(of(step));
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{10, 15});
  const Checkpoint found = *checkpoints.load();
  CHECK(found.step == 15);
  CHECK(found.fields == of(15).fields);
  CHECK(found.tensors.at("weights").at("w").to_vector<float>() == std::vector<float>{15, 0.1f});
  CHECK(found.tensors.at("optimizer").at("steps").item_int() == 15);
  CHECK(found.texts.at("notes.txt") == "step 15");
  CHECK(found.integer("seed") == 7);
  CHECK_THROWS_AS(found.integer("text"), ParseError);
  CHECK_THROWS_AS(found.field("none"), ArgumentError);
}

TEST_CASE("whatever is wrong with the newest one, the older one is taken, and the reason is told") {
  for (const char* file : {"weights.safetensors", "manifest.json", "notes.txt"})
    for (const bool missing : {false, true}) {
      INFO(file, " missing ", missing);
      const ScratchFolder folder;
      CheckpointFolder checkpoints(folder.path());
      checkpoints.save(of(1));
      checkpoints.save(of(2));
      const std::filesystem::path path = folder / (std::string("step-2/") + file);
      if (missing)
        std::filesystem::remove(path);
      else
        overwrite(path, read_file(path).substr(1));
      std::vector<std::string> skipped;
      CHECK(checkpoints.load(&skipped)->step == 1);
      REQUIRE(skipped.size() == 1);
      CHECK(skipped[0].find(file) != std::string::npos);
      // The torn one is replaced by the job that goes on.
      checkpoints.save(of(2));
      CHECK(checkpoints.load()->step == 2);
      CHECK(checkpoints.steps() == std::vector<std::int64_t>{1, 2});
    }
}

TEST_CASE("no damage to any byte of a manifest is taken for a checkpoint") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder.path());
  checkpoints.save(of(2));
  const std::filesystem::path path = folder / "step-2/manifest.json";
  const std::string bytes = read_file(path);
  int refused = 0;
  for (const std::uint64_t seed : testing::seeds(3)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    for (int i = 0; i < 100; ++i) {
      const std::string other = testing::damaged(bytes, random);
      if (other == bytes) continue;
      overwrite(path, other);
      CHECK_THROWS_AS(checkpoints.load(), IoError);
      ++refused;
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("what an interrupted save left is no checkpoint, and goes away with the next") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder.path());
  checkpoints.save(of(1));
  std::filesystem::create_directories(folder / "step-2.tmp");
  overwrite(folder / "step-2.tmp/weights.safetensors", "half");
  CHECK(checkpoints.load()->step == 1);
  checkpoints.save(of(3));
  CHECK(!std::filesystem::exists(folder / "step-2.tmp"));
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1, 3});
  checkpoints.clear();
  CHECK(!checkpoints.load());
}

TEST_CASE("a checkpoint that was about to be replaced is still one, and gets its name back") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder.path());
  checkpoints.save(of(3));
  const auto interrupted = [&] {
    std::filesystem::rename(folder / "step-3", folder / "step-3.old.tmp");
    std::filesystem::create_directories(folder / "step-3.tmp");
  };
  interrupted();
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{3});
  CHECK(checkpoints.load()->step == 3);
  CHECK(checkpoints.load(3).texts == of(3).texts);
  SUBCASE("by the next save") {
    checkpoints.save(of(4));
    CHECK(checkpoints.steps() == std::vector<std::int64_t>{3, 4});
    CHECK(std::filesystem::exists(folder / "step-3"));
  }
  SUBCASE("also where that is of its step again") {
    checkpoints.save(of(3));
    CHECK(checkpoints.steps() == std::vector<std::int64_t>{3});
    interrupted();
    CHECK(checkpoints.load()->step == 3);
  }
  SUBCASE("before all of them are removed") {
    checkpoints.clear();
    CHECK(!checkpoints.load());
    CHECK(std::filesystem::is_empty(folder.path()));
  }
}

TEST_CASE("a folder that cannot be made and names that are none are refused") {
  const ScratchFolder folder;
  overwrite(folder / "file", "");
  CheckpointFolder checkpoints(folder / "file/checkpoints");
  CHECK_THROWS_AS(checkpoints.save(of(1)), IoError);
  // A file in the place of the folder is no folder without checkpoints.
  CHECK_THROWS_WITH_AS(CheckpointFolder(folder / "file").load(), doctest::Contains("file: cannot read the folder: Not a directory"),
                       IoError);
  CHECK_THROWS_AS(CheckpointFolder(folder / "file").clear(), IoError);
  Checkpoint bad = of(1);
  bad.texts["../escape"] = "";
  CHECK_THROWS_AS(CheckpointFolder(folder.path()).save(bad), ArgumentError);
  CHECK(!std::filesystem::exists(folder / "step-1.tmp"));
  bad = of(-1);
  CHECK_THROWS_AS(CheckpointFolder(folder.path()).save(bad), ArgumentError);
}

TEST_CASE("a checkpoint that could not be loaded is refused, and those before it stay") {
  const ScratchFolder folder;
  CheckpointFolder checkpoints(folder.path());
  checkpoints.save(of(1));
  checkpoints.save(of(2));
  const auto refused = [&](const char* why, const std::function<void(Checkpoint&)>& spoil) {
    Checkpoint bad = of(3);
    spoil(bad);
    CHECK_THROWS_WITH_AS(checkpoints.save(bad), doctest::Contains(why), ArgumentError);
    CHECK(checkpoints.steps() == std::vector<std::int64_t>{1, 2});
    CHECK(checkpoints.load()->step == 2);
  };
  refused("the field 'data' in UTF-8, found 'caf\\xe9'", [](Checkpoint& bad) { bad.fields["data"] = "caf\xe9"; });
  refused("the name of a field in UTF-8", [](Checkpoint& bad) { bad.fields["caf\xe9"] = ""; });
  refused("the name of a file of text, found 'a.safetensors'", [](Checkpoint& bad) { bad.texts["a.safetensors"] = "hello"; });
  refused("the name of a file of text, found 'weights.safetensors'", [](Checkpoint& bad) { bad.texts["weights.safetensors"] = "hello"; });
  refused("the name of a file of tensors, found '../x'", [](Checkpoint& bad) { bad.tensors["../x"] = {}; });
  refused("the name of a file of text, found 'manifest.json'", [](Checkpoint& bad) { bad.texts["manifest.json"] = "{}"; });
}

TEST_CASE("other names of a folder are no checkpoints") {
  const ScratchFolder folder;
  for (const char* name : {"step-007", "step-", "step--3", "step-1x", "step-99999999999999999999999"})
    std::filesystem::create_directory(folder / name);
  CheckpointFolder checkpoints(folder.path());
  CHECK(checkpoints.steps().empty());
  CHECK(!checkpoints.load());
  checkpoints.save(of(8));
  CHECK_THROWS_WITH_AS(static_cast<void>(checkpoints.load(7)), doctest::Contains("/step-7/manifest.json: cannot open"), IoError);
  checkpoints.clear();
  CHECK(std::filesystem::exists(folder / "step-007"));
  CHECK(!std::filesystem::exists(folder / "step-8"));
}
