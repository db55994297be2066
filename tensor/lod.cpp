// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/lod.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>

namespace millrace {
namespace {

using Level = LoD::Level;

std::string level_text(std::size_t level) { return "lod: level " + std::to_string(level); }

/// Offsets that are consistent in themselves and with the level inside; later code relies on this alone.
void check_offsets(const std::vector<Level>& levels) {
  for (std::size_t k = 0; k < levels.size(); ++k) {
    const Level& level = levels[k];
    if (level.empty()) throw LoDError(level_text(k) + ": expected at least the offset 0, found no offsets");
    if (level.front() != 0) throw LoDError(level_text(k) + ": expected a first offset of 0, found " + std::to_string(level.front()));
    const auto drop = std::adjacent_find(level.begin(), level.end(), std::greater<>());
    if (drop != level.end())
      throw LoDError(level_text(k) + ": expected offsets that never decrease, found " + std::to_string(drop[0]) + " before " +
                     std::to_string(drop[1]));
    if (k + 1 == levels.size()) continue;
    const std::size_t inner = levels[k + 1].empty() ? 0 : levels[k + 1].size() - 1;
    if (std::cmp_not_equal(level.back(), inner))
      throw LoDError(level_text(k) + " ends at " + std::to_string(level.back()) + ", but level " + std::to_string(k + 1) + " has " +
                     std::to_string(inner) + " sequences");
  }
}

Level offsets_of(std::span<const std::int64_t> lengths, std::size_t level) {
  Level offsets;
  offsets.reserve(lengths.size() + 1);
  offsets.push_back(0);
  for (const std::int64_t length : lengths) {
    if (length < 0) throw LoDError(level_text(level) + ": expected lengths of at least 0, found " + std::to_string(length));
    std::int64_t end = 0;
    if (__builtin_add_overflow(offsets.back(), length, &end))
      throw LoDError(level_text(level) + ": the sum of the lengths does not fit 64 bits");
    offsets.push_back(end);
  }
  return offsets;
}

void check_range(const char* what, std::int64_t begin, std::int64_t end, std::int64_t count, int level) {
  if (begin < 0 || begin > end || end > count)
    throw IndexError(std::string("lod: ") + what + " [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " +
                     std::to_string(count) + " sequences at level " + std::to_string(level));
}

/// Reads `[[2,1],[3,1,2]]`.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<Level> run() {
    std::vector<Level> levels;
    list([&] {
      levels.emplace_back();
      list([&] { levels.back().push_back(number()); });
    });
    skip();
    if (at_ != text_.size()) fail("the end");
    return levels;
  }

