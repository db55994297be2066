// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/dtype.h>

/// Elements of 16 bits to f32 and back that lie side by side, each by `convert_element`, by instruction set.
namespace millrace::cpu {

void convert_side_by_side(const float16* from, float* to, std::int64_t count);
void convert_side_by_side(const bfloat16* from, float* to, std::int64_t count);
void convert_side_by_side(const float* from, float16* to, std::int64_t count);
void convert_side_by_side(const float* from, bfloat16* to, std::int64_t count);

}  // namespace millrace::cpu
