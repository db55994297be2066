// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/ticket.h>

#include <set>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("tickets are 32 hexadecimal digits, and no two are the same") {
  std::set<std::string> all;
  for (int i = 0; i < 1000; ++i) {
    const std::string ticket = make_ticket();
    CHECK(ticket.size() == 32);
    CHECK(ticket.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(all.insert(ticket).second);
  }
}
