// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv_units.h>

#include <algorithm>
#include <vector>

#include <millrace/kernels/cpu/conv_kernels.h>
#include <millrace/kernels/cpu/conv_steps.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/cpu/transpose_kernels.h>

namespace millrace::cpu {
namespace {

/// The most units of a panel.
constexpr std::int64_t most_width = 64;

/// One group of all images.
template <class T>
class UnitGroup {
 public:
  UnitGroup(const ConvDesc& desc, const T* planes, const PaddedPlanes& form, const DDim& weights, const ConvSteps& steps, const Tensor& out,
            std::int64_t group)
      : desc_(desc), form_(form), finish_(steps, out, true), out_(static_cast<T*>(out.raw_mutable())), units_(weights[0] / desc.groups) {
    first_unit_ = group * units_;
    planes_ = planes + group * weights[1] * form.strides[1];
    extents_.assign(out.dims().begin() + 2, out.dims().end());
    for (const std::int64_t extent : extents_) places_ *= extent;
    rows_ = out.dim(0) * places_;
    all_units_ = out.dim(1);
    find_offsets(weights);
  }

  void run(const T* packed, const T* bias, ThreadTeam& team) const {
    const PackedLayout layout = conv_units_layout(dtype_of<T>, std::ssize(offsets_), units_);
    // Where panels are fewer than threads, rows are cut too.
    const std::int64_t cuts =
        std::max<std::int64_t>((team.size() + layout.panels() - 1) / layout.panels(), (rows_ + max_rows - 1) / max_rows);
    each_span(team, rows_, (rows_ + cuts - 1) / cuts, layout.panels(), layout.panel_stride(),
              [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
                const T* places[max_rows];
                for (std::int64_t i = 0; i < count; ++i) places[i] = place(row + i);
                alignas(64) T sums[max_rows * most_width];
                alignas(64) T addend[most_width] = {};
                UnitsCall<T> call;
                call.places = places;
                call.rows = count;
                call.offsets = offsets_.data();
                call.k = layout.k;
                call.relu = desc_.relu;
                call.ending = finish_.ending();
                call.sums = sums;
                for (std::int64_t panel = first; panel < last; ++panel) {
                  const std::int64_t width = layout.width_of(panel), begin = panel * layout.width();
                  const std::int64_t units = std::min(width, units_ - begin), unit = first_unit_ + begin;
                  call.weights = packed + panel * layout.panel_stride();
                  call.vectors = static_cast<int>(width / layout.lanes);
                  if (bias != nullptr) {
                    std::copy_n(bias + unit, units, addend);
                    call.bias = addend;
                  }
                  conv_unit_panel(call);
                  give(row, count, unit, units, width, sums);
                }
              });
  }

 private:
  /// Over channels, then taps in row-major order.
  void find_offsets(const DDim& weights) {
    const DDim taps = weights.erased(0).erased(0);
    std::vector<std::int64_t> of_taps(static_cast<std::size_t>(taps.elements()));
    for (std::size_t tap = 0; tap < of_taps.size(); ++tap) {
      auto rest = static_cast<std::int64_t>(tap);
      for (int axis = taps.rank() - 1; axis >= 0; --axis) {
        of_taps[tap] += form_.offset_of(axis, desc_.axes[static_cast<std::size_t>(axis)], rest % taps[axis]);
        rest /= taps[axis];
      }
    }
    offsets_.reserve(of_taps.size() * static_cast<std::size_t>(weights[1]));
    for (std::int64_t channel = 0; channel < weights[1]; ++channel)
      for (const std::int64_t offset : of_taps) offsets_.push_back(channel * form_.strides[1] + offset);
  }

  /// The element that the first k of a place of the output sees.
  const T* place(std::int64_t row) const {
    const T* from = planes_ + row / places_ * form_.strides[0];
    std::int64_t rest = row % places_;
    for (std::size_t axis = extents_.size(); axis-- > 0;) {
      from += rest % extents_[axis] * form_.strides[2 + static_cast<int>(axis)];
      rest /= extents_[axis];
    }
    return from;
  }

  /// Rows of units become rows of places, image by image.
  void give(std::int64_t row, std::int64_t count, std::int64_t unit, std::int64_t units, std::int64_t width, const T* sums) const {
    while (count > 0) {
      const std::int64_t place = row % places_, some = std::min(count, places_ - place);
      T* const to = out_ + (row / places_ * all_units_ + unit) * places_ + place;
      transpose_rows(bits_of(sums), width, bits_of(to), places_, units, some);
      finish_.run(to, unit, units, places_, some);
      row += some;
      count -= some;
      sums += some * width;
    }
  }

  const ConvDesc& desc_;
  const PaddedPlanes& form_;
  ConvFinish<T> finish_;
  const T* planes_;
  T* out_;
  std::int64_t units_, all_units_ = 0, first_unit_ = 0, places_ = 1, rows_ = 0;
  std::vector<std::int64_t> extents_;  // of the output
  std::vector<std::int64_t> offsets_;  // of each k, in the planes
};

}  // namespace

PackedLayout conv_units_layout(DType dtype, std::int64_t k, std::int64_t units) {
  return dtype == DType::f64 ? layout_for<double>(gemm_kernels(), k, units) : layout_for<float>(gemm_kernels(), k, units);
}

template <class T>
void conv_by_units(const ConvDesc& desc, const T* planes, const PaddedPlanes& form, const DDim& weights, const Tensor& packed,
                   const Tensor* bias, const ConvSteps& steps, const Tensor& out, ThreadTeam& team) {
  const std::int64_t units = weights[0] / desc.groups, k = weights.elements() / weights[0];
  const std::int64_t each = conv_units_layout(dtype_of<T>, k, units).elements();
  for (std::int64_t group = 0; group < desc.groups; ++group)
    UnitGroup<T>(desc, planes, form, weights, steps, out, group)
        .run(static_cast<const T*>(packed.raw()) + group * each, bias == nullptr ? nullptr : static_cast<const T*>(bias->raw()), team);
}
template void conv_by_units<float>(const ConvDesc&, const float*, const PaddedPlanes&, const DDim&, const Tensor&, const Tensor*,
                                   const ConvSteps&, const Tensor&, ThreadTeam&);
template void conv_by_units<double>(const ConvDesc&, const double*, const PaddedPlanes&, const DDim&, const Tensor&, const Tensor*,
                                    const ConvSteps&, const Tensor&, ThreadTeam&);

}  // namespace millrace::cpu
