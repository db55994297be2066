// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <millrace/runtime/program/op_def.h>
#include <millrace/tensor/device.h>

namespace millrace::ops {

/// A host stream of its own for packing weights when a program is compiled: what was packed is there when `prepare`
/// returns.
class PackingStream {
 public:
  operator StreamRef() { return device_.stream(0); }

 private:
  CpuDevice device_;
};

/// Packed weights of an op: made when the program is compiled, or, of an op in a loop's body on the host, when the op first runs by itself. Such
/// a loop mostly runs in one piece, with weights that it packs for itself. Cheap to copy, thread-safe.
template <class T>
class PackedOnce {
 public:
  /// `pack` makes them on the host and owns what it reads; `place` brings them to where the op will run.
  template <class Place>
  PackedOnce(const PrepareContext& context, std::function<T()> pack, Place place) : state_(std::make_shared<State>()) {
    const Op& op = context.op();
    const bool in_loop = !op.outputs.empty() && context.program().var(op.outputs[0]).block != 0;
    if (in_loop && context.place().is_cpu()) {
      state_->pack = std::move(pack);
      return;
    }
    state_->packed.emplace(pack());
    place(*state_->packed, context);
  }

  const T& get() const {
    State& state = *state_;
    if (state.pack) std::call_once(state.once, [&state] { state.packed.emplace(state.pack()); });
    return *state.packed;
  }

 private:
  struct State {
    std::once_flag once;
    std::function<T()> pack;
    std::optional<T> packed;
  };
  std::shared_ptr<State> state_;
};

}  // namespace millrace::ops
