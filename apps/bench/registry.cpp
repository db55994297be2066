// SPDX-License-Identifier: Apache-2.0
#include <bench/registry.h>

#include <fmt/format.h>

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
    {"C8", "the interpreter's own cost", measure_interpreted},
    {"C9", "memory of live sessions", measure_memory},
    {"silero", "frames of a speech model", measure_silero},
    {"gemm", "a matrix product", measure_gemm},
};

}  // namespace

std::span<const Family> families() { return all; }

void emit_pair(Context& context, Row row, const Timer& ours, const Timer& peer, const std::string& why_not) {
  const auto [our_time, peer_time] = by_turns(ours, peer, context.effort);
  row.ours = our_time;
  if (peer)
    row.peer = peer_time;
  else
    row.note = why_not;
  context.emit(std::move(row));
}

void check_peer(double difference, Timer& peer, std::string& note) {
  if (!peer || difference <= 1e-3) return;
  peer = nullptr;
  note = fmt::format("not measured: the peer's result is {:.3g} from ours", difference);
}

std::string threads_text(int threads) { return threads == 1 ? "1 thread" : std::to_string(threads) + " threads"; }

}  // namespace millrace::bench
