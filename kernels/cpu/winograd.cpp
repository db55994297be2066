// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/winograd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include <millrace/kernels/cpu/conv.h>
#include <millrace/kernels/cpu/conv_kernels.h>
#include <millrace/kernels/cpu/conv_steps.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/winograd_kernels.h>

namespace millrace::cpu {
namespace {

/// Bytes of transformed rows that are multiplied together: they stay in the second cache.
constexpr std::int64_t near_bytes = 192 << 10;
/// The last panel of groups that are transformed together is seldom full.
constexpr std::int64_t some_panels = 4;
/// Multiply-adds of a part for one thread.
constexpr std::int64_t thread_work = 1 << 18;

/// Output rows in groups of `winograd_rows`. The places of several groups lie side by side.
class Convolution {
 public:
  Convolution(const ConvDesc& desc, const Tensor& x, const WinogradWeights& weights, const Tensor* bias, const ConvSteps& steps,
              const Tensor& out)
      : desc_(desc),
        finish_(steps, out, true),
        x_(x),
        weights_(static_cast<const float*>(weights.transformed.raw())),
        out_(static_cast<float*>(out.raw_mutable())) {
    if (bias != nullptr) bias_ = static_cast<const float*>(bias->raw());
    channels_ = x.dim(1);
    units_ = out.dim(1);
    rows_ = out.dim(2);
    places_ = out.dim(3);
    k_ = weights.transformed.dim(2);
    panel_ = panel_vectors * gemm_kernels().lanes<float>();
    wide_ = std::max(x.dim(3) + std::max(desc.axes[1].before, desc.axes[1].after), places_);
    groups_ = (rows_ + winograd_rows - 1) / winograd_rows;
    const std::int64_t near = near_bytes / (winograd_sums * channels_ * static_cast<std::int64_t>(sizeof(float)));  // places
    together_ = std::min(groups_, std::max(near / wide_, (some_panels * panel_ + wide_ - 1) / wide_));
    span_ = together_ > 1 ? places_ : std::min(places_, std::max(near / panel_, std::int64_t{1}) * panel_);
    reach_ = (weights.weights.dim(3) - 1) * desc.axes[1].dilation;
    plane_ = (span_ < places_ ? span_ : before() + together_ * wide_) + panel_ / 2 + reach_;
    const std::int64_t taps = weights.weights.dim(3), dilation = desc.axes[1].dilation;
    for (std::int64_t k = 0; k < k_; ++k) offsets_.push_back(k / taps * plane_ + k % taps * dilation);
    const std::int64_t lanes = panel_ / panel_vectors;
    for (std::int32_t v = 0; v < panel_vectors; ++v) {
      stores_.push_back({0, static_cast<int>(lanes), v * lanes});
      begins_.push_back(v);
    }
    begins_.push_back(panel_vectors);
    zeros_.assign(static_cast<std::size_t>(x.dim(3)), 0.0f);
    odd_ = std::vector<std::atomic<bool>>(static_cast<std::size_t>(x.dim(0)));
  }

  /// Images that were not computed: an element is too large.
  std::vector<std::int64_t> run(const KernelContext& context) {
    const std::int64_t work = units_ * k_ * winograd_sums * wide_;
    context.team().parallel(x_.dim(0) * groups_, std::max<std::int64_t>(1, thread_work / std::max<std::int64_t>(1, work)),
                            [&](std::int64_t begin, std::int64_t end) {
                              const std::int64_t sums = winograd_sums * units_ * panel_;
                              const Tensor room(DType::f32, DDim{sums + winograd_sums * channels_ * plane_}, context.workspace());
                              auto* const memory = static_cast<float*>(room.raw_mutable());
                              // The padding: nothing else is written there.
                              std::fill_n(memory + sums, winograd_sums * channels_ * plane_, 0.0f);
                              while (begin < end) {
                                const std::int64_t image = begin / groups_, group = begin % groups_;
                                const std::int64_t count = std::min({together_, groups_ - group, end - begin});
                                for (std::int64_t place = 0; place < places_; place += span_)
                                  run_groups({image, group, count, place, std::min(span_, places_ - place)}, memory, memory + sums);
                                begin += count;
                              }
                            });
    std::vector<std::int64_t> left;
    for (std::size_t image = 0; image < odd_.size(); ++image)
      if (odd_[image].load()) left.push_back(static_cast<std::int64_t>(image));
    return left;
  }

 private:
  /// Some groups, or places [place, place + places) of one.
  struct Part {
    std::int64_t image, first, count, place, places;
  };

  void run_groups(const Part& part, float* sums, float* planes) {
    if (!take(part, planes)) return odd_[static_cast<std::size_t>(part.image)].store(true);
    ConvCall<float> call;
    call.offsets = offsets_.data();
    call.k = k_;
    call.units = units_;
    call.out_stride = panel_;
    call.stores = stores_.data();
    call.begins = begins_.data();
    // A panel begins at a place of the output, wherever the one before it ended.
    for (std::int64_t place = 0; place < part.count * wide_;) {
      const std::int64_t left = ((part.count - 1) * wide_ + part.places - place) * panel_vectors;
      if (left <= 0) break;
      call.vectors = left <= panel_ ? 1 : left <= 2 * panel_ ? 2 : static_cast<int>(panel_vectors);
      for (int j = 0; j < winograd_sums; ++j) {
        call.x = planes + j * channels_ * plane_ + place;
        call.weights = weights_ + j * units_ * k_;
        call.out = call.sums = sums + j * units_ * panel_;
        conv_panel(call);
      }
      give(part, place, sums);
      place += panel_;
      if (place % wide_ >= part.places) place += wide_ - place % wide_;
    }
    take_steps(part);
  }

