// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <millrace/runtime/training/dataset.h>

namespace millrace::training {

/// Sequences out of a .npz or .safetensors file with the tensors
///
///     rows      f32 or f64 [rows, …], or i64 or i32 (numbers of words) [rows]
///     lengths   i64 or i32 [N]: rows of each sequence, one behind the other
///     labels    i64 or i32 [N] or [rows]: classes;  or floating [N, K] or [rows, K]: values
///
/// Other tensors in the file are not looked at. `per_row`: labels belong to rows. Errors of the readers (npz.h, safetensors.h); ArgumentError
/// names a tensor that is missing, ShapeError, DTypeError or LoDError one that does not fit. UnsupportedError for another ending.
Dataset read_ragged(const std::filesystem::path& path, bool per_row);

/// A text as sequences of `length` bytes (the last may be shorter) whose targets are the bytes that follow: x i64 [rows], one target for
/// each row. `alphabet` holds the bytes that have a number, which is their place; empty: the ones that occur, in ascending order. The classes
/// are its bytes. A byte that is not in it is a ParseError that names its place. ArgumentError for a length below 1.
Dataset read_characters(const std::filesystem::path& path, std::int64_t length, const std::vector<std::string>& alphabet = {});
Dataset parse_characters(std::string_view text, const std::string& name, std::int64_t length,
                         const std::vector<std::string>& alphabet = {});

}  // namespace millrace::training
