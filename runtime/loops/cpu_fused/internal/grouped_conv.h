// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <millrace/kernels/cpu/grouped_kernels.h>
#include <millrace/kernels/row_function.h>

namespace millrace {

/// A convolution in groups, place by place: x [elements of a row] to [places, units]. `bases`: of each unit, where its group's channels begin;
/// `offsets`: of each k, and `places`: of each place, both from there. `weights`: [k, units].
template <class T, class Index>
class GroupedConv {
 public:
  GroupedConv(std::vector<Index> bases, std::vector<Index> offsets, std::vector<Index> places, std::vector<T> weights)
      : bases_(std::move(bases)), offsets_(std::move(offsets)), places_(std::move(places)), weights_(std::move(weights)) {}

  void operator()(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) const {
    cpu::GroupedCall<T, Index> call{.bases = bases_.data(),
                                    .offsets = offsets_.data(),
                                    .k = std::ssize(offsets_),
                                    .weights = weights_.data(),
                                    .units = std::ssize(bases_)};
    for (std::int64_t row = 0; row < rows; ++row) {
      call.out = outputs[0].row<T>(row);
      for (const Index place : places_) {
        call.x = inputs[0].row<T>(row) + place;
        grouped_units(call);
        call.out += call.units;
      }
    }
  }

 private:
  std::vector<Index> bases_, offsets_, places_;
  std::vector<T> weights_;
};

}  // namespace millrace
