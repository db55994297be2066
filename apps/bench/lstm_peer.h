// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bench/library/lstm_problem.h>
#include <bench/library/measure.h>

namespace millrace::bench {

/// oneDNN's LSTM primitive in this process, with its weights in the order it prefers.
struct LstmPeer {
  std::string name;  ///< and version
  Timer timer;       ///< empty where this build has no oneDNN
  Tensor y;          ///< [T, N, H], written by the timer
  std::string note;  ///< says that there is none
};

/// Over `x` [T, N, H], all N sequences of T steps, with the weights of `problem`. `stateful`: from its h and c, else from zeros.
LstmPeer make_lstm_peer(const LstmProblem& problem, const Tensor& x, bool stateful, int threads);

/// Forward and backward over the sequences of `problem`, which have one length: training primitives. `dy` [rows, H] in the order of `problem.x`;
/// `y` of the result is the gradient of the recurrent weights [H, 4H]. Weights are brought into the preferred order once, before it is timed.
LstmPeer make_lstm_backward_peer(const LstmProblem& problem, const Tensor& dy, int threads);

}  // namespace millrace::bench
