// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/csv_file.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/training/internal/float_text.h>

namespace millrace::training {
namespace {

using millrace::internal::printable;

constexpr std::int64_t most_numbers = std::int64_t{1} << 20;  // classes or words that are numbers

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// A whole number from 0 on, without sign or leading zeros; −1: none.
std::int64_t whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || (text.size() > 1 && text[0] == '0')) return -1;
  return value;
}

/// A number that is no integer: 0.5, 1e3, 2.0.
bool is_fraction(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && text.find_first_of(".eE") != text.npos;
}

/// Lines of fields.
class Lines {
 public:
  Lines(std::string_view text, const std::string& name, char separator) : text_(text), name_(name), separator_(separator) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the mark that spreadsheets write
  }

  /// The next line that is not empty; false: there is none.
  bool next() {
    while (!text_.empty()) {
      ++line_;
      const auto end = text_.find('\n');
      std::string_view line = text_.substr(0, end);
      text_.remove_prefix(end == text_.npos ? text_.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (trimmed(line).empty() && line.find(separator_) == line.npos) continue;
      split(line);
      return true;
    }
    return false;
  }
  const std::vector<std::string>& fields() const { return fields_; }
  std::size_t line() const { return line_; }
  [[noreturn]] void fail(std::size_t line, const std::string& what) const {
    throw ParseError(name_ + ":" + std::to_string(line) + ": " + what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail(line_, what); }

 private:
  void split(std::string_view line) {
    fields_.clear();
    while (true) {
      const std::string_view start = line.substr(std::min(line.find_first_not_of(' '), line.size()));
      if (start.starts_with('"')) {
        line = quoted(start.substr(1));
      } else {
        const auto at = line.find(separator_);
        fields_.emplace_back(trimmed(line.substr(0, at)));
        line.remove_prefix(std::min(at, line.size()));
      }
      if (line.empty()) return;
      line.remove_prefix(1);  // the separator
    }
  }
  /// Takes the field up to its closing quote. Gives the rest, which begins with a separator or is empty.
  std::string_view quoted(std::string_view rest) {
    std::string field;
    while (true) {
      const auto at = rest.find('"');
      if (at == rest.npos) fail("expected a closing '\"' on the same line, found none");
      field += rest.substr(0, at);
      rest.remove_prefix(at + 1);
      if (!rest.starts_with('"')) break;
      field += '"';
      rest.remove_prefix(1);
    }
    fields_.push_back(std::move(field));
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    if (!rest.empty() && rest[0] != separator_) fail("expected a separator behind a closing '\"', found " + printable(rest));
    return rest;
  }

  std::string_view text_;
  const std::string& name_;
  char separator_;
  std::size_t line_ = 0;
  std::vector<std::string> fields_;
};

/// Texts in the order of their first use, and what they become.
class Names {
 public:
  explicit Names(std::string what) : what_(std::move(what)) {}

  void add(const std::string& text, std::size_t line) {
    const auto [at, fresh] = known_.try_emplace(text, std::ssize(known_));
    if (fresh) lines_.push_back(line);
    uses_.push_back(at->second);
  }

  /// The number of each use. `names`: those of the training data, or empty ones that are filled. `further`: the training data has been read.
  /// `unknown`: 1 where number 0 is a text that is not among the names, else 0.
  Tensor numbers(std::vector<std::string>& names, bool further, std::int64_t unknown, const Lines& at) const {
    for (const auto& [text, id] : known_)
      if (unknown == 0 && is_fraction(text))
        at.fail(line_of(id), "expected a " + what_ + ", a name or a whole number from 0 on, found " + printable(text) +
                                 " (loss = \"mse\" is for numbers)");
    if (!further && !all_numbers()) {
      if (unknown > 0) names.emplace_back();
      for (const auto& [text, id] : known_) names.push_back(text);
    }
    std::vector<std::int64_t> number(known_.size());
    for (const auto& [text, id] : known_) number[static_cast<std::size_t>(id)] = number_of(text, names, unknown, at, line_of(id));
    std::vector<std::int64_t> made;
    made.reserve(uses_.size());
    for (const std::int64_t use : uses_) made.push_back(number[static_cast<std::size_t>(use)]);
    return Tensor::from(made, {std::ssize(made)});
  }

 private:
  std::size_t line_of(std::int64_t id) const { return lines_[static_cast<std::size_t>(id)]; }
  bool all_numbers() const {
    return std::all_of(known_.begin(), known_.end(), [](const auto& each) { return whole_number(each.first) >= 0; });
  }
  std::int64_t number_of(const std::string& text, const std::vector<std::string>& names, std::int64_t unknown, const Lines& at,
                         std::size_t line) const {
    if (names.empty()) {
      const std::int64_t number = whole_number(text);
      if (number < 0 || number >= most_numbers)
        at.fail(line, "expected a " + what_ + " from 0 to " + std::to_string(most_numbers - 1) + ", found " + printable(text));
      return number;
    }
    const auto found = std::lower_bound(names.begin() + unknown, names.end(), text);
    if (found != names.end() && *found == text) return found - names.begin();
    if (unknown == 0) at.fail(line, "expected a " + what_ + " of the training data, found " + printable(text));
    return 0;
  }

  std::string what_;
  std::map<std::string, std::int64_t> known_;
  std::vector<std::size_t> lines_;
  std::vector<std::int64_t> uses_;
};

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name, const CsvForm& form, const Dataset* like)
      : name_(name), form_(form), like_(like), lines_(text, name, form.separator) {}

  Dataset read() {
    if (!lines_.next())
      lines_.fail(std::max<std::size_t>(1, lines_.line()), "expected a line with the names of the columns, found the end of the file");
    header();
    while (lines_.next()) row();
    Dataset made;
    made.source = name_;
    made.per_row = form_.per_row;
    for (const std::size_t each : features_) made.columns.push_back(names_[each]);
    if (like_ != nullptr) made.classes = like_->classes, made.words = like_->words;
    const bool further = like_ != nullptr;
    const std::int64_t rows = rows_;
    made.x = LoDTensor(form_.words ? words_.numbers(made.words, further, 1, lines_) : Tensor::from(values_, {rows, std::ssize(features_)}),
                       LoD::from_lengths({lengths_}));
    const std::int64_t count = form_.per_row ? rows : std::ssize(lengths_);
    made.targets =
        form_.numbers ? Tensor::from(target_values_, {count, std::ssize(targets_)}) : classes_.numbers(made.classes, further, 0, lines_);
    return made;
  }

 private:
  void header() {
    names_ = lines_.fields();
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (std::find(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(i), names_[i]) !=
          names_.begin() + static_cast<std::ptrdiff_t>(i))
        lines_.fail("expected columns of different names, found " + printable(names_[i]) + " twice");
    if (!form_.series) sequence_ = column(form_.sequence, "sequence_column");
    for (const std::string& name : form_.targets) targets_.push_back(column(name, "target_columns"));
    for (const std::string& name : form_.features) features_.push_back(column(name, "feature_columns"));
    if (form_.features.empty()) all_features();
    if (features_.empty()) lines_.fail("expected at least one column of features beside the targets, found none");
    if (form_.words && features_.size() != 1)
      lines_.fail("expected one column of words for the embedding, found " + std::to_string(features_.size()) + ": " + all(features_) +
                  " (feature_columns names it)");
    if (targets_.empty() || (!form_.numbers && targets_.size() != 1))
      throw ArgumentError(name_ + ": target_columns: expected one column of classes, found " + std::to_string(targets_.size()));
  }

  /// The columns that are neither the sequence nor targets. Those of further data are told by their names, wherever they stand.
  void all_features() {
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < names_.size(); ++i)
      if ((form_.series || i != sequence_) && std::find(targets_.begin(), targets_.end(), i) == targets_.end()) others.push_back(i);
    if (like_ == nullptr || like_->columns.empty()) {
      features_ = std::move(others);
      return;
    }
    for (const std::string& name : like_->columns) features_.push_back(column(name, "a feature of the training data"));
    std::erase_if(others, [&](std::size_t i) { return std::find(features_.begin(), features_.end(), i) != features_.end(); });
    if (!others.empty()) lines_.fail("expected the columns of the training data, found " + all(others) + " beside them");
  }

  std::size_t column(const std::string& name, const std::string& key) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      std::vector<std::size_t> every(names_.size());
      for (std::size_t i = 0; i < every.size(); ++i) every[i] = i;
      lines_.fail("expected a column " + printable(name) + " (" + key + "), found " + all(every));
    }
    return static_cast<std::size_t>(found - names_.begin());
  }
  std::string all(const std::vector<std::size_t>& columns) const {
    std::string text;
    for (const std::size_t each : columns) text += (text.empty() ? "" : ", ") + printable(names_[each]);
    return text;
  }

  void row() {
    if (lines_.fields().size() != names_.size())
      lines_.fail("expected " + std::to_string(names_.size()) + " fields as in the first line, found " +
                  std::to_string(lines_.fields().size()));
    const bool begins = sequence_begins();
    if (begins) lengths_.push_back(0);
    ++lengths_.back();
    ++rows_;
    if (form_.words)
      words_.add(text(features_[0]), lines_.line());
    else
      for (const std::size_t each : features_) values_.push_back(number(each));
    if (form_.per_row || begins)
      target();
    else
      for (std::size_t k = 0; k < targets_.size(); ++k)
        if (text(targets_[k]) != before_[k])
          lines_.fail("expected the target " + printable(before_[k]) + " of the sequence's rows before, found " +
                      printable(text(targets_[k])) + " (targets = \"row\" is for one of each row)");
  }

  bool sequence_begins() {
    if (form_.series) return lengths_.empty() || lengths_.back() == form_.length;
    const std::string& id = text(sequence_);
    if (!lengths_.empty() && id == id_) return false;
    if (!seen_.insert(id).second)
      lines_.fail("expected the rows of a sequence one behind the other, found more of sequence " + printable(id));
    id_ = id;
    return true;
  }

  void target() {
    before_.clear();
    for (const std::size_t each : targets_) {
      before_.push_back(text(each));
      if (form_.numbers)
        target_values_.push_back(number(each));
      else
        classes_.add(before_.back(), lines_.line());
    }
  }

  const std::string& text(std::size_t column) const {
    const std::string& field = lines_.fields()[column];
    if (field.empty()) lines_.fail("column " + printable(names_[column]) + ": expected a value, found none");
    return field;
  }
  float number(std::size_t column) const {
    const std::string& field = text(column);
    float value = 0;
    const std::errc error = internal::parse_float(field, value);
    if (error == std::errc::result_out_of_range)
      lines_.fail("column " + printable(names_[column]) + ": expected a finite number that f32 holds, found " + printable(field));
    if (error != std::errc() || !std::isfinite(value))
      lines_.fail("column " + printable(names_[column]) + ": expected a finite number, found " + printable(field));
    return value;
  }

  const std::string& name_;
  const CsvForm& form_;
  const Dataset* like_;
  Lines lines_;
  std::vector<std::string> names_;
  std::size_t sequence_ = 0;
  std::vector<std::size_t> targets_, features_;

  std::int64_t rows_ = 0;
  std::string id_;
  std::set<std::string> seen_;
  LoD::Level lengths_;
  std::vector<float> values_, target_values_;
  std::vector<std::string> before_;  // targets of the sequence's first row
  Names words_{"word that is a number"}, classes_{"class"};
};

}  // namespace

