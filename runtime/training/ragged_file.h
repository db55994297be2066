// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include <millrace/runtime/training/dataset.h>

namespace millrace::training {

/// Sequences out of a .npz or .safetensors file with the tensors
///
///     rows      f32 or f64 [rows, …] or [rows] (one number each), or integers (numbers of words) [rows]
///     lengths   integers [N]: rows of each sequence, one behind the other
///     labels    integers [N] or [rows]: classes;  or floating [N, K] or [rows, K], or [N] or [rows] (one number each): values;  or integers [tokens]
///     label_lengths   integers [N], of tokens alone: how many each sequence has, one behind the other
///
/// Integers become i64, values the dtype of floating rows, else f32. Other tensors in the file are not looked at. Errors of the readers (npz.h, safetensors.h); ArgumentError
/// names a tensor that is missing, ShapeError, DTypeError or LoDError one that does not fit. UnsupportedError for another ending.
enum class Targets : std::uint8_t { sequence, row, tokens };  ///< to which labels belong; `tokens`: a sequence of them for each sequence
Dataset read_ragged(const std::filesystem::path& path, Targets targets);

/// A text as sequences of `length` bytes (the last may be shorter) whose targets are the bytes that follow: x i64 [rows], one target for
/// each row. `alphabet` holds the bytes that have a number, which is their place; empty: the ones that occur, in ascending order. The classes
/// are its bytes. A byte that is not in it is a ParseError that names its place. ArgumentError for a length below 1.
Dataset read_characters(const std::filesystem::path& path, std::int64_t length, const std::vector<std::string>& alphabet = {});
Dataset parse_characters(std::string_view text, const std::string& name, std::int64_t length,
                         const std::vector<std::string>& alphabet = {});

}  // namespace millrace::training
