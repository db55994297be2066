// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/depthwise.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <millrace/kernels/cpu/all_finite.h>
#include <millrace/kernels/cpu/conv_steps.h>
#include <millrace/kernels/cpu/depthwise_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/transpose_kernels.h>
#include <millrace/tensor/checked.h>

namespace millrace::cpu {
namespace {

/// Multiply-adds of a part for one thread.
constexpr std::int64_t thread_work = 1 << 18;

/// Bytes of planes that are copied one after the other before they are computed, and stay in the first cache: a load of elements that were just stored waits,
/// unless it reads one whole store.
constexpr std::int64_t near_bytes = 16 << 10;

/// The most places of a small plane, its padding included, and of its results: a vector of each stays in the second cache.
constexpr std::int64_t small_places = 1024;

/// Each plane is copied between its padding to memory of the thread, which stays in the first caches, with its columns apart by their phase of the stride:
/// a vector of places then sees elements side by side for each tap.
template <class T>
class Planes {
 public:
  Planes(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const ConvSteps& steps, const Tensor& out)
      : desc_(desc),
        finish_(steps, out, true),
        x_(x),
        weights_(static_cast<const T*>(weights.raw())),
        bias_(bias == nullptr ? nullptr : static_cast<const T*>(bias->raw())) {
    const bool flat = desc.axes.size() == 1;  // one axis is one row
    along_ = desc.axes.back();
    if (!flat) down_ = desc.axes.front();
    step_ = x.strides()[-1];
    row_step_ = flat ? 0 : x.strides()[2];
    rows_ = flat ? 1 : x.dim(2);
    columns_ = x.dim(-1);
    taps1_ = flat ? 1 : weights.dim(2);
    taps2_ = weights.dim(-1);
    out_rows_ = flat ? 1 : out.dim(2);
    out_columns_ = out.dim(-1);
    units_ = weights.dim(0) / desc.groups;
    out_ = static_cast<T*>(out.raw_mutable());
    padded_ = along_.before + columns_ + along_.after;
    width_ = (padded_ - 1) / along_.stride + 1;
    height_ = down_.before + rows_ + down_.after;
    small_ = units_ == 1 && step_ == 1 && (flat || row_step_ == columns_) && padded_ <= small_places / height_ &&
             out_columns_ <= small_places / out_rows_ && channels_fill_more();
    // Zero times a weight that is not finite is NaN.
    const bool finite = all_finite(weights_, weights.elements());
    first_seen_ = finite ? down_.before : 0;
    last_seen_ = finite ? down_.before + rows_ : height_;
    for (std::int64_t tap = 0; tap < taps2_; ++tap) {
      const std::int64_t place = tap * along_.dilation;
      offsets_.push_back(place % along_.stride * width_ + place / along_.stride);
    }
  }

  std::int64_t count() const { return x_.dim(0) * desc_.groups; }
  std::int64_t work() const { return units_ * out_rows_ * out_columns_ * taps1_ * taps2_; }

  void run(std::int64_t begin, std::int64_t end, const KernelContext& context) const {
    small_ ? run_lanes(begin, end, context) : run_planes(begin, end, context);
  }

 private:
  /// Whether the channels take fewer vectors than the rows of their planes, one of each row: a quarter fewer, for the turns there and back.
  bool channels_fill_more() const {
    const std::int64_t lanes = gemm_kernels().lanes<T>(), vectors = (desc_.groups + lanes - 1) / lanes;
    return 4 * vectors * out_columns_ < 3 * desc_.groups;
  }

  /// Small planes, channels in the lanes: rows would leave vectors empty. All is turned there and back.
  void run_lanes(std::int64_t begin, std::int64_t end, const KernelContext& context) const {
    const std::int64_t lanes = gemm_kernels().lanes<T>(), groups = desc_.groups, taps = taps1_ * taps2_, here = rows_ * columns_;
    const std::int64_t places = out_rows_ * out_columns_, width = padded_;
    const bool padded = width != columns_ || height_ != rows_;
    const Tensor room(x_.dtype(), DDim{(taps + 1 + here + places + (padded ? height_ * width : 0)) * lanes}, context.workspace());
    T* const weights = static_cast<T*>(room.raw_mutable());
    T* const bias = weights + taps * lanes;
    T* const x = bias + lanes;
    T* const out = x + here * lanes;
    T* const plane = padded ? out + places * lanes : x;
    std::fill_n(weights, room.elements(), T{0});  // the padding, and lanes without a channel
    std::int64_t waiting = begin;                 // the first plane whose results wait for their arithmetic
    for (std::int64_t first = begin; first < end;) {
      const std::int64_t channel = first % groups, count = std::min({lanes, end - first, groups - channel});
      transpose_rows(bits_of(weights_ + channel * taps), taps, bits_of(weights), lanes, taps, count);
      if (bias_ != nullptr) std::copy_n(bias_ + channel, count, bias);
      const T* const from = static_cast<const T*>(x_.raw()) + first / groups * x_.strides()[0] + channel * x_.strides()[1];
      transpose_rows(bits_of(from), x_.strides()[1], bits_of(x), lanes, here, count);
      for (std::int64_t row = 0; padded && row < rows_; ++row)
        std::copy_n(x + row * columns_ * lanes, columns_ * lanes, plane + ((down_.before + row) * width + along_.before) * lanes);
      depthwise_lanes(DepthwiseLanes<T>{plane,
                                        width,
                                        {down_.stride, down_.dilation, taps1_},
                                        {along_.stride, along_.dilation, taps2_},
                                        weights,
                                        bias_ == nullptr ? nullptr : bias,
                                        desc_.relu,
                                        finish_.ending(),
                                        out,
                                        out_rows_,
                                        out_columns_,
                                        first_seen_,
                                        last_seen_});
      transpose_rows(bits_of(std::as_const(out)), lanes, bits_of(out_ + first * places), places, count, places);
      first += count;
      const bool whole = first == end || first % groups == 0;
      if (!whole && (first - waiting) * places * static_cast<std::int64_t>(sizeof(T)) < near_bytes) continue;
      finish_.run(out_ + waiting * places, waiting % groups, first - waiting, places, places);
      waiting = first;
    }
  }

