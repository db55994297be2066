// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/tensor/lod.h>
#include <millrace/tensor/tensor.h>

namespace millrace::detail {

/// The integers of a message, read one after the other and never past their end. CommunicationError names what was expected and found.
class Words {
 public:
  explicit Words(const Tensor& words) : at_(words.data<std::int64_t>()), left_(words.dim(0)) {}

  std::int64_t next(std::int64_t least, std::int64_t most) {
    if (left_ == 0) throw CommunicationError("a value of another rank: expected another word, found none");
    if (*at_ < least || *at_ > most)
      throw CommunicationError(fmt::format("a value of another rank: expected a word from {} to {}, found {}", least, most, *at_));
    --left_;
    return *at_++;
  }
  std::int64_t count() { return next(0, std::numeric_limits<std::int64_t>::max()); }
  bool flag() { return next(0, 1) == 1; }
  DType dtype() { return static_cast<DType>(next(0, static_cast<std::int64_t>(DType::boolean))); }
  DDim dims() {
    std::vector<std::int64_t> extents(static_cast<std::size_t>(next(0, max_rank)));
    for (std::int64_t& extent : extents) extent = count();
    return make_ddim(extents);
  }
  LoD lod() {
    std::vector<LoD::Level> levels(static_cast<std::size_t>(next(0, left_)));
    for (LoD::Level& level : levels) {
      const std::int64_t count = next(1, left_ - 1);
      for (std::int64_t i = 0; i < count; ++i) level.push_back(this->count());
    }
    return levels.empty() ? LoD() : LoD::from_offsets(std::move(levels));
  }
  std::string text() {
    std::string said(static_cast<std::size_t>(next(0, left_ - 1)), ' ');
    for (char& one : said) one = static_cast<char>(next(0, 255));
    return said;
  }

 private:
  const std::int64_t* at_;
  std::int64_t left_;
};

/// Writes the words that `Words` reads.
class WordWriter {
 public:
  void add(std::int64_t word) { words_.push_back(word); }
  void add(const DDim& dims) {
    add(dims.rank());
    words_.insert(words_.end(), dims.begin(), dims.end());
  }
  void add(const LoD& lod) {
    add(lod.depth());
    for (int level = 0; level < lod.depth(); ++level) {
      const auto offsets = lod.offsets(level);
      add(static_cast<std::int64_t>(offsets.size()));
      words_.insert(words_.end(), offsets.begin(), offsets.end());
    }
  }
  void add(const std::string& text) {
    add(static_cast<std::int64_t>(text.size()));
    for (const char one : text) add(static_cast<unsigned char>(one));
  }
  Tensor take() { return Tensor::from(words_, DDim{static_cast<std::int64_t>(words_.size())}); }

 private:
  std::vector<std::int64_t> words_;
};

}  // namespace millrace::detail
