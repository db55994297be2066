// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>

namespace millrace {

/// A call of the CUDA runtime that failed, or work on a device that did: names the call, the place, and CUDA's name and text for it. After
/// most failures of work the device's context is unusable for the rest of the process (`is_sticky`).
class CudaError : public Error {
 public:
  CudaError(const std::string& what, int code, bool sticky) : Error(what), code_(code), sticky_(sticky) {}
  /// The number of CUDA's `cudaError_t`.
  int code() const noexcept { return code_; }
  bool is_sticky() const noexcept { return sticky_; }

 private:
  int code_;
  bool sticky_;
};

/// The properties of a device, as CUDA reports them.
struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t bytes = 0;       ///< of its memory
  std::size_t free_bytes = 0;  ///< of these, now
};

/// The devices of this machine: none where the build has no CUDA, or the machine no driver.
std::vector<CudaDeviceInfo> cuda_devices();
/// One line for people: "runtime 13.0, driver 13.0, 1 device", or why there are none.
std::string cuda_status();

struct CudaOptions {
  int index = 0;
  /// Streams of the ring, 1…16. Results do not depend on it.
  std::size_t streams = 4;
  /// Bytes that the device's memory resource may hold, what it keeps for later included.
  std::size_t budget = std::numeric_limits<std::size_t>::max();
  /// Whether products may be cuBLASLt's where it gives our bits (kernels/library_products.h). Results do not depend on it.
  bool library_products = true;
  /// Products of f32 (and convolutions, cells, and whatever else is made of them) round their factors to tf32, 10 bits of mantissa, and sum in
  /// f32 by tensor cores: for speed, at the price of the bits of a device without it. All backends and all kernels of the device agree on it, and a
  /// row's bits depend on no other row, as without. cuBLASLt takes no part in it. Other dtypes are not touched.
  bool tf32 = false;
};

/// A CUDA device: its ring of streams, its memory, and one waiter, which notices what completes.
///
/// Kernels are started by the caller; nothing here waits for the device but `Point::wait`, copies from and to host memory that is not pinned,
/// and the destructor. A point costs the device nothing until it is awaited: by another stream (an event), or a waiter or coroutine (an
/// event and a word that the device writes; the waiter spins on the words for at most 50 µs, then naps between two looks; with nothing in
/// flight it sleeps). The point of an array's slot is an event from its write on.
/// A point that another stream asks for late may cover what was enqueued since. Memory is reused in stream order: the memory of a tensor that is gone
/// serves the same stream at once, and another one behind an event. A failure on the device fails the points of its streams with CudaError,
/// a wrong value that a kernel finds (an index outside) with IndexError or ArgumentError. A stream behind a point that is no CUDA stream's
/// keeps its work on the host until the point is reached. Thread safety: every member, from any thread. Destroy it when nothing that it runs
/// is awaited any more; tensors may outlive it.
///
/// PlaceError where there is no such device; UnsupportedError where the build has no CUDA; ArgumentError for the numbers.
std::shared_ptr<Device> make_cuda_device(const CudaOptions& options = {});

/// Whether a device was made with `CudaOptions::tf32`. False for those that are none of CUDA's.
bool uses_tf32(Device& device);

/// Kinds of launches that record an event once their blocks run, as the device was found when it was made: "plain, cluster", or "none".
std::string completion_event_launches(Device& device);

/// Host memory that devices copy from and to without the caller's waiting; kept when given back, and handed out again. Throws as above.
std::shared_ptr<MemoryResource> pinned_memory();

/// The device of `place`: the CPU with `threads`, or a CUDA device, with tf32 where that is asked for. PlaceError for another backend's;
/// UnsupportedError for tf32 on the CPU.
std::shared_ptr<Device> make_device(const Place& place, int threads = 1, std::size_t streams = 4, bool tf32 = false);

}  // namespace millrace
