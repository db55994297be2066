// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv_byte_units.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/conv_axis.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/cpu/transpose_kernels.h>
#include <millrace/kernels/internal/wrapping.h>

namespace millrace::cpu {
namespace {

/// Units of a panel, at most.
constexpr std::int64_t most_width = 64;
/// Rows of more places fill their vectors.
constexpr std::int64_t most_places = 64;
/// Sums of so many products of bytes stay in i32.
constexpr std::int64_t most_k = 65536;

/// An axis whose taps are looked up in the input place by place.
struct GatheredAxis : ConvAxis {
  using ConvAxis::ConvAxis;
  bool is_plain() const { return taps == 1 && before == 0 && (out - 1) * stride < extent; }
  /// The place of the input that a tap sees, which may lie in the padding.
  std::int64_t place(std::int64_t of_out, std::int64_t tap) const { return of_out * stride + tap * dilation - before; }
  bool has(std::int64_t at) const { return at >= 0 && at < extent; }
};

Int8Layout layout_of(const Int8Kernels& kernels, const ConvDesc& desc, const DDim& weights) {
  return {weights.elements() / weights[0], weights[0] / desc.groups, kernels.lanes, kernels.group};
}
bool is_depthwise(const ConvDesc& desc, const DDim& weights) { return weights[1] == 1 && weights[0] == desc.groups; }
std::int64_t blocks_of(std::int64_t channels) { return (channels + depthwise_channels - 1) / depthwise_channels; }
std::int64_t fours_of(const DDim& weights) { return (weights.elements() / weights[0] + depthwise_taps - 1) / depthwise_taps; }

/// One call. A channel of x lies in one plane; turned, the channels of a place lie side by side. `groups`: those whose channels lie apart.
class TurnedRun {
 public:
  TurnedRun(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out,
            std::int64_t groups)
      : weights_(weights),
        kernels_(*weights.units->kernels),
        y_(weights.dims.rank() == 4 ? GatheredAxis(weights.desc.axes[0], x.dim(2), weights.dims[2]) : GatheredAxis({}, 1, 1)),
        x_(weights.desc.axes.back(), x.dim(-1), weights.dims[-1]),
        has_sign_(x.dtype() == DType::i8),
        zero_(zero),
        batch_(x.dim(0)),
        groups_(groups),
        channels_(x.dim(1) / groups),
        area_(y_.extent * x_.extent),
        places_(y_.out * x_.out),
        from_(static_cast<const std::uint8_t*>(x.raw())),
        steps_(steps),
        out_(static_cast<std::uint8_t*>(out.raw_mutable())),
        all_units_(weights.dims[0]) {}

  /// Bytes of x turned, of memory behind it that may be read, and of a place of the padding.
  std::int64_t scratch() const { return turned_bytes() + channels_ + 2 * depthwise_channels; }

 protected:
  std::int64_t turned_bytes() const { return batch_ * groups_ * channels_ * area_; }

  void turn(std::uint8_t* turned, ThreadTeam& team) const {
    const std::int64_t image = channels_ * area_;
    team.parallel(batch_ * groups_, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, image)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i)
                      transpose_rows(from_ + i * image, area_, turned + i * image, channels_, area_, channels_);
                  });
  }
  const std::uint8_t* image_of(const std::uint8_t* turned, std::int64_t row, std::int64_t group) const {
    return turned + (row / places_ * groups_ + group) * channels_ * area_;
  }

  /// Takes the steps on rows of sums, `width` apart, and turns rows of units to rows of places. `made`: room for as many.
  void finish(std::int64_t row, std::int64_t count, std::int64_t unit, std::int64_t units, std::int64_t width, const std::int32_t* sums,
              float* made) const {
    if (steps_.to == DType::i32) return give(row, count, unit, units, width, reinterpret_cast<const std::uint32_t*>(sums));
    ArithmeticCall<float> call = call_of(steps_, sums, width, unit, true);
    call.out = made;
    call.out_row = width;
    call.rows = count;
    call.count = units;
    arithmetic_rows(call);
    steps_.to == DType::f32 ? give(row, count, unit, units, width, reinterpret_cast<const std::uint32_t*>(made))
                            : give(row, count, unit, units, width, reinterpret_cast<const std::uint8_t*>(made));
  }

  const PackedConvInteger& weights_;
  const Int8Kernels& kernels_;
  GatheredAxis y_, x_;
  bool has_sign_;
  std::int32_t zero_;
  std::int64_t batch_, groups_, channels_, area_, places_;

 private:
  template <class U>
  void give(std::int64_t row, std::int64_t count, std::int64_t unit, std::int64_t units, std::int64_t width, const U* from) const {
    U* const out = reinterpret_cast<U*>(out_);
    while (count > 0) {
      const std::int64_t place = row % places_, some = std::min(count, places_ - place);
      transpose_rows(from, width, out + (row / places_ * all_units_ + unit) * places_ + place, places_, units, some);
      row += some;
      count -= some;
      from += some * width;
    }
  }

  const std::uint8_t* from_;
  const ConvIntegerSteps& steps_;
  std::uint8_t* out_;
  std::int64_t all_units_;
};

