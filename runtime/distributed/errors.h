// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/error.h>

namespace millrace {

MILLRACE_ERROR(CommunicationError, Error);          ///< something between ranks that did not come about
MILLRACE_ERROR(MismatchError, CommunicationError);  ///< ranks that asked for different things; every one of them gets it
MILLRACE_ERROR(RankError, CommunicationError);      ///< a rank that has left, or whose work failed
MILLRACE_ERROR(PeerError, RankError);               ///< what another rank said of its work
MILLRACE_ERROR(AbortedError, CommunicationError);   ///< a communicator that was aborted

}  // namespace millrace
