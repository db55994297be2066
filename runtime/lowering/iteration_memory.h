// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

/// The values of a loop's iterations that a loop which runs them backwards reads, and the choice between those that are stored and those computed again.
namespace millrace {

/// The part of an iteration that is kept.
enum class Keep : std::uint8_t {
  needed,  ///< all values that the gradients of the iteration's ops read: nothing is computed again
  lean,    ///< without values that ops of one row make again of the others, such as tanh(c): no product is computed again
  states   ///< the states alone: the rest of the iteration is computed again
};

/// The names that `keep_values` takes for the loop whose body is block `body`; a step input is never among them, its array is there
/// anyway. A state before an iteration is what the iteration before made of it, and kept there, so that it is not kept twice. Built-in cells are written
/// out first (layers/spell_cells.h). UnsupportedError when the loop is no recurrence.
std::vector<std::string> values_to_keep(Program& program, int body, Keep keep);

/// The values that a backward step of a loop has at hand, for a choice of kept ones.
struct IterationMemory {
  std::vector<std::string> needed;      ///< values of rows that the gradients of the iteration's ops read
  std::vector<std::string> recomputed;  ///< values that are computed again, in this order: needed ones, and those that they are made of
  std::vector<std::string>
      missing;                ///< states that neither are kept nor can be computed in the iteration: only the iterations before give them
  std::int64_t products = 0;  ///< among what is computed again
  std::int64_t kept = 0;      ///< elements of a row of an iteration that are kept; −1: an extent is unknown
};

/// `kept`: names as `keep_values` was given, of vars that the body has by now. Errors as of `keep_values`.
IterationMemory iteration_memory(const Program& program, int body, const std::vector<std::string>& kept);

}  // namespace millrace
