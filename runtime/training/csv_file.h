// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/runtime/training/dataset.h>

namespace millrace::training {

/// Columns of a CSV file, and their meaning.
struct CsvForm {
  std::string sequence = "sequence";          ///< column that says to which sequence a row belongs; its values are any texts
  std::vector<std::string> targets{"label"};  ///< one column of classes, or columns of numbers
  std::vector<std::string> features;          ///< empty: all other columns
  char separator = ',';
  bool per_row = false;  ///< false: the rows of a sequence have one target, and repeat it
  bool numbers = false;  ///< targets are f32 values, not classes
  bool words = false;    ///< the only feature is a word, not a number
  bool series = false;   ///< no column of sequences: the file is cut into sequences of `length` rows
  std::int64_t length = 100;
};

/// ArgumentError, which begins with the key, for columns that are named twice, or as a feature and a target.
void check_columns(const CsvForm& form);

/// Sequences out of a file of comma separated values (RFC 4180): a line with the names of the columns, then a line for each row. Fields may stand
/// in double quotes, within one line. Rows of a sequence stand one behind the other. Empty lines are skipped.
///
/// x is f32 [rows, features], or i64 [rows] of words; targets are f32 [N or rows, K], or i64 [N or rows] of classes. Classes that are whole
/// numbers from 0 on, all of them, are themselves; else they are names, and their numbers those of `Dataset::classes`: the names in ascending
/// order of their bytes. Fractions are no names of classes. Words are treated alike, but names begin with 1: word 0 is one that the training data does not have.
///
/// `like`: the training data, whose names a further file has; a class that is not among them is an error.
/// ParseError, `NAME:LINE: …`: a column that is not there, another number of fields, a field that is no finite number of f32, a missing value, a sequence
/// that goes on behind another, targets of one sequence that differ. ArgumentError for a form that is none.
Dataset read_csv(const std::filesystem::path& path, const CsvForm& form, const Dataset* like = nullptr);
/// Reads the text of such a file; `name` opens each error.
Dataset parse_csv(std::string_view text, const std::string& name, const CsvForm& form, const Dataset* like = nullptr);

}  // namespace millrace::training