  /// The arithmetic behind a part: rows of it that adjoin are one.
  void take_steps(const Part& part) const {
    const std::int64_t first = part.first * winograd_rows, rows = std::min(part.count * winograd_rows, rows_ - first);
    const bool adjoin = part.places == places_;
    for (std::int64_t row = 0; row < (adjoin ? 1 : rows); ++row)
      finish_.run(out_ + (part.image * units_ * rows_ + first + row) * places_ + part.place, 0, units_, rows_ * places_,
                  adjoin ? rows * places_ : part.places);
  }

  /// The rows of x that a part sees, transformed. False where an element is beyond 2^60, infinite or NaN.
  bool take(const Part& part, float* planes) const {
    const std::int64_t along = x_.dim(3);
    const std::int64_t from = std::max<std::int64_t>(0, part.place - before()),
                       to = std::clamp(part.place + part.places + reach_ - before(), from, along), ahead = from + before() - part.place;
    WinogradTake call;
    call.row_stride = along;
    call.count = span_ < places_ ? to - from : along;
    call.rows = x_.dim(2);
    call.first_row = part.first * winograd_rows - desc_.axes[0].before;
    call.groups = part.count;
    call.zeros = zeros_.data();
    call.sum_stride = channels_ * plane_;
    call.group_stride = wide_;
    std::uint32_t largest = 0;
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      float* const plane = planes + channel * plane_;
      call.x = static_cast<const float*>(x_.raw()) + (part.image * channels_ + channel) * x_.dim(2) * along + from;
      call.to = plane + ahead;
      largest = std::max(largest, winograd_take(call));
      if (span_ == places_) continue;
      for (int j = 0; j < winograd_sums; ++j) {
        float* const row = plane + j * call.sum_stride;
        std::fill(row, row + ahead, 0.0f);
        std::fill(row + ahead + call.count, row + plane_, 0.0f);
      }
    }
    return largest <= std::bit_cast<std::uint32_t>(0x1p60f);
  }

  /// The rows of the output of a panel's sums, without what lies between groups.
  void give(const Part& part, std::int64_t begin, const float* sums) const {
    WinogradGive call;
    call.sum_stride = units_ * panel_;
    call.panel = panel_;
    call.units = units_;
    call.bias = bias_;
    call.relu = desc_.relu;
    call.ending = finish_.ending();
    call.unit_stride = rows_ * places_;
    call.row_stride = places_;
    for (std::int64_t group = begin / wide_; group < part.count && group * wide_ < begin + panel_; ++group) {
      const std::int64_t from = std::max(begin, group * wide_), to = std::min(begin + panel_, group * wide_ + part.places);
      const std::int64_t row = (part.first + group) * winograd_rows;
      call.sums = sums + from - begin;
      call.count = to - from;
      call.rows = rows_ - row;
      call.to = out_ + (part.image * units_ * rows_ + row) * places_ + part.place + from - group * wide_;
      winograd_give(call);
    }
  }

  std::int64_t before() const { return desc_.axes[1].before; }

  const ConvDesc& desc_;
  ConvFinish<float> finish_;
  const Tensor& x_;
  const float* weights_;
  const float* bias_ = nullptr;
  float* out_;
  std::int64_t channels_, units_, rows_, places_, k_;
  std::int64_t panel_;     // places that are multiplied at once
  std::int64_t wide_;      // places from a group to the next: a row of x with padding that two of them share
  std::int64_t groups_;    // of an image
  std::int64_t together_;  // groups that are transformed together
  std::int64_t span_;      // places of a row that are multiplied together: all of them where groups are
  std::int64_t reach_;     // elements behind its first that a place sees
  std::int64_t plane_;     // of a transformed channel
  std::vector<std::int64_t> offsets_;
  std::vector<PlaceStore> stores_;  // whole vectors
  std::vector<std::int32_t> begins_;
  std::vector<float> zeros_;
  std::vector<std::atomic<bool>> odd_;
};

void by_dot_products(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const ConvSteps& steps,
                     const Tensor& out, const KernelContext& context) {
  if (!needs_planes(desc)) return conv(desc, x, nullptr, weights, bias, steps, out, context.team());
  const Tensor room(DType::f32, DDim{PaddedPlanes(desc, x.dims(), weights.dims()).elements}, context.workspace());
  room.storage()->mark_written();
  conv(desc, x, &room, weights, bias, steps, out, context.team());
}

}  // namespace

void conv(const ConvDesc& desc, const Tensor& x, const WinogradWeights& weights, const Tensor* bias, const ConvSteps& steps,
          const Tensor& out, const KernelContext& context) {
  if (out.elements() == 0) return;
  constexpr std::int64_t least_rows = 3;  // fewer are multiplied as often as by dot products
  if (out.dim(2) < least_rows) return by_dot_products(desc, x, weights.weights, bias, steps, out, context);
  for (const std::int64_t image : Convolution(desc, x, weights, bias, steps, out).run(context)) {
    ConvSteps own = steps;
    for (std::optional<Tensor>& operand : own.operands)
      if (operand && operand->rank() > 1) operand = operand->rows(image, image + 1);
    by_dot_products(desc, x.rows(image, image + 1), weights.weights, bias, own, out.rows(image, image + 1), context);
  }
}

}  // namespace millrace::cpu
