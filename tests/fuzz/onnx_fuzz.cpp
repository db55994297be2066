// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>

#include <millrace/runtime/models/import/onnx.h>
#include <millrace/runtime/program/check.h>
#include <millrace/tensor/error.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::optional<millrace::Program> program;
  try {
    program = millrace::parse_onnx({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const millrace::Error&) {
    return 0;
  }
  // An imported program holds together; else this throws, and the run fails.
  millrace::check(*program);
  return 0;
}
