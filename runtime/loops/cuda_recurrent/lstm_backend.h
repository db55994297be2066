// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/runtime/loops/loop_backend.h>

namespace millrace {

/// The backend that runs a loop as one kernel for all iterations of an LSTM cell (device_lstm.h).
std::shared_ptr<LoopBackend> make_lstm_backend(LoopSite site);

}  // namespace millrace
