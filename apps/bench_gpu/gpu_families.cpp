// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/gpu_families.h>

namespace millrace::bench {
namespace {

constexpr Family all[] = {
    {"G1", "LSTM forward, f16 and (as G3) bf16, B = 1 to 16", measure_few_rows},
    {"G2", "LSTM forward, f16 and (as G3) bf16, B = 64 and 256", measure_many_rows},
    {"G5", "LSTM forward, H = 1536 and 2048", measure_wide},
    {"torch", "LSTM forward, one layer, beside PyTorch", measure_beside_pytorch},
    {"G4", "LSTM forward, 4 layers side by side, beside PyTorch and beside one layer", measure_stack},
    {"G6", "LSTM forward and backward, beside PyTorch", measure_training_layers},
    {"G7", "LSTM forward over 512 ragged sequences, beside the dense steps that they need, and beside PyTorch", measure_ragged},
    {"G8", "cells spelled out of ops, as generated kernels", measure_user_cells},
    {"G9", "a tick of live sessions", measure_ticks},
    {"G10", "from the device's being done to the coroutine that awaits it", measure_resuming},
    {"costs", "what the driver's calls and our launches take", measure_costs},
};

}  // namespace

std::span<const Family> gpu_families() { return all; }

}  // namespace millrace::bench
