// SPDX-License-Identifier: Apache-2.0
#include <bench/machine.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include <bench/gemm_pair.h>
#include <bench/library/measure.h>

namespace millrace::bench {
namespace {

constexpr int tries = 60;          // the best of which nothing else interrupted
constexpr std::size_t lanes = 64;  // eight vectors of the widest kind

#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
std::uint64_t
sum_of(const std::uint64_t* from, std::size_t count) {
  std::array<std::uint64_t, lanes> sums{};
  for (std::size_t i = 0; i + lanes <= count; i += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += from[i + lane];
  std::uint64_t sum = 0;
  for (const std::uint64_t one : sums) sum += one;
  return sum;
}

}  // namespace

std::string Machine::name() {
  std::ifstream info("/proc/cpuinfo");
  std::string model = "CPU";
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " CPUs";
}

double Machine::flops() {
  if (flops_ > 0) return flops_;
  const GemmPair pair(64, 512, 2048);
  double least = HUGE_VAL;
  for (int iteration = 0; iteration < tries; ++iteration) {
    least = std::min(least, pair.ours()(0.001));
    if (pair.peer()) least = std::min(least, pair.peer()(0.001));
  }
  flops_ = 2.0 * 64 * 512 * 2048 / least;
  return flops_;
}

double Machine::read_rate(std::int64_t bytes) {
  double& rate = read_rates_[bytes];
  if (rate > 0) return rate;
  std::vector<std::uint64_t> memory(std::max<std::size_t>(lanes, static_cast<std::size_t>(bytes) / sizeof(std::uint64_t)), 3);
  volatile std::uint64_t sum = 0;
  const Timer timer = timer_of([&] { sum = sum + sum_of(memory.data(), memory.size()); });
  double least = HUGE_VAL;
  for (int iteration = 0; iteration < tries; ++iteration) least = std::min(least, timer(0.0005));
  rate = static_cast<double>(memory.size() * sizeof(std::uint64_t)) / least;
  return rate;
}

double Machine::floor(double products, std::int64_t weights, double times, int threads) {
  const double reading = static_cast<double>(weights) * times / read_rate(weights / threads);
  return std::max(products / flops(), reading) / threads;
}

}  // namespace millrace::bench
