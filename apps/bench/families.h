// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <string>

#include <bench/library/registry.h>

namespace millrace::bench {

/// All of bench cpu, in the order of the table. To add one: a file, a declaration below, a line in families.cpp.
std::span<const Family> cpu_families();

void measure_one_step(Context& context);
void measure_low_precision(Context& context);
void measure_sequences(Context& context);
void measure_layers(Context& context);
void measure_ragged(Context& context);
void measure_live(Context& context);
void measure_cells(Context& context);
void measure_training(Context& context);
void measure_interpreted(Context& context);
void measure_load(Context& context);
void measure_memory(Context& context);
void measure_python(Context& context);
void measure_silero(Context& context);
void measure_networks(Context& context);
/// Networks of the family "models": the words of --networks.
std::set<std::string> network_names();
void measure_gemm(Context& context);

}  // namespace millrace::bench
