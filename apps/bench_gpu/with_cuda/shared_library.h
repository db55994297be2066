// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <dlfcn.h>

namespace millrace::bench {

/// A library that may be absent, looked for under several names; never unloaded, since its threads may outlive us.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      if (error_.empty()) error_ = ::dlerror();  // of the first name, which is the one wanted
    }
  }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  const std::string& error() const noexcept { return error_; }

  /// Finds `function` by its name; false, and a null pointer, where the library has none.
  template <class F>
  bool find(const char* name, F*& function) const {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string error_;
};

}  // namespace millrace::bench
