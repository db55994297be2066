// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>
#include <millrace/tensor/error.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::map<std::string, millrace::Tensor> weights = {{"U", millrace::Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2})},
                                                                  {"W", millrace::Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2})}};
  std::optional<millrace::Program> program;
  try {
    program = millrace::parse_program({reinterpret_cast<const char*>(data), size}, weights);
  } catch (const millrace::Error&) {
    return 0;
  }
  // A program that was read holds together, and its text reads back to the same text; else this throws or stops, and the run fails.
  millrace::check(*program);
  const std::string text = millrace::print(*program);
  if (millrace::print(millrace::parse_program(text, weights)) != text) __builtin_trap();
  // It compiles, or is refused by a typed error.
  try {
    static_cast<void>(millrace::Executable(std::move(*program)));
  } catch (const millrace::Error&) {
  }
  return 0;
}