  void run_planes(std::int64_t begin, std::int64_t end, const KernelContext& context) const {
    const std::int64_t elements = checked_add(checked_mul(checked_mul(height_, width_), along_.stride), slack), groups = desc_.groups;
    const std::int64_t together = std::clamp(near_bytes / static_cast<std::int64_t>(sizeof(T)) / elements, std::int64_t{1}, end - begin);
    const Tensor room(x_.dtype(), DDim{checked_mul(elements, together)}, context.workspace());
    T* const planes = static_cast<T*>(room.raw_mutable());
    std::fill_n(planes, elements * together, T{0});  // the padding, which nothing else writes
    const std::int64_t places = out_rows_ * out_columns_;
    for (std::int64_t first = begin; first < end;) {
      const std::int64_t count = std::min({together, end - first, groups - first % groups});
      const T* const from = static_cast<const T*>(x_.raw()) + first / groups * x_.strides()[0] + first % groups * x_.strides()[1];
      for (std::int64_t i = 0; i < count; ++i) copy(from + i * x_.strides()[1], planes + i * elements);
      const std::int64_t channel = first % groups * units_;
      T* const to = out_ + first * units_ * places;
      for (std::int64_t unit = 0; unit < count * units_; ++unit)
        depthwise_plane(DepthwiseCall<T>{planes + unit / units_ * elements, width_ * along_.stride, down_.stride, down_.dilation,
                                         offsets_.data(), taps1_, taps2_, weights_ + (channel + unit) * taps1_ * taps2_,
                                         bias_ == nullptr ? nullptr : bias_ + channel + unit, desc_.relu, finish_.ending(),
                                         to + unit * places, out_rows_, out_columns_, first_seen_, last_seen_});
      finish_.run(to, channel, count * units_, places, places);
      first += count;
    }
  }

  static constexpr std::int64_t slack = 256 / sizeof(T);

  void copy(const T* from, T* to) const {
    T* const first = to + down_.before * width_ * along_.stride;
    if (step_ == 1)
      return split_phases(
          PlaneCopy<T>{from, row_step_, rows_, columns_, along_.before, along_.stride, width_, width_ * along_.stride, first});
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t i = 0; i < columns_; ++i) {
        const std::int64_t place = along_.before + i;
        first[row * width_ * along_.stride + place % along_.stride * width_ + place / along_.stride] = from[row * row_step_ + i * step_];
      }
    }
  }

  const ConvDesc& desc_;
  ConvFinish<T> finish_;
  const Tensor& x_;
  const T* weights_;
  const T* bias_;
  T* out_;
  ConvDesc::Axis down_, along_;
  std::int64_t step_, row_step_;
  std::int64_t rows_, columns_, taps1_, taps2_, out_rows_, out_columns_, units_, padded_, width_, height_, first_seen_, last_seen_;
  bool small_ = false;
  std::vector<std::int64_t> offsets_;
};

template <class T>
void run_type(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
              const KernelContext& context) {
  const Planes<T> planes(desc, x, weights, bias, steps, out);
  const std::int64_t grain = std::max<std::int64_t>(1, thread_work / std::max<std::int64_t>(1, planes.work()));
  context.team().parallel(planes.count(), grain, [&](std::int64_t begin, std::int64_t end) { planes.run(begin, end, context); });
}

}  // namespace

bool is_depthwise(const ConvDesc& desc, const Tensor& weights) {
  const std::size_t axes = desc.axes.size();
  return weights.dim(1) == 1 && desc.groups > 1 && (axes == 1 || axes == 2) &&
         weights.elements() / std::max<std::int64_t>(1, weights.dim(0)) <= k_block;
}

void depthwise(const ConvDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
               const KernelContext& context) {
  if (out.elements() == 0) return;
  if (x.dtype() == DType::f64) return run_type<double>(desc, x, weights, bias, steps, out, context);
  run_type<float>(desc, x, weights, bias, steps, out, context);
}

}  // namespace millrace::cpu
