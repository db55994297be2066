// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/program.h>

namespace millrace {

/// A program as an ONNX model (opset 18, or 19 where an op needs it) of the default domain, for ONNX Runtime and others.
///
/// An input with one level of LoD becomes a plain [T, …]: the rows of one sequence. `unpack`, `pack`, `shrink` and their like
/// are then what they are for a batch of one. A loop that counts the steps of what it reads becomes a `Scan`, another one a
/// `Loop`, `if` becomes `If`; an array is the tensor of its stacked slots, where slots are written out of order or under a
/// condition a tensor that is filled, or an ONNX sequence. Constant values are computed before, as by a run.
/// Inputs and outputs keep their names; an extent that is not known is named after its input.
///
/// UnsupportedError names all ops (and forms of ops) that have no counterpart in ONNX at once, more than one level of LoD,
/// a model of more than 2 GiB, and a build without the part `onnx`. The same program gives the same bytes.
std::string format_onnx(const Program& program);
/// Writes those bytes to a file, which appears whole or not at all. IoError.
void write_onnx(const std::filesystem::path& path, const Program& program);

/// The model for a ragged batch: an input with one level of LoD is the rows of all sequences, [rows, …], and beside it NAME.lengths, i64
/// [sequences]; so is such an output. A value with one row for each sequence is [sequences, …], and one with neither is the same for all. The
/// sequences are computed one after the other, each by the graph of one; there may be none, and empty ones.
///
/// A program without LoD, such as an imported one, is the graph of one sequence: the one open extent of an input is that of its rows, of which
/// the batch holds those of all sequences, with NAME.lengths; likewise an output with an open extent, and another output gets an axis 0 of
/// sequences. An input without an open extent is the same for all sequences.
///
/// UnsupportedError names, beside what `format_onnx` refuses, an op that makes the numbers of one sequence depend on another's, a port with
/// two open extents, and a program that has no rows of sequences.
std::string format_onnx_batch(const Program& program);
void write_onnx_batch(const std::filesystem::path& path, const Program& program);

/// One step of one sequence: inputs are one row of each live input with the extents of `Recurrence::Input::dims`, and the states by
/// name; outputs are what the step gives, and `next_NAME` for each state that changes. A space in a state's name becomes `_`. With levels of
/// LoD inside the outermost, steps lie between boundaries, each a model of its own (`format_onnx_boundary`).
std::string format_onnx_step(const Recurrence& recurrence);
void write_onnx_step(const std::filesystem::path& path, const Recurrence& recurrence);
/// The opening or closing of an inner sequence: inputs are the values that arrive with it, and the states; outputs its results, and
/// `next_NAME` for each state that it sets.
std::string format_onnx_boundary(const Recurrence& recurrence, const Recurrence::Boundary& at);
/// The first values of the states, under the names that a step takes them by, from what is given at the start of a sequence.
/// An input with the name of a state (as with state pairs of a graph that is one step) is called initial_NAME.
std::string format_onnx_start(const Recurrence& recurrence);

}  // namespace millrace
