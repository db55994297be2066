// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace millrace {

/// A count inside the counted object. `T` derives from it and is destroyed with `delete` when the last `Ref` goes.
class RefCounted {
 protected:
  RefCounted() = default;
  ~RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

 private:
  template <class T>
  friend class Ref;
  std::atomic<std::uint32_t> references_{0};
};

/// A shared owner of a `RefCounted`. As safe to share between threads as std::shared_ptr.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_ != nullptr) object_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr && object_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete object_;
  }

  /// A Ref that takes over a reference which `detach` gave away.
  static Ref adopt(T* object) noexcept {
    Ref adopted;
    adopted.object_ = object;
    return adopted;
  }
  void detach() noexcept { object_ = nullptr; }

  T* get() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  T* operator->() const noexcept { return object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

}  // namespace millrace
