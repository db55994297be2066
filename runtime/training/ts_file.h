// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include <millrace/runtime/training/dataset.h>

namespace millrace::training {

/// Time series of the UCR, UEA and TSER archives, as aeon and sktime ship them (NAME_TRAIN.ts): lines of `#` are comments, lines of `@`
/// say what follows, and behind `@data` each line is one sequence, DIMENSION:DIMENSION:…:TARGET with the values of a dimension separated by
/// commas. Gives x f32 [rows, dimensions], one level of sequences, and a target for each: with `@classLabel true A B …` a class [N], numbered in that
/// order, with `@targetLabel true` a number f32 [N, 1]. Source: aeon.datasets, "The .ts file format".
///
/// ParseError, `NAME:LINE: …`, for what is no such file: a number that is none or that f32 does not hold, dimensions of other lengths, a class that is
/// not named, or named twice, both kinds of target, a sequence that `@dimensions`, or `@equalLength true` and `@seriesLength`, contradict, no `@data`. UnsupportedError for time stamps, missing values (`?`), and files without targets.
Dataset read_ts(const std::filesystem::path& path);
/// Reads the text of such a file; `name` opens each error.
Dataset parse_ts(std::string_view text, const std::string& name);

}  // namespace millrace::training
