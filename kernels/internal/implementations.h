// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <millrace/tensor/error.h>
#include <millrace/tensor/kernel_context.h>

namespace millrace::internal {

/// One way to compute an op whose kernels take `Arguments`.
template <class... Arguments>
class Implementation {
 public:
  /// Computes in host memory, on the threads of the team.
  using OnHost = void (*)(Arguments..., ThreadTeam&);
  /// Starts kernels of a device on the queue of the context.
  using OnDevice = void (*)(Arguments..., KernelContext&);
  /// Null where the implementation takes these arguments there, else the reason why not: a string literal.
  using Refuses = const char* (*)(const KernelContext&, Arguments...);

  constexpr Implementation() = default;
  /// `name` is a string literal.
  constexpr Implementation(const char* name, OnHost function, Refuses refuses = nullptr)
      : name_(name), on_host_(function), refuses_(refuses) {}
  constexpr Implementation(const char* name, OnDevice function, Refuses refuses = nullptr)
      : name_(name), on_device_(function), refuses_(refuses) {}

  constexpr const char* name() const noexcept { return name_; }

  const char* refusal(const KernelContext& context, const Arguments&... arguments) const {
    const bool at_device = context.device_queue() != nullptr;
    if (at_device != (on_device_ != nullptr)) return at_device ? "computes in host memory" : "starts kernels of a device";
    return refuses_ == nullptr ? nullptr : refuses_(context, arguments...);
  }
  void run(const Arguments&... arguments, KernelContext& context) const {
    on_device_ != nullptr ? on_device_(arguments..., context) : on_host_(arguments..., context.team());
  }

 private:
  const char* name_ = "";
  OnHost on_host_ = nullptr;
  OnDevice on_device_ = nullptr;
  Refuses refuses_ = nullptr;
};

/// The name of an implementation and the reason for which it refused.
struct RefusedImplementation {
  const char* name;
  const char* reason;
};

/// UnsupportedError: "dropout: expected an implementation for cuda:0, found none: cpu computes in host memory: run the program on cpu".
[[noreturn]] void refuse_all(const char* op, const Place& place, std::span<const RefusedImplementation> refused);

/// The ordered list of the implementations of one op; the last is the reference, which computes in host memory whatever the arguments are. A
/// constant of the op's source:
///
///     constexpr internal::Implementations<const Tensor&, const Tensor&> casts{"cast", {{"cuda", cuda::cast}}, cpu::cast};
///     launch(…, [x, out](KernelContext& context) { casts.run(x, out, context); }, stream);
///
/// The choice allocates nothing and depends on the context and the arguments alone. Thread-safe.
template <class... Arguments>
class Implementations {
 public:
  using One = Implementation<Arguments...>;
  static constexpr std::size_t most = 4;

  /// `op` is a string literal. ArgumentError for more than `most` implementations, the reference included.
  constexpr Implementations(const char* op, std::initializer_list<One> preferred, typename One::OnHost reference) : op_(op) {
    if (preferred.size() >= most)
      throw ArgumentError("implementations of " + std::string(op) + ": expected at most " + std::to_string(most) + ", found " +
                          std::to_string(preferred.size() + 1));
    for (const One& one : preferred) list_[count_++] = one;
    list_[count_++] = One("cpu", reference);
  }

  constexpr const char* op() const noexcept { return op_; }
  /// The implementations in order of preference, the reference last.
  constexpr std::span<const One> list() const noexcept { return {list_.data(), count_}; }

  /// The first implementation that refuses neither the context nor the arguments. UnsupportedError names the op, the place, and each
  /// implementation with its reason.
  const One& choose(const KernelContext& context, const Arguments&... arguments) const {
    for (const One& one : list())
      if (one.refusal(context, arguments...) == nullptr) return one;
    refuse(context, arguments...);
  }
  void run(const Arguments&... arguments, KernelContext& context) const { choose(context, arguments...).run(arguments..., context); }

 private:
  [[noreturn, gnu::noinline, gnu::cold]] void refuse(const KernelContext& context, const Arguments&... arguments) const {
    std::array<RefusedImplementation, most> refused{};
    for (std::size_t i = 0; i < count_; ++i) refused[i] = {list_[i].name(), list_[i].refusal(context, arguments...)};
    refuse_all(op_, context.place(), {refused.data(), count_});
  }

  const char* op_;
  std::array<One, most> list_{};
  std::size_t count_ = 0;
};

}  // namespace millrace::internal
