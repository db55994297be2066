// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <millrace/runtime/program/program.h>

namespace millrace {

/// The printed form of a program: what `NAME.mr` holds and `millrace inspect` shows. It names everything (blocks with idx and parent_idx,
/// ops with named inputs, outputs with types, attributes) but the values of weights. Floats print so that they read back to the same bits.
///
///     millrace 1 "doubling"
///     input "x" = x: f32[?, 2] lod=1 {extents=strings["rows"]}
///     weight W: f32[2, 2]
///     block { idx: 0 parent_idx: -1
///       y: f32[?, 2] lod=1 = matmul(A=x, B=W)
///     }
///     output "y" = y
std::string print(const Program& program);

/// Reads the printed form: `print(parse(print(p))) == print(p)`. `weights` holds the values by var name. Every error begins with the line
/// and says what was expected and what was found: ParseError (syntax, names, literals, weights that are missing or of another type),
/// ProgramError (what `check` refuses; op definitions check what they check at building), UnsupportedError (ops that are not registered,
/// all at once). The text may come from anywhere: nothing is allocated from a size that it declares.
Program parse_program(std::string_view text, const std::map<std::string, Tensor>& weights,
                      std::shared_ptr<const OpRegistry> registry = nullptr);

}  // namespace millrace
