// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include <millrace/runtime/files/internal/descriptor.h>
#include <millrace/tensor/tensor.h>

namespace millrace::importing {

/// Where a model came from: its name for errors, and the folder that external tensors lie beneath.
class Source {
 public:
  /// Without a folder external tensors are refused.
  explicit Source(std::string name, std::optional<std::filesystem::path> folder = std::nullopt);

  const std::string& name() const noexcept { return name_; }

  /// Elements out of a file beneath the folder. `location` is a relative path without `..`, no part of which is a
  /// symbolic link. Different parts of a file may not overlap, so that a model cannot ask for more memory than its
  /// files have. Errors open with `where`.
  Tensor external(const std::string& location, std::int64_t offset, DType dtype, const DDim& dims, const std::string& where);

 private:
  struct File {
    internal::Descriptor descriptor;
    std::int64_t bytes = 0;
    std::int64_t taken = 0;
    std::map<std::tuple<std::int64_t, DType, std::string>, Tensor> parts;  // one tensor for all that share bytes
  };
  File& open(const std::string& location, const std::string& where);

  std::string name_;
  std::optional<std::filesystem::path> folder_;
  std::map<std::string, File> files_;
};

}  // namespace millrace::importing
