// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/state_key.h>
#include <streaming/live/live_model.h>

namespace millrace::simulated {

/// The model that all worlds serve, and sequences with the bits of one run of the whole.
struct Models {
  Models();
  static constexpr std::int64_t features = 3, hidden = 4, sequences = 64, longest = 24;
  testing::Random random{1};
  Program program;
  testing::WholeRun whole;
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<const StateKey> key;  ///< none in a build without OpenSSL: then no state is saved
};

/// The outcome of one world.
struct Outcome {
  std::string wrong{};  ///< empty: all held
  std::uint64_t trace = 0;
  std::map<std::string, std::uint64_t> counts{};  ///< of events
};

/// Servers, their clients, the network, the clock and the device, for the life that `seed` decides. `drop_reply`: the n-th result that arrives is lost on the
/// way, which must be noticed; 0: none.
Outcome live(const Models& models, std::uint64_t seed, std::uint64_t drop_reply);

}  // namespace millrace::simulated
