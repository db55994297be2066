// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/error.h>

namespace millrace {

MILLRACE_ERROR(WrittenTwiceError, Error);  ///< a slot of a TensorArray that already has its value
MILLRACE_ERROR(ClosedError, Error);        ///< a write to a closed array, or a read past where it was closed
MILLRACE_ERROR(NeverWrittenError, Error);  ///< a slot without a writer
MILLRACE_ERROR(WindowError, Error);        ///< a slot that has left its window, or a write to a full window that was not awaited

}  // namespace millrace
