// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/host_device.h>

/// A warp of a block, its lanes, shared memory, barriers and words that blocks share: the names that kernels of several blocks are written
/// against. nvcc and NVRTC compile the headers of this folder for devices, so they include no standard header where NVRTC reads them. A host
/// compiler finds the same names in tests/support/emulated_cuda/emulated_lanes.h, where a warp is a thread of the host whose lanes go one after
/// the other through each `each_lane`.

#if defined(__CUDACC_RTC__)
namespace std {
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
enum class byte : unsigned char {};
}  // namespace std
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(__CUDACC__)
#define MILLRACE_DEVICE __device__ __forceinline__
#define MILLRACE_UNROLLED _Pragma("unroll")
#define MILLRACE_UNROLLED_BY_4 _Pragma("unroll 4")
#define MILLRACE_ROLLED _Pragma("unroll 1")
#else
#define MILLRACE_DEVICE inline
#define MILLRACE_UNROLLED
#define MILLRACE_UNROLLED_BY_4
#define MILLRACE_ROLLED
#endif

namespace millrace::cuda {

inline constexpr int warp_lanes = 32;

/// Words that a lane loads at once.
struct alignas(8) Words2 {
  std::uint32_t at[2];
};
struct alignas(16) Words4 {
  std::uint32_t at[4];
};
struct alignas(8) Floats2 {
  float at[2];
};
struct alignas(16) Floats4 {
  float at[4];
};

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

/// The bits of `from` as another type of the same size.
template <class To, class From>
MILLRACE_HD constexpr To bits_as(const From& from) {
  return __builtin_bit_cast(To, from);
}

}  // namespace millrace::cuda

#if defined(__CUDACC__)

namespace millrace::cuda {

/// A value of each lane of a warp; a lane sees its own.
template <class T>
struct PerLane {
  T own;
  MILLRACE_DEVICE T& operator[](int) { return own; }
  MILLRACE_DEVICE const T& operator[](int) const { return own; }
};

class Warp {
 public:
  MILLRACE_DEVICE int block() const { return static_cast<int>(blockIdx.x); }
  MILLRACE_DEVICE int warp() const { return static_cast<int>(threadIdx.x) / warp_lanes; }
  MILLRACE_DEVICE int warps() const { return static_cast<int>(blockDim.x) / warp_lanes; }
  MILLRACE_DEVICE std::byte* shared() const {
    extern __shared__ Words4 shared_words[];
    return reinterpret_cast<std::byte*>(shared_words);
  }
  /// f(lane) in each lane.
  template <class F>
  MILLRACE_DEVICE void each_lane(F&& f) const {
    f(static_cast<int>(threadIdx.x) % warp_lanes);
  }

  /// All warps of the block meet; all see the earlier writes of each.
  MILLRACE_DEVICE void sync() const { __syncthreads(); }
  /// The first `warps` warps of the block meet, whether or not there are others.
  MILLRACE_DEVICE void sync(int warps) const { asm volatile("barrier.sync 1, %0;" ::"r"(warps * warp_lanes) : "memory"); }
  /// `warps` warps meet, the computing ones and those that help them.
  MILLRACE_DEVICE void sync_with_helpers(int warps) const { asm volatile("barrier.sync 2, %0;" ::"r"(warps * warp_lanes) : "memory"); }
  /// All lanes of this warp see the earlier writes of each.
  MILLRACE_DEVICE void sync_lanes() const { __syncwarp(); }
  /// `sync` for all blocks of the cluster, in two halves.
  MILLRACE_DEVICE void cluster_arrive() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  MILLRACE_DEVICE void cluster_wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  /// This warp ends, and the cluster does not wait for it any more.
  MILLRACE_DEVICE void cluster_leave() const {}

  // Bytes that other blocks of the cluster store into this one's shared memory, counted by a word of 8 bytes there. By one lane of a block:
  /// Before the blocks meet, and never again.
  MILLRACE_DEVICE void arrivals_begin(std::byte* word) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(word)) : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  /// Once for each round: how many bytes it has.
  MILLRACE_DEVICE void arrivals_expect(std::byte* word, int bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(word)), "r"(bytes) : "memory");
