// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/gpu_families.h>

namespace millrace::bench {
namespace {

constexpr Family all[] = {
    {"G1", "LSTM forward, f16 and (as G3) bf16, B = 1 to 16", measure_few_rows},
    {"G2", "LSTM forward, f16 and (as G3) bf16, B = 64 and 256", measure_many_rows},
    {"torch", "LSTM forward, 1 and 4 layers, beside PyTorch", measure_beside_pytorch},
    {"G4", "4 layers as a wavefront in one kernel: no kernel yet", list_wavefront},
    {"G5", "H 1536 to 2048: no kernel yet", list_wide},
    {"G6", "forward and backward: no kernel yet", list_training},
    {"G7", "ragged sequences, slots refilled as they end: no kernel yet", list_refill},
    {"G8", "cells spelled out of ops, as generated kernels", measure_user_cells},
    {"G9", "a tick of live sessions", measure_ticks},
    {"G10", "from the device's being done to the coroutine that awaits it", measure_resuming},
    {"costs", "what the driver's calls and our launches take", measure_costs},
};

}  // namespace

std::span<const Family> gpu_families() { return all; }

}  // namespace millrace::bench