/// Products of rows of bytes, [tap][channel], by the units of each group.
class UnitRun : TurnedRun {
 public:
  UnitRun(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out)
      : TurnedRun(weights, x, zero, steps, out, weights.desc.groups),
        layout_(layout_of(kernels_, weights.desc, weights.dims)),
        plain_(y_.is_plain() && x_.is_plain()) {}
  using TurnedRun::scratch;

  void run(std::uint8_t* turned, ThreadTeam& team) const {
    turn(turned, team);
    const std::int64_t rows = batch_ * places_, panels = layout_.panels();
    // Where panels are fewer than threads, rows are cut too.
    const std::int64_t cuts = std::max<std::int64_t>((team.size() + panels - 1) / panels, (rows + max_rows - 1) / max_rows);
    for (std::int64_t group = 0; group < groups_; ++group)
      each_span(team, rows, (rows + cuts - 1) / cuts, panels, layout_.panel_stride() / 4,
                [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
                  multiply(turned, group, row, count, first, last);
                });
  }

 private:
  /// The bytes that a place of the output sees, with the zero of x for the padding.
  void gather(const std::uint8_t* from, std::int64_t place, std::uint8_t* to) const {
    const std::int64_t row = place / x_.out, column = place % x_.out;
    for (std::int64_t ky = 0; ky < y_.taps; ++ky) {
      const std::int64_t at = y_.place(row, ky);
      for (std::int64_t kx = 0, count = 1; kx < x_.taps; kx += count, to += count * channels_) {
        const std::int64_t first = x_.place(column, kx);
        const bool there = y_.has(at) && x_.has(first);
        count = there && x_.dilation == 1 ? std::min(x_.taps - kx, x_.extent - first) : 1;
        const auto bytes = static_cast<std::size_t>(count * channels_);
        there ? std::memcpy(to, from + (at * x_.extent + first) * channels_, bytes)
              : std::memset(to, static_cast<std::uint8_t>(zero_), bytes);
      }
    }
  }

  /// Some places by the units of some panels of a group.
  void multiply(const std::uint8_t* turned, std::int64_t group, std::int64_t row, std::int64_t count, std::int64_t first,
                std::int64_t last) const {
    const std::uint8_t* rows[max_rows];
    const auto room = std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(plain_ ? 0 : count * layout_.k));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = (row + i) % places_;
      const std::uint8_t* const from = image_of(turned, row + i, group);
      if (plain_) {
        rows[i] = from + (place / x_.out * y_.stride * x_.extent + place % x_.out * x_.stride) * channels_;
      } else {
        gather(from, place, room.get() + i * layout_.k);
        rows[i] = room.get() + i * layout_.k;
      }
    }
    std::int32_t windows[max_rows] = {};
    for (std::int64_t i = 0; i < count && !weights_.zeros.empty(); ++i) windows[i] = sum_of(rows[i]);
    alignas(64) std::int32_t sums[max_rows * most_width];
    alignas(64) float made[max_rows * most_width];
    float* to[max_rows];
    for (std::int64_t i = 0; i < count; ++i) to[i] = reinterpret_cast<float*>(sums) + i * layout_.width();
    Int8Call call;
    call.a = rows;
    call.out = to;
    call.rows = count;
    call.k = layout_.k;
    call.b = weights_.units->data.data<std::int8_t>() + group * layout_.panels() * layout_.panel_stride();
    call.offsets = weights_.units->sums.data<std::int32_t>() + group * layout_.padded_columns();
    call.columns = layout_.columns;
    call.zero = zero_;
    call.has_sign = has_sign_;
    call.whole = true;
    for (std::int64_t panel = first; panel < last; ++panel) {
      const std::int64_t begin = panel * layout_.width(), units = std::min(layout_.width(), layout_.columns - begin);
      call.first_panel = panel;
      call.last_panel = panel + 1;
      call.out_column = begin;
      kernels_.multiply(call);
      const std::int64_t unit = group * layout_.columns + begin;
      complete(unit, units, count, windows, sums);
      finish(row, count, unit, units, layout_.width(), sums, made);
    }
  }

  /// The sum of the bytes of a row, less their zeros.
  std::int32_t sum_of(const std::uint8_t* row) const {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < layout_.k; ++i) sum += has_sign_ ? static_cast<std::int8_t>(row[i]) : std::int32_t{row[i]};
    return internal::wrapping_sub(sum, static_cast<std::int32_t>(layout_.k), zero_);
  }

  /// Adds the number of each unit, and takes off the part of sums that the zero of its weights makes.
  void complete(std::int64_t unit, std::int64_t units, std::int64_t count, const std::int32_t* windows, std::int32_t* sums) const {
    for (std::int64_t i = 0; i < count && !weights_.added.empty(); ++i)
      for (std::int64_t u = 0; u < units; ++u) {
        std::int32_t& sum = sums[i * layout_.width() + u];
        sum = internal::wrapping_add(sum, weights_.added[static_cast<std::size_t>(unit + u)]);
      }
    for (std::int64_t i = 0; i < count && !weights_.zeros.empty(); ++i)
      for (std::int64_t u = 0; u < units; ++u) {
        std::int32_t& sum = sums[i * layout_.width() + u];
        sum = internal::wrapping_sub(sum, weights_.zeros[static_cast<std::size_t>(unit + u)], windows[i]);
      }
  }

  Int8Layout layout_;
  bool plain_;
};

