// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lac_tagger/library/model.h>
#include <millrace/runtime/runtime.h>

namespace millrace::lac {

struct Tagged {
  struct Word {
    std::string text;
    std::string label;  ///< "r", "PER", …
  };
  std::vector<Word> words;
  std::vector<std::int64_t> tags;  ///< the best path: a number of Model::tags for each character
  float score = 0;                 ///< of the best path; 0 for a sentence without characters

  /// "我/r 爱/v"; empty for a sentence without characters.
  std::string to_string() const;
};

/// Sentences in, words out. Thread safety: one call at a time.
class Tagger {
 public:
  /// `threads`: of the kernels. Results do not depend on it.
  explicit Tagger(const Model& model, std::size_t threads = 1);

  /// Each sentence as its characters, all of them in one ragged batch. Which sentences are beside it changes no bit of a sentence.
  std::vector<Tagged> tag(const std::vector<std::vector<std::string>>& sentences);

 private:
  std::map<std::string, std::int64_t> ids_;
  std::int64_t unknown_;
  std::vector<std::string> tags_;
  Runtime runtime_;
  Executable executable_;
};

/// Words of one sentence. A word begins at the first character, at a tag that ends in "-B", and at an "O" behind another tag; its label is
/// that of its first tag, up to the "-".
std::vector<Tagged::Word> words_of(const std::vector<std::string>& characters, const std::vector<std::string>& tags);

}  // namespace millrace::lac
