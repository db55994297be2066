// SPDX-License-Identifier: Apache-2.0
#include <bench/families.h>

namespace millrace::bench {
namespace {

constexpr Family all[] = {
    {"C1", "one step of one sequence, f32", measure_one_step},
    {"C2", "one step with bf16 and int8 weights", measure_low_precision},
    {"C3", "equal sequences", measure_sequences},
    {"layers", "layers and directions side by side on several threads", measure_layers},
    {"C4", "ragged sequences", measure_ragged},
    {"C5", "live streams of a speech model, through the socket", measure_live},
    {"C6", "cells of one's own", measure_cells},
    {"C7", "training steps, and forward and backward of a layer", measure_training},
    {"C8", "the interpreter's own cost", measure_interpreted},
    {"C9", "memory of live sessions", measure_memory},
    {"R1", "the load that a service holds, through the socket", measure_load},
    {"Python", "the bindings beside the same in C++", measure_python},
    {"silero", "frames of a speech model", measure_silero},
    {"models", "whole networks of these shapes, with random weights", measure_networks},
    {"gemm", "a matrix product", measure_gemm},
};

}  // namespace

std::span<const Family> cpu_families() { return all; }

}  // namespace millrace::bench
