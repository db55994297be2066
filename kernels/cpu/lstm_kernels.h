// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/kernels/lstm_cell.h>

namespace millrace::cpu {

/// Columns from a gate to the next in the panel of a block of `units` units, which are one vector of `lanes` but in the last block: where the gates of the
/// last units fit three vectors they stand close together, and the others of its four are not read.
inline std::int64_t lstm_gate_step(std::int64_t lanes, std::int64_t units) { return 4 * units <= 3 * lanes ? units : lanes; }

/// Some rows and some blocks of units of one LSTM step. A block is one vector of units; its four gates are four vectors of columns, in panels:
/// [panel][k][gate of the panel][lane].
template <class T>
struct LstmCall {
  const LstmDesc* desc = nullptr;
  std::int64_t rows = 0;                 ///< ≤ max_rows
  const T* const* x = nullptr;           ///< rows of C; null with a projection
  const T* const* projection = nullptr;  ///< rows of 4·H; null with x
  const T* const* h = nullptr;
  const T* const* sums = nullptr;  ///< instead of h and R: rows of 4·H, h·R
  const T* const* c = nullptr;
  T* const* h_out = nullptr;
  T* const* c_out = nullptr;
  const void* input = nullptr;      ///< W, packed
  const void* recurrent = nullptr;  ///< R, packed
  bool pairs = false;               ///< W and R are bf16 in pairs of k, [pair][gate][lane][2]; f32 alone
  const T* bias = nullptr;          ///< [block][gate][lane] or null
  const T* peepholes = nullptr;     ///< [block][i f o][lane] or null
  std::int64_t first_block = 0;
  std::int64_t last_block = 0;
  bool backwards = false;  ///< the last block first
};

/// The cells of one instruction set.
struct LstmKernels {
  std::int64_t lanes_f32;
  std::int64_t lanes_f64;
  std::int64_t panel;  ///< vectors of columns
  void (*run_f32)(const LstmCall<float>&);
  void (*run_f64)(const LstmCall<double>&);

  template <class T>
  std::int64_t lanes() const {
    return sizeof(T) == 4 ? lanes_f32 : lanes_f64;
  }
  void run(const LstmCall<float>& call) const { run_f32(call); }
  void run(const LstmCall<double>& call) const { run_f64(call); }
};

/// The kernels of the best instruction set of this machine.
const LstmKernels& lstm_kernels();

}  // namespace millrace::cpu
