// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <apps/process.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("bytes that are no model are one line that names the file") {
  const ScratchFolder folder;
  write_file(folder / "noise.onnx", "no model at all");
  write_file(folder / "empty.onnx", "");
  const std::string out = (folder / "out").string();
  for (const char* name : {"noise.onnx", "empty.onnx"}) {
    check_refused({"inspect", (folder / name).string()}, 1, {name});
    check_refused({"run", (folder / name).string(), "--output-dir", out}, 1, {name});
    check_refused({"serve", (folder / name).string(), "--port", "0"}, 1, {name});
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}