/// A depthwise convolution, whose channels are the units.
class DepthwiseRun : TurnedRun {
 public:
  DepthwiseRun(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out)
      : TurnedRun(weights, x, zero, steps, out, 1), fours_(fours_of(weights.dims)) {
    for (std::int64_t ky = 0; ky < y_.taps; ++ky)
      for (std::int64_t kx = 0; kx < x_.taps; ++kx) offsets_.push_back((ky * y_.dilation * x_.extent + kx * x_.dilation) * channels_);
  }
  using TurnedRun::scratch;

  void run(std::uint8_t* turned, ThreadTeam& team) const {
    std::uint8_t* const padding = turned + turned_bytes() + depthwise_channels;
    std::memset(padding, static_cast<std::uint8_t>(zero_), static_cast<std::size_t>(channels_));
    turn(turned, team);
    each_span(team, batch_ * places_, max_rows, blocks_of(channels_), fours_ * depthwise_channels,
              [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
                multiply(turned, padding, row, count, first, last);
              });
  }

 private:
  void multiply(const std::uint8_t* turned, const std::uint8_t* padding, std::int64_t row, std::int64_t count, std::int64_t first,
                std::int64_t last) const {
    const std::int64_t taps = fours_ * depthwise_taps;
    const auto seen = std::make_unique_for_overwrite<const std::uint8_t*[]>(static_cast<std::size_t>(count * taps));
    std::int64_t line = row % places_ / x_.out, column = row % places_ % x_.out;
    const std::uint8_t* image = image_of(turned, row, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      find_taps(image, padding, line, column, seen.get() + i * taps);
      if (++column < x_.out) continue;
      column = 0;
      if (++line < y_.out) continue;
      line = 0;
      image += channels_ * area_;
    }
    alignas(64) std::int32_t sums[max_rows * depthwise_channels], starts[depthwise_channels];
    alignas(64) float made[max_rows * depthwise_channels];
    DepthwiseBytesCall call{seen.get(), count, fours_, 0, nullptr, starts, static_cast<std::uint8_t>(has_sign_ ? 0x80 : 0), sums};
    for (std::int64_t block = first; block < last; ++block) {
      call.channel = block * depthwise_channels;
      call.weights = weights_.units->data.data<std::int8_t>() + block * fours_ * depthwise_channels * depthwise_taps;
      const std::int64_t units = std::min(depthwise_channels, channels_ - call.channel);
      for (std::int64_t c = 0; c < depthwise_channels; ++c) starts[depthwise_order(c)] = c < units ? start_of(call.channel + c) : 0;
      kernels_.depthwise(call);
      finish(row, count, call.channel, units, depthwise_channels, sums, made);
    }
  }

  /// The number that is added to a unit, less the part of its sums that the zero of x makes.
  std::int32_t start_of(std::int64_t unit) const {
    const std::int32_t added = weights_.added.empty() ? 0 : weights_.added[static_cast<std::size_t>(unit)];
    return internal::wrapping_sub(added, weights_.units->sums.data<std::int32_t>()[unit], zero_ + (has_sign_ ? 128 : 0));
  }

