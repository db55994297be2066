// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/arithmetic.h>
#include <millrace/kernels/int8.h>
#include <millrace/kernels/row_function.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// The scale and the zero of bytes (kernels/round_to_bytes.h). The scale is NaN where an element is none, or the range has no end.
struct ByteRange {
  float scale;
  float zero;
  bool odd() const { return scale != scale; }
};
ByteRange byte_range(const float* x, std::int64_t count);
/// The range of `rows` rows of `count` elements.
ByteRange byte_range(const RowView& x, std::int64_t rows, std::int64_t count);
/// 0 where the range has none.
void take_bytes(const float* x, std::int64_t count, const ByteRange& range, std::uint8_t* bytes);
/// `rows` rows (at most `max_rows`) of such bytes times some panels of the weights.
void multiply_bytes(const Int8Plan& plan, const PackedInt8& weights, const ByteRange& range, const std::uint8_t* bytes, std::int64_t rows,
                    const RowView& out, std::int64_t first_panel, std::int64_t last_panel);
/// The elements that stand for 0 in bytes, which may be i8, and in each column of the weights, and what is added to the sums of each column (null: 0).
struct ByteZeros {
  bool has_sign = false;
  std::int32_t of_rows = 0;
  const std::int32_t* of_columns = nullptr;
  const std::int32_t* added = nullptr;
};
/// Steps of arithmetic on sums, with operands of one element or of one for each column, and the dtype behind them.
struct SumSteps {
  std::vector<ArithmeticStep> steps;
  std::vector<Tensor> operands;  ///< f32, contiguous
  DType to = DType::i32;         ///< i32: the sums as they are
};
/// Sums of rows of bytes less what stands for 0 times weights less what stands for 0, and what is added, in i32, and `steps` on them.
void sum_bytes(const Int8Plan& plan, const PackedInt8& weights, const std::uint8_t* bytes, std::int64_t rows, const ByteZeros& zeros,
               const SumSteps& steps, void* out, ThreadTeam& team);
/// `rows` rows of one range; `bytes`: room for them.
void matmul_bytes(const Int8Plan& plan, const PackedInt8& weights, const float* x, std::int64_t rows, std::uint8_t* bytes, float* out,
                  ThreadTeam& team);

}  // namespace millrace::cpu
