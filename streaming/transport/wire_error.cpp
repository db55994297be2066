// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/wire_error.h>

#include <string>

namespace millrace {
namespace {

class Category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "millrace.wire"; }
  std::string message(int value) const override { return std::string(name_of(static_cast<ErrorCode>(value - 1))); }
};

}  // namespace

const boost::system::error_category& wire_category() noexcept {
  static constinit const Category category;
  return category;
}

std::optional<ErrorCode> wire_error(const boost::system::error_code& error) noexcept {
  if (!error || error.category() != wire_category()) return std::nullopt;
  return static_cast<ErrorCode>(error.value() - 1);
}

}  // namespace millrace
