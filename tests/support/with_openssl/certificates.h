// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace millrace::testing {

/// An authority that lives as long as a test. Its files are PEM, below a folder of the caller's.
class Authority {
 public:
  explicit Authority(std::filesystem::path folder);
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  struct Certificate {
    std::string certificate, key;  ///< names of files
    std::uint64_t serial = 0;
  };
  /// For 127.0.0.1 and localhost, or for `name` alone, valid from `begin` to `end`: seconds from now.
  Certificate make(const std::string& name = {}, long begin = -3600, long end = 3600);
  /// The file of its own certificate, for a client to trust.
  std::string file() const;

 private:
  struct State;
  State* state_;
};

}  // namespace millrace::testing
