// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_key.h>

#include <fstream>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string hex(const StateKey::Mac& mac) {
  std::string text;
  for (const char byte : mac)
    for (const int nibble : {(byte >> 4) & 15, byte & 15}) text += "0123456789abcdef"[nibble];
  return text;
}

}  // namespace

TEST_CASE("a key signs as RFC 4231 says, and knows its own signature") {
  // Test case 6: a key of 131 bytes.
  const StateKey key(std::string(131, '\xaa'));
  const std::string data = "Test Using Larger Than Block-Size Key - Hash Key First";
  const StateKey::Mac mac = key.sign(data);
  CHECK(hex(mac) == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  const std::string right(mac.data(), mac.size());
  CHECK(key.verify(data, right));
  CHECK_FALSE(key.verify(data + "!", right));
  CHECK_FALSE(key.verify(data, right.substr(1)));
  CHECK_FALSE(StateKey(std::string(131, '\xab')).verify(data, right));
  CHECK_FALSE(StateKey::random().verify(data, right));
}

TEST_CASE("a key of a file is its bytes without the last line end, and a short one is refused without being quoted") {
  const ScratchFolder folder;
  const auto path = folder / "key";
  std::ofstream(path) << std::string(40, 'k') << "\n";
  CHECK(StateKey::read(path).sign("x") == StateKey(std::string(40, 'k')).sign("x"));
  std::ofstream(path) << "secret\n";
  CHECK_THROWS_WITH_AS(StateKey::read(path), "state key: expected a secret of 32 to 4096 bytes, found 6", ArgumentError);
  CHECK_THROWS_AS(StateKey::read(folder / "none"), IoError);
}
