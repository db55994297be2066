// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <millrace/tensor/dtype.h>

namespace millrace::cpu {

/// `count` elements in another dtype, each by `convert_element`; steps are in elements.
template <class From, class To>
void convert_run(const From* from, std::int64_t from_step, To* to, std::int64_t to_step, std::int64_t count) {
  if (from_step == 1 && to_step == 1) {  // a loop over vectors
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert_element<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = convert_element<To>(from[i * from_step]);
  }
}

}  // namespace millrace::cpu
