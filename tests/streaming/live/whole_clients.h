// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <millrace/streaming/client/stream_client.h>
#include <streaming/live/live_model.h>

namespace millrace::testing {

/// A control message as it is sent.
inline Message said(const auto& message) { return text_message(to_json(message)); }

/// A start from what sequence i of a run of the whole began with.
inline StartMessage start_of(const WholeRun& whole, std::size_t i, ReplyFormat reply = ReplyFormat::binary) {
  StartMessage start;
  start.reply = reply;
  for (const float value : whole.boots[i].to_vector<float>()) start.given["boot"].push_back(value);
  return start;
}

/// All of sequence i for a server.
inline ClientPlan plan_for(const WholeRun& whole, std::size_t i, ReplyFormat reply = ReplyFormat::binary) {
  ClientPlan plan;
  plan.start = start_of(whole, i, reply);
  plan.bytes = WholeRun::bytes(whole.rows[i]);
  return plan;
}

}  // namespace millrace::testing
