// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/beam_search.h>
#include <millrace/runtime/program/attribute.h>

namespace millrace::ops {

/// beam_size, end_id, length_penalty and is_accumulated, as the ops of beam search have them.
BeamOptions beam_options(const Attributes& attributes);

}  // namespace millrace::ops
