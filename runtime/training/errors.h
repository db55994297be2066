// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/error.h>

namespace millrace::training {

MILLRACE_ERROR(TrainingError, Error);  ///< a job that cannot go on: a loss or gradient that is no number, a checkpoint of another job

}  // namespace millrace::training
