// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/builder/var.h>

/// Decoding as functions that append ops. Names and semantics are those of the ops (docs/ops.md).
namespace millrace::build {

struct CrfDecoded {
  Var path;   ///< i64 [rows, 1], with the LoD of the emissions
  Var score;  ///< one for each sequence
};
/// The best tags of each sequence: `emission` [rows, K] with LoD, `transition` [K + 2, K] as in kernels/crf.h.
CrfDecoded crf_decoding(const Var& emission, const Var& transition);
/// log p(label | emission) of each sequence.
Var linear_chain_crf(const Var& emission, const Var& transition, const Var& label);

}  // namespace millrace::build
