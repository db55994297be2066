// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <bench/library/measure.h>
#include <bench/library/row.h>

namespace millrace::bench {

class Machine;
class GpuMachine;

/// The means and limits with which the families of rows are measured.
struct Context {
  Effort effort;
  bool quick = false;  ///< a few small shapes, too short to be trusted: shows that everything runs
  std::vector<int> threads = {1, 2};
  int device = 0;                                          ///< of bench gpu
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;  ///< of bench gpu: (H, rows) that are measured; empty: all
  std::string programs;                                    ///< the folder of millrace and millrace-bench
  std::set<std::string> networks;                          ///< of bench cpu: those of the models that are measured; empty: all
  std::string models;                                      ///< the folder of the Silero models
  std::string python;                                      ///< the interpreter that has ONNX Runtime and PyTorch, if any has
  Machine* machine = nullptr;                              ///< of bench cpu
  GpuMachine* gpu = nullptr;                               ///< of bench gpu
  std::function<void(Row)> emit;                           ///< takes each row as it is done
};

/// The rows of one id.
struct Family {
  const char* id;
  const char* about;
  void (*measure)(Context& context);
};

/// Fills in both times of `row`, measured by turns, and emits it; `why_not` is the note when there is no peer.
void emit_pair(Context& context, Row row, const Timer& ours, const Timer& peer, const std::string& why_not);
/// A peer that computes something else is no peer: empties its timer and says so when it is further than `most` from ours.
void check_peer(double difference, Timer& peer, std::string& note, double most = 1e-3);

/// "1 thread", "2 threads".
std::string threads_text(int threads);

}  // namespace millrace::bench
