// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/program.h>
#include <millrace/tensor/device.h>

namespace millrace {

/// An op made ready for one device.
struct PreparedOp {
  const Op* op = nullptr;
  const OpDef* def = nullptr;
  OpKernel kernel;             ///< null: an op without a kernel, which waits (`OpDef::prepare`)
  std::size_t stream = 0;      ///< in the device's ring
  bool on_host = false;        ///< the outputs are small integers, computed from literals, extents and each other: they lie on the host
  bool copies_inputs = false;  ///< it runs on a device that is not the host: inputs may have to be copied there
  /// The inferred types of the outputs of an op from outside this library, whose kernel may do otherwise; none of the library's ops.
  std::vector<VarType> checked_outputs{};
};

/// Makes the ops of one program ready for one device. The program and the device must outlive it, the program the prepared ops too.
class OpPreparer {
 public:
  OpPreparer(const Program& program, const std::shared_ptr<Device>& device);

  /// By var: true for small integers that are computed on the host, from literals, extents and each other.
  const std::vector<bool>& on_host() const noexcept { return on_host_; }
  /// A weight or literal, on the device; on the host if its var is.
  Value placed(VarId var, const Tensor& value) const;

  /// By var of a block: the stream of the op that made it, until another op goes on there.
  using Chains = std::map<VarId, std::size_t>;
  /// Chains of ops share a stream, independent chains do not. `chains` belongs to the op's block. `stream`: the one that the op has in any case.
  PreparedOp prepare(const Op& op, Chains& chains, std::optional<std::size_t> stream = {});

 private:
  bool small_integer(VarId var) const;
  void find_host_vars();
  bool demote(const Op& op);
  bool demote_carried(const Op& op);
  bool take(const std::vector<VarId>& vars);
  std::size_t choose_stream(const Op& op, Chains& chains);

  const Program& program_;
  const std::shared_ptr<Device>& device_;
  std::vector<bool> on_host_;
  std::size_t next_stream_ = 0;
};

/// Input `input` where the op's kernel wants it. Small integers of the host are copied to a device, on `stream`; an input that the kernel
/// reads on the host is copied from the device, where it must be ready. A copy is kept in `copied`.
const Value* input_in_place(const PreparedOp& op, std::size_t input, const Value* value, StreamRef stream, Value& copied);

/// Ends a run of the op's kernel. Outputs with as many rows as the input that carries LoD get that LoD (`OpDef::passes_lod`). LoDError: inputs of two
/// different LoDs. Outputs of an op from outside this library are what its inference says: else ArgumentError (not set), DTypeError, ShapeError or
/// LoDError (other levels) name the op and the output.
void finish_outputs(const PreparedOp& op, std::span<const Value* const> inputs, std::span<Value> outputs);

/// "op matmul of block 1, 'gates'".
std::string describe(const Op& op, int block);

}  // namespace millrace
