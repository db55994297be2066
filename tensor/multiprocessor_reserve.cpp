// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/multiprocessor_reserve.h>

#include <map>
#include <mutex>

namespace millrace {
namespace {

struct Reserves {
  std::mutex mutex;
  std::map<int, int> by_device;
};

Reserves& reserves() {
  static Reserves all;
  return all;
}

void add(int device, int count) {
  const std::lock_guard lock(reserves().mutex);
  reserves().by_device[device] += count;
}

}  // namespace

MultiprocessorReserve::MultiprocessorReserve(int device, int count) : device_(device), count_(count) { add(device_, count_); }

MultiprocessorReserve::~MultiprocessorReserve() { add(device_, -count_); }

int reserved_multiprocessors(int device) {
  const std::lock_guard lock(reserves().mutex);
  const auto found = reserves().by_device.find(device);
  return found == reserves().by_device.end() ? 0 : found->second;
}

}  // namespace millrace
