// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <millrace/streaming/protocol/base64.h>
#include <millrace/streaming/protocol/control.h>
#include <streaming/live/live_model.h>
#include <streaming/live/table.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

const std::string secret(32, 's');

Program program() {
  Random random(1);
  return live_listing(random, 3, 4);
}

struct Served : Table {
  Served() : Table(program()) { take_key(secret); }
  const StateKey key{secret};
};

}  // namespace

// 't' and a text that a client gives as its state; or 's' and the contents of a state, which are sealed by the server's key, so that they are read. A session starts from
// it and goes on as far as it can; what is read is sealed to what was read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Served served;
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  StartMessage start;
  start.state = rest;
  if (data[0] == 's') {
    const std::string like = served.sealing->seal(SavedState());  // whose head is that of any state
    constexpr std::size_t head_bytes = 4 + 64;
    std::string sealed = like.substr(0, head_bytes) + rest;
    const StateKey::Mac mac = served.key.sign(sealed);
    sealed.append(mac.data(), mac.size());
    start.state = base64(sealed);
    try {
      if (served.sealing->seal(served.sealing->unseal(sealed)) != sealed) std::abort();
    } catch (const SavedStateError&) {
    }
  } else if (data[0] != 't') {
    return 0;
  }
  const auto session = served.sit_hosted();
  session->receive(text_message(to_json(start)));
  if (session->started()) {
    session->receive(binary_message(std::string(5 * 12, '\0')));
    session->receive(text_message(to_json(SaveMessage())));
    session->receive(text_message(to_json(EndMessage())));
    served.tick_all();
  }
  while (session->has_output()) session->written(session->take_output().payload.size());
  return 0;
}
