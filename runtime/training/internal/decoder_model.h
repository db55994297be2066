// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/training/initialiser.h>
#include <millrace/runtime/training/model_spec.h>

namespace millrace::training::internal {

/// The layers of an encoder, as a decoder sees them.
struct Encoded {
  build::Var rows;  ///< [rows, width], with one level
  std::int64_t width = 0;
  std::vector<build::Var> last;  ///< states behind the last step, [N, …] each
  std::int64_t last_width = 0;   ///< of all of them together
};

/// A decoder (DecoderSpec) over `tokens` tokens and the end, whose number is `tokens`, appended to the program that is being built.
class DecoderModel {
 public:
  DecoderModel(const DecoderSpec& spec, const LayerInit& init, DType dtype, std::int64_t tokens, Encoded encoded);

  /// Scores [rows of `before`, tokens + 1] of the token behind each of `before` (i64 with one level): a DynamicRNN whose static input is the encoder's rows.
  build::Var forced(const build::Var& before) const;
  /// Left to itself: a while loop that searches with the beam of the spec. The encoder's rows go along as a state, padded, with their mask.
  build::Generated generated() const;

 private:
  struct Step {
    build::Var seen;  ///< [N, units + width]: the state and what attention gave
    build::Var state;
  };
  template <class Attend>
  Step step(const build::Var& word, const build::Var& state, const Attend& attend) const;
  build::Var words(const build::Var& tokens) const;
  build::Var boot() const;
  build::Var scores(const build::Var& seen) const;

  DecoderSpec spec_;
  DType dtype_;
  std::int64_t end_;
  Encoded encoded_;
  Tensor table_;
  layers::LinearWeights bridge_, query_, head_;
  layers::GruWeights cell_;
};

}  // namespace millrace::training::internal