 private:
  template <class Item>
  void list(Item item) {
    expect('[');
    if (peek() == ']') return expect(']');
    for (;;) {
      item();
      if (peek() == ']') return expect(']');
      expect(',');
    }
  }
  std::int64_t number() {
    skip();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("a length that fits 64 bits");
    if (error != std::errc{}) fail("a length");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char wanted) {
    if (peek() != wanted || at_ == text_.size()) fail(std::string("'") + wanted + "'");
    ++at_;
  }
  [[noreturn]] void fail(const std::string& wanted) const {
    const std::string found = at_ < text_.size() ? "'" + std::string(text_.substr(at_, 16)) + "'" : "the end";
    throw ParseError("lod: expected " + wanted + " at character " + std::to_string(at_) + ", found " + found +
                     ", in lengths such as [[2,1],[3,1,2]]");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

LoD::LoD(std::vector<Level> checked) {
  if (!checked.empty()) levels_ = std::make_shared<const std::vector<Level>>(std::move(checked));
}

LoD LoD::from_lengths(const std::vector<Level>& levels) {
  std::vector<Level> offsets;
  offsets.reserve(levels.size());
  for (const Level& level : levels) offsets.push_back(offsets_of(level, offsets.size()));
  return from_offsets(std::move(offsets));
}

LoD LoD::from_offsets(std::vector<Level> levels) {
  check_offsets(levels);
  return LoD(std::move(levels));
}

LoD LoD::from_seq_pos(const SeqPos& positions) {
  if (std::cmp_not_equal(positions.dim, positions.startPoses.size()))
    throw LoDError("seq pos: expected " + std::to_string(positions.dim) + " levels, as dim says, found " +
                   std::to_string(positions.startPoses.size()));
  std::vector<Level> levels;
  for (const auto& level : positions.startPoses) {
    if (!level) throw LoDError("seq pos: level " + std::to_string(levels.size()) + " is null");
    levels.emplace_back(level->begin(), level->end());
  }
  return from_offsets(std::move(levels));
}

LoD LoD::parse(std::string_view text) { return from_lengths(Parser(text).run()); }

const LoD::Level& LoD::at(int level) const {
  if (level >= 0 && level < depth()) return (*levels_)[static_cast<std::size_t>(level)];
  if (depth() == 0) throw LoDError("lod: level " + std::to_string(level) + " is missing: there are no levels");
  std::string present;
  for (int k = 0; k < depth(); ++k) present += (k > 0 ? ", " : "") + std::to_string(k);
  throw LoDError("lod: level " + std::to_string(level) + " is missing: the levels present are " + present + " (0 is the outermost)");
}

std::span<const std::int64_t> LoD::offsets(int level) const { return at(level); }

LoD::Level LoD::lengths(int level) const {
  const Level& offsets = at(level);
  Level lengths;
  lengths.reserve(offsets.size() - 1);
  for (std::size_t i = 1; i < offsets.size(); ++i) lengths.push_back(offsets[i] - offsets[i - 1]);
  return lengths;
}

std::int64_t LoD::sequences(int level) const { return static_cast<std::int64_t>(at(level).size()) - 1; }

std::vector<LoD::Level> LoD::absolute_offsets() const {
  if (empty()) return {};
  std::vector<Level> absolute = *levels_;
  for (std::size_t k = absolute.size() - 1; k-- > 0;)
    for (std::int64_t& offset : absolute[k]) offset = absolute[k + 1][static_cast<std::size_t>(offset)];
  return absolute;
}

std::pair<std::int64_t, std::int64_t> LoD::row_range(int level, std::int64_t begin, std::int64_t end) const {
  check_range("sequences", begin, end, sequences(level), level);
  for (int k = level; k < depth(); ++k) {
    const Level& offsets = at(k);
    begin = offsets[static_cast<std::size_t>(begin)];
    end = offsets[static_cast<std::size_t>(end)];
  }
  return {begin, end};
}

namespace {

/// A LoD of few numbers may describe more rows than memory holds: such a count ends before the first of them is written.
void expect_room(std::int64_t count, std::size_t level) {
  constexpr std::int64_t most = std::int64_t{1} << 36;
  if (count > most)
    throw OutOfMemoryError(level_text(level) + ": expected at most " + std::to_string(most) + " sequences or rows, found " +
                           std::to_string(count));
}

}  // namespace

LoD LoD::from_row_ids(const Level& ids, std::int64_t sequences) {
  if (sequences < 0) throw LoDError("row ids: expected a number of sequences of 0 or more, found " + std::to_string(sequences));
  expect_room(sequences, 0);
  Level lengths(static_cast<std::size_t>(sequences));
  std::int64_t least = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    if (ids[row] < least || ids[row] >= sequences)
      throw LoDError("row ids: expected ids that never decrease, of " + std::to_string(sequences) + " sequences, found " +
                     std::to_string(ids[row]) + " at row " + std::to_string(row) + (row == 0 ? "" : " behind " + std::to_string(least)));
    least = ids[row];
    ++lengths[static_cast<std::size_t>(least)];
  }
  return from_lengths({lengths});
}

LoD::Level LoD::row_ids(int level) const {
  const std::int64_t count = sequences(level);
  expect_room(rows(), static_cast<std::size_t>(level));
  Level ids;
  ids.reserve(static_cast<std::size_t>(rows()));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto [begin, end] = row_range(level, i, i + 1);
    ids.insert(ids.end(), static_cast<std::size_t>(end - begin), i);
  }
  return ids;
}

void LoD::validate(std::int64_t rows) const {
  if (empty() || this->rows() == rows) return;
  throw LoDError("lod: " + brief() + " describes " + std::to_string(this->rows()) + " rows, found " + std::to_string(rows));
}

LoD LoD::slice(int level, std::int64_t begin, std::int64_t end) const {
  check_range("slice", begin, end, sequences(level), level);
  std::vector<Level> cut;
  for (int k = level; k < depth(); ++k) {
    const Level& offsets = at(k);
    Level part(offsets.begin() + begin, offsets.begin() + end + 1);
    const std::int64_t first = part.front();
    for (std::int64_t& offset : part) offset -= first;
    begin = first;
    end = first + part.back();
    cut.push_back(std::move(part));
  }
  return LoD(std::move(cut));
}

