// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/program/program.h>

namespace millrace::lac {

/// LAC-small, a lexical analyser of PaddlePaddle Fluid: word_emb → 2 × [fc → GRU forward, fc → GRU backward] → fc → CRF. Layer l has
/// fc_2l and gru_2l forward, fc_2l+1 and gru_2l+1 backward.
struct Model {
  std::map<std::string, std::int64_t> ids;  ///< of the characters
  std::int64_t unknown = 0;                 ///< the id of a character that has none ("OOV")
  std::vector<std::string> tags;            ///< by number: "r-B", "r-I", …, "O"
  Tensor embedding;                         ///< [V, E]
  std::vector<layers::GruWeights> gru;      ///< 2 · layer + direction; the fc before it is its projection
  layers::LinearWeights emission;           ///< [2H, K], [K]
  Tensor transition;                        ///< [K + 2, K], as in kernels/crf.h
};

inline constexpr std::size_t layers_of_model = 2;

/// Where Debian's python3-jieba has it.
std::filesystem::path default_folder();

/// Reads `folder`/word.dic and tag.dic (lines of "number<TAB>text") and the parameters in `folder`/model_baseline, and checks that they fit
/// one another. IoError, ParseError, ShapeError name the file, expected and found.
Model read_model(const std::filesystem::path& folder);

/// words i64[rows, 1] lod=1 → path i64[rows, 1] lod=1, the best tags, and score, one for each sentence.
Program tagging_program(const Model& model);

/// The forward half, which can be fed live: words i64[rows, 1] and prior f32[rows, K], lod=2 (the sentences of a dialogue) → emission
/// f32[rows, K] lod=2 = the forward layers' share of the emission + prior: what is known of each character beforehand, such as from a
/// dictionary. Each sentence begins at zeros.
Program live_program(const Model& model);

}  // namespace millrace::lac
