// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The way in which the backward loop of a loop gets the values of the forward iterations. The first three kinds give the same bits.
struct MemoryPolicy {
  enum class Kind : std::uint8_t {
    keep,       ///< all values that the gradients read are kept
    spill,      ///< the same, in memory whose pages lie in files (spill_memory.h); of loops on the host
    recompute,  ///< the states are kept every `every` iterations; the iterations between are computed again
    truncate    ///< the losses of each run of k1 iterations reach the last k2 iterations up to the end of that run, and nothing before them
  };
  Kind kind = Kind::keep;
  std::int64_t every =
      0;  ///< recompute: iterations between checkpoints; 0: 1, 2, 3 …, so that n iterations take memory for 2√(2n); of a recurrence over ragged rows ⌈√n⌉
  std::int64_t k1 = 0;      ///< truncate: iterations of a run
  std::int64_t k2 = 0;      ///< truncate: iterations that a gradient reaches back; other than k1 for recurrences over ragged rows alone
  std::string folder = {};  ///< spill: of the files; empty: that of TMPDIR, or /var/tmp
};

/// A var, and the gradient of what is differentiated with respect to it.
struct Seed {
  VarId var = no_var;
  VarId seed = no_var;
};

struct BackwardOptions {
  std::vector<VarId> with_respect_to = {};    ///< of block 0; empty: all parameters that the loss depends on
  std::vector<VarId> stop_gradient = {};      ///< vars through which nothing flows back; the op `stop_gradient` does the same
  VarId seed = no_var;                        ///< gradient of the loss, of its dtype and extents; none: 1, and the loss has one element
  std::vector<Seed> more_seeds = {};          ///< further vars that gradients begin at, beside the loss, with their seeds
  MemoryPolicy memory = {};                   ///< of all loops
  std::map<int, MemoryPolicy> per_loop = {};  ///< by body block, instead of `memory`
};

struct Gradient {
  VarId var = no_var;
  VarId gradient = no_var;  ///< no_var: zero
};

/// Appends to block 0 the ops that compute d loss / d var for each var of `with_respect_to`, in their order, by the chain rule in reverse.
/// Loops of the forward program also write the values that their gradients read. The outputs of the program keep their bits.
///
/// The backward of a while op is a while op that runs the iterations in reverse. A recurrence (loop_form.h) has a recurrence as backward;
/// parameter gradients are one product each over the rows of all iterations, behind the loop. Any other loop keeps values on tapes
/// (growable arrays), and its backward reads them from the end. Nothing is computed that no asked gradient needs.
///
/// `loss` is a floating tensor of block 0. A gradient has dtype, extents and LoD of its var. Errors: ProgramError when `loss` or a var is no
/// floating tensor of block 0, or when there is no seed and the loss is known to have more than one element; UnsupportedError when an op
/// on the way has no gradient rule: it names op, var and loop. After an error the program is as it was.
///
///     const std::vector<Gradient> found = append_backward(program, loss, {.with_respect_to = {w}});
///     program.add_output("dw", found[0].gradient);
std::vector<Gradient> append_backward(Program& program, VarId loss, const BackwardOptions& options = {});

}  // namespace millrace
