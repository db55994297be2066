// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/ts_file.h>

#include <algorithm>
#include <charconv>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/training/internal/float_text.h>

namespace millrace::training {
namespace {

std::string lower(std::string_view text) {
  std::string made(text);
  for (char& c : made) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return made;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The text before the next `mark`, which is taken away with it.
std::string_view take(std::string_view& text, char mark) {
  const auto at = text.find(mark);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return part;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::string_view word = trimmed(take(text, ' '));
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

class TsReader {
 public:
  TsReader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the mark of UTF-8 that some editors write
  }

  Dataset read() {
    while (!text_.empty()) {
      ++line_;
      const std::string_view line = trimmed(take(text_, '\n'));
      if (line.empty() || line.front() == '#') continue;
      if (!data_)
        header(line);
      else
        sequence(line);
    }
    if (!data_) fail("expected @data, found the end of the file");
    const auto rows = static_cast<std::int64_t>(width_ == 0 ? 0 : values_.size() / width_);
    const std::int64_t count = std::ssize(lengths_);
    return {LoDTensor(Tensor::from(values_, {rows, static_cast<std::int64_t>(width_)}), LoD::from_lengths({lengths_})),
            has_numbers_ ? Tensor::from(numbers_, {count, 1}) : Tensor::from(labels_, {count}), false, classes_, name_};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw ParseError(at() + what); }
  std::string at() const { return name_ + ":" + std::to_string(std::max<std::size_t>(1, line_)) + ": "; }

  void header(std::string_view line) {
    if (line.front() != '@') fail("expected a line of @ or #, found " + millrace::internal::printable(line));
    const std::vector<std::string> words = words_of(line.substr(1));
    if (words.empty()) fail("expected a word behind @, found none");
    const std::string key = lower(words[0]);
    const std::string value = words.size() > 1 ? lower(words[1]) : "";
    if (key == "timestamps" && value == "true")
      throw UnsupportedError(at() + "expected series without time stamps, found @timeStamps true");
    if (key == "classlabel" && value == "true") name_classes({words.begin() + 2, words.end()});
    if (key == "targetlabel") has_numbers_ = value == "true";
    if (key == "dimensions" || key == "dimension") width_ = count(words, 1);
    if (key == "equallength") equal_ = value == "true" ? Equal::yes : Equal::no;
    if (key == "serieslength") length_ = count(words, 0);
    if (key != "data") return;
    if (classes_.empty() && !has_numbers_)
      throw UnsupportedError(at() + "expected @classLabel true with its classes, or @targetLabel true, before @data, found none");
    if (!classes_.empty() && has_numbers_) fail("expected either @classLabel true or @targetLabel true before @data, found both");
    data_ = true;
  }

  /// The number behind a word of the header, from `least` on.
  std::size_t count(const std::vector<std::string>& words, std::size_t least) const {
    std::size_t value = 0;
    const std::string text = words.size() > 1 ? words[1] : "";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least)
      fail("expected a number from " + std::to_string(least) + " on behind @" + words[0] + ", found " +
           millrace::internal::printable(text));
    return value;
  }

  void name_classes(std::vector<std::string> names) {
    for (auto each = names.begin(); each != names.end(); ++each)
      if (std::find(names.begin(), each, *each) != each)
        fail("expected classes of different names behind @classLabel, found " + millrace::internal::printable(*each) + " twice");
    classes_ = std::move(names);
  }

  void sequence(std::string_view line) {
    std::vector<std::vector<float>> dimensions;
    const auto last = line.rfind(':');
    if (last == line.npos) fail(std::string("expected DIMENSION:…:") + (has_numbers_ ? "NUMBER" : "CLASS") + ", found no ':'");
    for (std::string_view rest = line.substr(0, last);;) {
      const auto mark = rest.find(':');
      dimensions.push_back(dimension(rest.substr(0, mark)));
      if (mark == rest.npos) break;
      rest.remove_prefix(mark + 1);
    }
    target(trimmed(line.substr(last + 1)));
    if (width_ == 0) width_ = dimensions.size();
    if (dimensions.size() != width_)
      fail("expected " + std::to_string(width_) + " dimensions, as the header or the lines before say, found " +
           std::to_string(dimensions.size()));
    for (const std::vector<float>& each : dimensions)
      if (each.size() != dimensions[0].size())
        fail("expected dimensions of equal length, found " + std::to_string(dimensions[0].size()) + " and " + std::to_string(each.size()) +
             " values");
    if (length_ == 0 && equal_ == Equal::yes) length_ = dimensions[0].size();
    if (equal_ != Equal::no && length_ > 0 && dimensions[0].size() != length_)
      fail("expected sequences of " + std::to_string(length_) + " rows, as the header or the lines before say, found " +
           std::to_string(dimensions[0].size()));
    for (std::size_t t = 0; t < dimensions[0].size(); ++t)
      for (const std::vector<float>& each : dimensions) values_.push_back(each[t]);
    lengths_.push_back(static_cast<std::int64_t>(dimensions[0].size()));
  }

  void target(std::string_view text) {
    if (has_numbers_) return numbers_.push_back(number(text));
    const auto found = std::find(classes_.begin(), classes_.end(), text);
    if (found == classes_.end()) fail("expected a class that @classLabel names, found " + millrace::internal::printable(text));
    labels_.push_back(found - classes_.begin());
  }

  std::vector<float> dimension(std::string_view text) const {
    std::vector<float> values;
    if (trimmed(text).empty()) return values;
    while (true) {
      const auto mark = text.find(',');
      values.push_back(number(trimmed(text.substr(0, mark))));
      if (mark == text.npos) return values;
      text.remove_prefix(mark + 1);
    }
  }

  float number(std::string_view word) const {
    if (word == "?") throw UnsupportedError(at() + "expected values without gaps, found a missing one ('?')");
    float value = 0;
    const std::errc error = internal::parse_float(word, value);
    if (error == std::errc::result_out_of_range) fail("expected a number that f32 holds, found " + millrace::internal::printable(word));
    if (error != std::errc()) fail("expected a number, found " + millrace::internal::printable(word));
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t line_ = 0;
  bool data_ = false;
  enum class Equal : std::uint8_t { unsaid, yes, no } equal_ = Equal::unsaid;
  std::size_t width_ = 0, length_ = 0;  // 0: not known
  std::vector<std::string> classes_;
  std::vector<float> values_;
  std::vector<std::int64_t> lengths_;
  bool has_numbers_ = false;  // as targets
  std::vector<std::int64_t> labels_;
  std::vector<float> numbers_;
};

}  // namespace

Dataset parse_ts(std::string_view text, const std::string& name) { return TsReader(text, name).read(); }

Dataset read_ts(const std::filesystem::path& path) {
  constexpr std::uint64_t most_bytes = std::uint64_t{4} << 30;
  return parse_ts(read_file(path, most_bytes), path.string());
}

}  // namespace millrace::training
