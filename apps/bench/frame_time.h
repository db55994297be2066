// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// Seconds that one step of one live sequence takes, in ticks of `rows` sequences, on one thread: gather of states, the step, scatter.
/// `model` is a graph of one step with these states; its live input gets random rows of `row` elements.
double frame_time(const std::string& model, const std::vector<std::pair<std::string, std::string>>& states, std::int64_t rows,
                  double seconds);

}  // namespace millrace::bench
