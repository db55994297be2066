// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/error_code.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("every error code has a name of its own that leads back to it, and the documented close code") {
  const std::pair<ErrorCode, int> table[] = {
      {ErrorCode::bad_message, 1002},    {ErrorCode::bad_text, 1007},     {ErrorCode::bad_input, 1008}, {ErrorCode::refused, 1008},
      {ErrorCode::idle, 1008},           {ErrorCode::slow_reader, 1008},  {ErrorCode::too_big, 1009},   {ErrorCode::failed, 1011},
      {ErrorCode::overload, 1013},       {ErrorCode::draining, 1001},     {ErrorCode::lost, 1011},      {ErrorCode::bad_state, 1008},
      {ErrorCode::unknown_ticket, 1008}, {ErrorCode::unknown_model, 1008}};
  for (const auto& [code, close] : table) {
    CHECK(error_code_named(name_of(code)) == code);
    CHECK(close_code_of(code) == close);
  }
  CHECK_FALSE(error_code_named("nothing"));
}
