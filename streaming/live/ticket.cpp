// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/ticket.h>

#include <array>

#include <sys/random.h>

#include <fmt/format.h>

#include <millrace/tensor/error.h>

namespace millrace {

std::string make_ticket() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw IoError("ticket: the system gives no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace millrace
