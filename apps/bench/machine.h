// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace millrace::bench {

/// The rates of this machine, measured when they are first asked for. One core; more cores do as much more.
class Machine {
 public:
  /// "AMD EPYC, 2 CPUs".
  static std::string name();

  /// Floating-point operations a second in a product of f32 matrices: the better of ours and oneDNN's, 64×512×2048.
  double flops();
  /// Bytes a second that a core reads again and again from `bytes` of memory.
  double read_rate(std::int64_t bytes);
  /// Seconds below which `products` (operations) over `weights` (bytes, read `times` times) cannot go on `threads` cores.
  double floor(double products, std::int64_t weights, double times, int threads);

 private:
  double flops_ = 0;
  std::map<std::int64_t, double> read_rates_;
};

}  // namespace millrace::bench