#endif
  }
  /// All lanes wait for a round; `odd`: of the rounds 0, 1, … whether its number is odd. They see what was stored.
  MILLRACE_DEVICE void arrivals_wait(std::byte* word, bool odd) const {
#if __CUDA_ARCH__ >= 900
    std::uint32_t done = 0;
    while (done == 0)
      asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
                   : "=r"(done)
                   : "r"(shared_address(word)), "r"(odd ? 1u : 0u)
                   : "memory");
#endif
  }
  /// A lane stores 16 bytes to where `own` and `word` stand in the shared memory of block `rank` of the cluster.
  MILLRACE_DEVICE void store_to_block(int rank, std::byte* own, const Words4& value, std::byte* word) const {
#if __CUDA_ARCH__ >= 900
    std::uint32_t to, counter;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(own)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(shared_address(word)), "r"(rank));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(value.at[0]), "r"(value.at[1]), "r"(value.at[2]), "r"(value.at[3]), "r"(counter)
                 : "memory");
#endif
  }

  // Copies from global to shared memory of 16, 8 or 4 bytes, which go on beside the lane that started them.
  MILLRACE_DEVICE void copy_16(std::byte* to, const std::byte* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
  MILLRACE_DEVICE void copy_8(std::byte* to, const std::byte* from) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
  MILLRACE_DEVICE void copy_4(std::byte* to, const std::byte* from) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
  /// The copies that a lane started since the last call are one group.
  MILLRACE_DEVICE void copies_end() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  /// Waits for all of a lane's groups.
  MILLRACE_DEVICE void copies_wait_all() const { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
  /// Waits for all of a lane's groups but the last one.
  MILLRACE_DEVICE void copies_wait() const { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

  // Four warps from a multiple of 4 on, of a kernel whose blocks have 12: eight take the registers that the others leave.
  MILLRACE_DEVICE void more_registers() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
#endif
  }
  MILLRACE_DEVICE void fewer_registers() const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
#endif
  }
  /// Between the looks of a warp that waits for other blocks.
  MILLRACE_DEVICE void relax() const {}
  /// A longer pause, for a warp that computes nothing.
  MILLRACE_DEVICE void doze() const { __nanosleep(200); }
  /// Cycles of this multiprocessor.
  MILLRACE_DEVICE std::int64_t clock() const {
    std::int64_t now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
  }
  /// The value, in a register from here on: else the compiler may read a kernel's argument anew wherever it is used, and wait for it.
  MILLRACE_DEVICE int kept(int value) const {
    asm volatile("" : "+r"(value));
    return value;
  }
  template <class T>
  MILLRACE_DEVICE T* kept(T* value) const {
    asm volatile("" : "+l"(value));
    return value;
  }
  template <class T>
  MILLRACE_DEVICE T of_lane(const PerLane<T>& values, int lane) const {
    return __shfl_sync(0xffffffffu, values.own, lane);
  }
  /// The least value of all lanes.
  MILLRACE_DEVICE std::uint32_t least(const PerLane<std::uint32_t>& values) const { return __reduce_min_sync(0xffffffffu, values.own); }

 private:
  MILLRACE_DEVICE static std::uint32_t shared_address(const std::byte* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  }
};

// A word of shared memory, between the warps of a block.
MILLRACE_DEVICE void store_release_block(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
MILLRACE_DEVICE std::uint32_t load_acquire_block(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Words that blocks share. An acquire sees all writes before the release, of its thread and of the threads that met it in its block.
MILLRACE_DEVICE void add_release(std::uint32_t* word, std::uint32_t added) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(added) : "memory");
}
MILLRACE_DEVICE std::uint32_t add_acquire_release(std::uint32_t* word, std::uint32_t added) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(added) : "memory");
  return before;
}
MILLRACE_DEVICE std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
MILLRACE_DEVICE void store_release(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
/// To a word of the host's memory. Its fence waits for that memory.
MILLRACE_DEVICE void store_release_system(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
/// Past the first cache, which does not see what other multiprocessors write.
MILLRACE_DEVICE Words4 load_shared_by_blocks(const std::byte* from) {
  Words4 made;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(made.at[0]), "=r"(made.at[1]), "=r"(made.at[2]), "=r"(made.at[3])
               : "l"(from)
               : "memory");
  return made;
}

}  // namespace millrace::cuda

#else
#include <emulated_lanes.h>
#endif
