// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <millrace/streaming/live/admission.h>
#include <millrace/streaming/live/served_model.h>

namespace millrace {

/// A model among those of a server, and the name by which clients ask for it.
struct ServedRoute {
  std::string name;
  std::shared_ptr<const ServedModel> model;
  Admission::Options admission{};  ///< session_rate 0: that of the model's audio, where it has some
};

/// The name of a server's only model.
inline constexpr const char* default_route = "default";

/// 1 to 64 characters of A-Z a-z 0-9 - _, and no path that a server has for something else: `stream`, `now`.
bool is_route_name(std::string_view name);

}  // namespace millrace
