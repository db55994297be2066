// SPDX-License-Identifier: Apache-2.0
#include <bench/lstm_peer.h>

namespace millrace::bench {

LstmPeer make_lstm_peer(const LstmProblem&, const Tensor&, bool, int) {
  return {"oneDNN LSTM", nullptr, {}, "this build has no oneDNN: install libdnnl-dev and configure again"};
}
LstmPeer make_lstm_backward_peer(const LstmProblem&, const Tensor&, int) {
  return {"oneDNN LSTM", nullptr, {}, "this build has no oneDNN: install libdnnl-dev and configure again"};
}

}  // namespace millrace::bench
