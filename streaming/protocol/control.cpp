// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/protocol/control.h>

namespace millrace {

std::string_view name_of(ReplyFormat format) {
  switch (format) {
    case ReplyFormat::json: return "json";
    case ReplyFormat::binary: return "binary";
    default: return "none";
  }
}

}  // namespace millrace
