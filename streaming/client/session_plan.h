// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <millrace/streaming/client/stream_client.h>
#include <millrace/tensor/lod_tensor.h>

namespace millrace {

struct SessionPlanOptions {
  bool one_session = false;                         ///< every outermost sequence goes through one session, with `reset` between them
  bool flush = false;                               ///< `flush` behind every innermost sequence
  std::size_t piece_bytes = std::size_t{16} << 10;  ///< of one input's rows, about, before those of the next input

  SessionPlanOptions() = default;
};

/// Ragged rows as live sessions, the way `run` takes them whole: a session for each outermost sequence, in their order, and in it the inner
/// sequences, each opened, filled and closed.
class SessionPlan {
 public:
  /// `feeds`: by name, what each input of the server gets. Those with a row each step have the same LoD, as deep as the program's; one
  /// that has a row for each sequence of a level has the levels down to there. Levels that an input leaves out are those of the others;
  /// where nobody has any, all rows are one sequence. What is no input of the server is a value given at the start, a row for each session
  /// (the server says whether it takes it). ArgumentError, DTypeError, ShapeError, LoDError and UnsupportedError (sound) name the input.
  SessionPlan(const std::map<std::string, LoDTensor>& feeds, const StartedMessage& server, const SessionPlanOptions& options = {});

  /// The events to send; take them once.
  std::vector<ClientPlan> take() { return std::move(plans_); }
  /// The outputs of all sessions as one run of the whole gives them, in the server's order: rows of a step have the LoD of the inputs,
  /// those of a level the levels down to it. `records`: of sessions that ended as they should. ParseError when the server gave another
  /// number of rows than there are.
  std::vector<std::pair<std::string, LoDTensor>> outputs(const std::vector<ClientRecord>& records) const;

 private:
  LoD lod_;
  std::vector<PortSpec> outputs_;
  std::vector<ClientPlan> plans_;
};

}  // namespace millrace
