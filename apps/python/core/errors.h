// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <millrace/tensor/error.h>

/// Errors that a Python program tells apart by the class of a built-in exception.
namespace millrace::python {

/// A name that a mapping lacks: mr.KeyError, an mr.IndexError and a KeyError.
class KeyError final : public IndexError {
 public:
  using IndexError::IndexError;
};

/// mr.FileNotFoundError, an mr.IoError and a FileNotFoundError.
class FileNotFoundError final : public IoError {
 public:
  using IoError::IoError;
};

/// FileNotFoundError unless something is there.
void expect_there(const std::filesystem::path& path);

}  // namespace millrace::python
