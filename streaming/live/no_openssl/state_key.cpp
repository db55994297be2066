// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_key.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

[[noreturn]] void absent() {
  throw UnsupportedError("saved states of sessions: expected the part openssl (Debian package libssl-dev), which this build lacks");
}

}  // namespace

StateKey::StateKey(std::string) { absent(); }
StateKey StateKey::random() { absent(); }
StateKey StateKey::read(const std::filesystem::path&) { absent(); }
StateKey::Mac StateKey::sign(std::string_view) const { absent(); }
bool StateKey::verify(std::string_view, std::string_view) const { absent(); }

}  // namespace millrace
