// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <bench/library/registry.h>

namespace millrace::bench {

/// All of bench gpu, in the order of the table. To add one: a file, a declaration below, a line in gpu_families.cpp.
std::span<const Family> gpu_families();

void measure_few_rows(Context& context);
void measure_many_rows(Context& context);
void measure_beside_pytorch(Context& context);
void measure_stack(Context& context);
void measure_wide(Context& context);
void measure_training_layers(Context& context);
void measure_ragged(Context& context);
void measure_user_cells(Context& context);
void measure_ticks(Context& context);
void measure_resuming(Context& context);
void measure_costs(Context& context);

}  // namespace millrace::bench
