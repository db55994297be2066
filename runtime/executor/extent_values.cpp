// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/extent_values.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace millrace {
namespace {

bool is_plain(const Program& program, VarId var) {
  const VarType& type = program.var(var).type;
  return type.is_tensor() && type.lod_depth == 0;
}

bool same_view(const Tensor& a, const Tensor& b) { return a.raw() == b.raw() && a.storage() == b.storage() && a.strides() == b.strides(); }

/// A shape, a count or a truth.
bool same_numbers(const Value& a, const Value& b) {
  if (!a.is_tensor() || !b.is_tensor()) return false;
  const Tensor &x = a.tensor().tensor(), &y = b.tensor().tensor();
  constexpr std::int64_t most = 16;
  return !is_floating(x.dtype()) && x.elements() <= most && x.dtype() == y.dtype() && x.dims() == y.dims() && x.is_contiguous() &&
         y.is_contiguous() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

}  // namespace

std::vector<bool> find_extent_ops(const CompiledProgram& compiled) {
  const Program& program = compiled.program;
  const std::vector<CompiledOp>& ops = compiled.block(0).ops;
  std::vector<bool> made(program.vars().size(), false);  // by var: follows from extents
  std::vector<bool> found(ops.size(), false);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const CompiledOp& op = ops[i];
    if (op.kind != CompiledOp::Kind::kernel || !op.def->pure || op.def->stores) continue;
    const auto follows = [&](std::size_t input) {
      const VarId var = op.op->inputs[input];
      if (var == no_var || program.constant(var) != nullptr) return true;
      return is_plain(program, var) && (made[static_cast<std::size_t>(var)] || op.def->traits.reads_extents(input));
    };
    bool all = !op.op->outputs.empty();
    for (std::size_t input = 0; all && input < op.op->inputs.size(); ++input) all = follows(input);
    all = all && std::all_of(op.op->outputs.begin(), op.op->outputs.end(), [&](VarId var) { return is_plain(program, var); });
    if (!all) continue;
    found[i] = true;
    for (const VarId output : op.op->outputs) made[static_cast<std::size_t>(output)] = true;
  }
  if (std::find(found.begin(), found.end(), true) == found.end()) found.clear();
  return found;
}

std::span<const Value> ExtentValues::recall(std::size_t place, std::span<const Value* const> inputs) const {
  if (place >= kept_.size() || kept_[place].outputs.empty()) return {};
  const Kept& kept = kept_[place];
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<Seen>& seen = kept.inputs[i];
    if (inputs[i] == nullptr && !seen) continue;
    if (inputs[i] == nullptr || !seen) return {};
    const Tensor& now = inputs[i]->tensor().tensor();
    if (now.dims() != seen->dims || now.dtype() != seen->dtype || (seen->read && !same_view(now, *seen->read))) return {};
  }
  return kept.outputs;
}

std::span<const Value> ExtentValues::keep(std::size_t place, const CompiledOp& op, std::span<const Value* const> inputs,
                                          std::span<const Value> outputs) {
  if (place >= kept_.size()) kept_.resize(place + 1);
  const Kept before = std::exchange(kept_[place], {});
  bytes_ -= before.bytes;
  Kept kept;
  for (const Value& output : outputs) {
    // Work that has yet to run may fail, or be dropped with its run.
    if (!output.is_tensor() || output.tensor().has_order() || !output.tensor().ready().reached()) return {};
    kept.bytes += output.tensor().tensor().storage()->bytes();
  }
  if (kept.bytes > most_bytes || bytes_ + kept.bytes > most_bytes_together) return {};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::optional<Seen>& seen = kept.inputs.emplace_back();
    if (inputs[i] == nullptr) continue;
    const Tensor& tensor = inputs[i]->tensor().tensor();
    seen = Seen{tensor.dtype(), tensor.dims(), std::nullopt};
    if (op.def->traits.reads_extents(i) || op.inputs[i].up == ValueSource::constant) continue;
    // An input that is not kept itself is a new tensor in each run: the output could never be recalled.
    if (!tensor.is_read_only() || tensor.storage()->bytes() > most_bytes) return {};
    seen->read = tensor;
  }
  if (std::equal(before.outputs.begin(), before.outputs.end(), outputs.begin(), outputs.end(), same_numbers)) {
    kept.outputs = before.outputs;
  } else {
    for (const Value& output : outputs) {
      const LoDTensor& made = output.tensor();
      kept.outputs.emplace_back(LoDTensor(made.tensor().read_only(), made.lod()));
    }
  }
  bytes_ += kept.bytes;
  kept_[place] = std::move(kept);
  return kept_[place].outputs;
}

bool ExtentValues::holds(const Allocation* storage) const noexcept {
  return std::any_of(kept_.begin(), kept_.end(), [storage](const Kept& kept) {
    return std::any_of(kept.outputs.begin(), kept.outputs.end(),
                       [storage](const Value& output) { return output.tensor().tensor().storage().get() == storage; });
  });
}

std::unique_ptr<ExtentValues> ExtentValuesPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<ExtentValues>();
  std::unique_ptr<ExtentValues> values = std::move(free_.back());
  free_.pop_back();
  return values;
}

void ExtentValuesPool::clear() noexcept {
  std::vector<std::unique_ptr<ExtentValues>> all;  // freed with no lock held
  const std::lock_guard lock(mutex_);
  all.swap(free_);
}

void ExtentValuesPool::give_back(std::unique_ptr<ExtentValues> values) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(values));
  } catch (const std::bad_alloc&) {  // the next run computes them again
    return;
  }
}

}  // namespace millrace
