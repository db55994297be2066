// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <millrace/tensor/error.h>

/// Errors that a Python program tells apart by the class of a built-in exception.
namespace millrace::python {

/// A name that a mapping lacks: mr.KeyError, an mr.IndexError and a KeyError.
class KeyError final : public IndexError {
 public:
  using IndexError::IndexError;
};

/// The failed use of a file: an mr.IoError with `errno` and `filename`, mr.FileNotFoundError and mr.PermissionError by `number`, an errno (0: not known).
class FileError final : public IoError {
 public:
  FileError(const std::string& message, std::filesystem::path path, int number)
      : IoError(message), path_(std::move(path)), number_(number) {}
  const std::filesystem::path& path() const noexcept { return path_; }
  int number() const noexcept { return number_; }

 private:
  std::filesystem::path path_;
  int number_;
};

/// The errno whose text is the end of `message`, as the runtime writes it: "NAME: cannot open: No such file or directory". 0: none.
int errno_in(std::string_view message);
/// Calls `f`; its IoErrors become FileErrors of `path`.
template <class F>
auto naming_file(const std::filesystem::path& path, F f) {
  try {
    return f();
  } catch (const IoError& error) {
    throw FileError(error.what(), path, errno_in(error.what()));
  }
}
/// FileError unless something is there that may be read.
void expect_there(const std::filesystem::path& path);

}  // namespace millrace::python
