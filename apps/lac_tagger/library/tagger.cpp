// SPDX-License-Identifier: Apache-2.0
#include <lac_tagger/library/tagger.h>

#include <millrace/runtime/task/sync_wait.h>

namespace millrace::lac {
namespace {

RuntimeOptions options_for(std::size_t threads) {
  RuntimeOptions options;
  options.threads = 1;
  options.kernel_threads = threads;
  return options;
}

}  // namespace

std::string Tagged::to_string() const {
  std::string text;
  for (const Word& word : words) text += (text.empty() ? "" : " ") + word.text + "/" + word.label;
  return text;
}

std::vector<Tagged::Word> words_of(const std::vector<std::string>& characters, const std::vector<std::string>& tags) {
  std::vector<Tagged::Word> words;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const std::string& tag = tags.at(i);
    if (i == 0 || tag.ends_with("-B") || (tag == "O" && tags[i - 1] != "O")) words.push_back({"", tag.substr(0, tag.find('-'))});
    words.back().text += characters[i];
  }
  return words;
}

Tagger::Tagger(const Model& model, std::size_t threads)
    : ids_(model.ids),
      unknown_(model.unknown),
      tags_(model.tags),
      runtime_(options_for(threads)),
      executable_(runtime_.compile(tagging_program(model))) {}

std::vector<Tagged> Tagger::tag(const std::vector<std::vector<std::string>>& sentences) {
  std::vector<std::int64_t> words, lengths;
  for (const std::vector<std::string>& sentence : sentences) {
    lengths.push_back(static_cast<std::int64_t>(sentence.size()));
    for (const std::string& character : sentence) {
      const auto known = ids_.find(character);
      words.push_back(known == ids_.end() ? unknown_ : known->second);
    }
  }
  const LoDTensor rows(Tensor::from(words, DDim{static_cast<std::int64_t>(words.size()), 1}), LoD::from_lengths({lengths}));
  const RunResult result = sync_wait(runtime_.executor(), run(executable_, {{"words", rows}}));
  const std::vector<std::int64_t> path = result["path"].tensor().to_vector<std::int64_t>();
  const std::vector<float> scores = result["score"].tensor().to_vector<float>();
  std::vector<Tagged> made(sentences.size());
  for (std::size_t n = 0, row = 0; n < sentences.size(); ++n) {
    std::vector<std::string> tags;
    for (std::size_t i = 0; i < sentences[n].size(); ++i) {
      made[n].tags.push_back(path.at(row++));
      tags.push_back(tags_.at(static_cast<std::size_t>(made[n].tags.back())));
    }
    made[n].words = words_of(sentences[n], tags);
    made[n].score = sentences[n].empty() ? 0 : scores.at(n);
  }
  return made;
}

}  // namespace millrace::lac
