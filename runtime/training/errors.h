// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/error.h>

namespace millrace::training {

MILLRACE_ERROR(TrainingError, Error);  ///< a job that cannot go on: a loss or gradient that is no number, a checkpoint of another job
MILLRACE_ERROR(StoppedError, TrainingError);  ///< a job that was asked to stop, behind a checkpoint: on all of its ranks

}  // namespace millrace::training