LoD LoD::select(std::span<const std::int64_t> chosen) const {
  const std::int64_t count = sequences(0);
  for (const std::int64_t sequence : chosen)
    if (sequence < 0 || sequence >= count)
      throw IndexError("lod: sequence " + std::to_string(sequence) + " of " + std::to_string(count) + " at level 0");
  std::vector<Level> made;
  Level items(chosen.begin(), chosen.end());
  for (int k = 0; k < depth(); ++k) {
    const Level& offsets = at(k);
    Level level{0};
    Level inner;
    level.reserve(items.size() + 1);
    for (const std::int64_t item : items) {
      const std::int64_t begin = offsets[static_cast<std::size_t>(item)];
      const std::int64_t end = offsets[static_cast<std::size_t>(item) + 1];
      std::int64_t next = 0;
      if (__builtin_add_overflow(level.back(), end - begin, &next))
        throw LoDError(level_text(made.size()) + ": the selection does not fit 64 bits");
      level.push_back(next);
    }
    if (k + 1 < depth()) {
      expect_room(level.back(), made.size());
      inner.reserve(static_cast<std::size_t>(level.back()));
      for (const std::int64_t item : items)
        for (std::int64_t i = offsets[static_cast<std::size_t>(item)]; i < offsets[static_cast<std::size_t>(item) + 1]; ++i)
          inner.push_back(i);
    }
    made.push_back(std::move(level));
    items = std::move(inner);
  }
  return LoD(std::move(made));
}

LoD LoD::levels(int begin, int end) const {
  if (begin < 0 || begin > end || end > depth())
    throw LoDError("lod: levels [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " + std::to_string(depth()) + " levels");
  if (begin == 0 && end == depth()) return *this;
  return LoD(begin == end ? std::vector<Level>{} : std::vector<Level>(levels_->begin() + begin, levels_->begin() + end));
}

LoD LoD::erase_outermost() const {
  at(0);
  return levels(1, depth());
}

LoD LoD::append(std::span<const std::int64_t> lengths) const {
  return append(LoD(std::vector<Level>{offsets_of(lengths, static_cast<std::size_t>(depth()))}));
}

LoD LoD::append(const LoD& inner) const {
  if (empty()) return inner;
  if (inner.empty()) return *this;
  if (inner.sequences(0) != rows())
    throw LoDError("lod: expected " + std::to_string(rows()) + " lengths to append inside " + brief() + ", found " +
                   std::to_string(inner.sequences(0)));
  std::vector<Level> joined = *levels_;
  joined.insert(joined.end(), inner.levels_->begin(), inner.levels_->end());
  return LoD(std::move(joined));
}

SeqPos LoD::to_seq_pos() const {
  SeqPos positions;
  positions.dim = depth();
  for (int k = 0; k < depth(); ++k) {
    const Level& offsets = at(k);
    if (offsets.back() > std::numeric_limits<int>::max())
      throw LoDError("seq pos: level " + std::to_string(k) + " ends at " + std::to_string(offsets.back()) + ", which does not fit an int");
    positions.startPoses.push_back(std::make_shared<std::vector<int>>(offsets.begin(), offsets.end()));
  }
  return positions;
}

/// Stops behind `most` characters.
static std::string text_of(const LoD& lod, std::size_t most) {
  std::string text = "[";
  for (int k = 0; k < lod.depth() && text.size() <= most; ++k) {
    if (k > 0) text += ',';
    text += '[';
    const std::span<const std::int64_t> offsets = lod.offsets(k);
    for (std::size_t i = 1; i < offsets.size() && text.size() <= most; ++i)
      text += (i > 1 ? "," : "") + std::to_string(offsets[i] - offsets[i - 1]);
    text += ']';
  }
  return text + "]";
}

std::string LoD::to_string() const { return text_of(*this, std::string::npos); }

std::string LoD::brief() const {
  constexpr std::size_t most = 200;
  std::string text = text_of(*this, most);
  return text.size() > most ? text.substr(0, most) + "…" : text;
}

bool operator==(const LoD& a, const LoD& b) noexcept {
  return a.levels_ == b.levels_ || (a.levels_ && b.levels_ && *a.levels_ == *b.levels_);
}

}  // namespace millrace