  void find_taps(const std::uint8_t* from, const std::uint8_t* padding, std::int64_t row, std::int64_t column,
                 const std::uint8_t** to) const {
    const std::uint8_t** const end = to + fours_ * depthwise_taps;
    const std::int64_t top = y_.place(row, 0), left = x_.place(column, 0);
    if (y_.has(top) && y_.has(y_.place(row, y_.taps - 1)) && x_.has(left) && x_.has(x_.place(column, x_.taps - 1))) {
      const std::uint8_t* const first = from + (top * x_.extent + left) * channels_;
      for (const std::int64_t tap : offsets_) *to++ = first + tap;
      std::fill(to, end, padding);
      return;
    }
    for (std::int64_t ky = 0; ky < y_.taps; ++ky) {
      const std::int64_t at = y_.place(row, ky);
      for (std::int64_t kx = 0; kx < x_.taps; ++kx, ++to) {
        const std::int64_t there = x_.place(column, kx);
        *to = y_.has(at) && x_.has(there) ? from + (at * x_.extent + there) * channels_ : padding;
      }
    }
    std::fill(to, end, padding);
  }

  std::int64_t fours_;
  std::vector<std::int64_t> offsets_;  ///< of the taps behind the first one
};

ConvByteUnits pack_depthwise(const Tensor& weights) {
  const std::int64_t channels = weights.dim(0), taps = weights.elements() / channels, fours = fours_of(weights.dims());
  ConvByteUnits made{&int8_kernels(), Tensor(DType::i8, DDim{blocks_of(channels) * fours * depthwise_channels * depthwise_taps}),
                     Tensor(DType::i32, DDim{channels})};
  auto* const data = made.data.mutable_data<std::int8_t>();
  std::fill_n(data, made.data.elements(), std::int8_t{0});
  const std::int8_t* from = weights.data<std::int8_t>();
  for (std::int64_t c = 0; c < channels; ++c) {
    std::int32_t& sum = made.sums.mutable_data<std::int32_t>()[c] = 0;
    const std::int64_t block = c / depthwise_channels, place = depthwise_order(c % depthwise_channels);
    for (std::int64_t tap = 0; tap < taps; ++tap, ++from) {
      const std::int64_t four = block * fours + tap / depthwise_taps;
      data[(four * depthwise_channels + place) * depthwise_taps + tap % depthwise_taps] = *from;
      sum += *from;
    }
  }
  return made;
}

template <class Run>
void run_turned(const Run& run, KernelContext& context) {
  const Tensor room(DType::u8, DDim{run.scratch()}, context.workspace());
  run.run(static_cast<std::uint8_t*>(room.raw_mutable()), context.team());
}

}  // namespace

bool takes_byte_units(const ConvIntegerForm& form, bool has_zeros, std::optional<std::int64_t> places) {
  const std::int64_t k = form.channels * form.taps[0] * form.taps[1];
  if (k > most_k) return false;
  if (form.channels == 1 && form.units == 1) return !has_zeros && form.groups >= 16 && int8_kernels().depthwise != nullptr;
  return form.channels >= 8 && form.units >= 16 && places && *places <= most_places && int8_kernels().gathering.gather == nullptr;
}

ConvByteUnits pack_byte_units(const ConvDesc& desc, const Tensor& weights) {
  if (is_depthwise(desc, weights.dims())) return pack_depthwise(weights);
  const Int8Kernels& kernels = int8_kernels();
  const Int8Layout layout = layout_of(kernels, desc, weights.dims());
  ConvByteUnits made{&kernels, Tensor(DType::i8, DDim{desc.groups * layout.panels() * layout.panel_stride()}),
                     Tensor(DType::i32, DDim{desc.groups * layout.padded_columns()})};
  auto* const data = made.data.mutable_data<std::int8_t>();
  auto* const sums = made.sums.mutable_data<std::int32_t>();
  std::fill_n(data, made.data.elements(), std::int8_t{0});
  std::fill_n(sums, made.sums.elements(), 0);
  const std::int64_t channels = weights.dim(1), taps = layout.k / channels;
  const std::int8_t* from = weights.data<std::int8_t>();
  for (std::int64_t unit = 0; unit < weights.dim(0); ++unit) {
    const std::int64_t group = unit / layout.columns, column = unit % layout.columns;
    std::int8_t* const to =
        data + (group * layout.panels() + column / layout.width()) * layout.panel_stride() + column % layout.width() * layout.group;
    std::int32_t sum = 0;
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t tap = 0; tap < taps; ++tap, ++from) {
        const std::int64_t k = tap * channels + c;
        to[k / layout.group * layout.width() * layout.group + k % layout.group] = *from;
        sum += *from;
      }
    sums[group * layout.padded_columns() + column] = 128 * sum;
  }
  return made;
}

void conv_byte_units(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out,
                     KernelContext& context) {
  is_depthwise(weights.desc, weights.dims) ? run_turned(DepthwiseRun(weights, x, zero, steps, out), context)
                                           : run_turned(UnitRun(weights, x, zero, steps, out), context);
}

}  // namespace millrace::cpu