void check_columns(const CsvForm& form) {
  const auto check_twice = [](const std::string& key, const std::vector<std::string>& names) {
    for (auto each = names.begin(); each != names.end(); ++each)
      if (std::find(names.begin(), each, *each) != each)
        throw ArgumentError(key + ": expected different columns, found " + printable(*each) + " twice");
  };
  check_twice("target_columns", form.targets);
  check_twice("feature_columns", form.features);
  for (const std::string& name : form.features)
    if (std::find(form.targets.begin(), form.targets.end(), name) != form.targets.end())
      throw ArgumentError("feature_columns: expected columns that are no targets, found " + printable(name) +
                          ", a column of target_columns");
}

Dataset parse_csv(std::string_view text, const std::string& name, const CsvForm& form, const Dataset* like) {
  try {
    check_columns(form);
  } catch (const ArgumentError& error) {
    throw ArgumentError(name + ": " + error.what());
  }
  if (form.length < 1) throw ArgumentError(name + ": expected sequences of at least 1 row, found " + std::to_string(form.length));
  return CsvReader(text, name, form, like).read();
}

Dataset read_csv(const std::filesystem::path& path, const CsvForm& form, const Dataset* like) {
  constexpr std::uint64_t most_bytes = std::uint64_t{4} << 30;
  return parse_csv(read_file(path, most_bytes), path.string(), form, like);
}

}  // namespace millrace::training
