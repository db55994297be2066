// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <bench/library/measure.h>

namespace millrace::bench {

/// Times one step of one live sequence, in ticks of `rows` sequences, on one thread: gather of states, the step, scatter. `model` is a graph
/// of one step with these states; its live input gets random rows. The errors of `load_model` and `make_recurrence`.
Timer frame_timer(const std::string& model, const std::vector<std::pair<std::string, std::string>>& states, std::int64_t rows);

}  // namespace millrace::bench
