// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv_integer.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/conv_axis.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/internal/wrapping.h>

namespace millrace::cpu {
namespace {

/// Places that are computed together, and the sums of their units, which stay in the first cache or the second.
constexpr std::int64_t most_span = 512, most_sums = 8192;
static_assert(most_span * conv_units <= most_sums && most_span % conv_places == 0 && most_sums / gathered_units % conv_places == 0);

/// An axis whose places are sorted by phases of the stride.
struct PhasedAxis : ConvAxis {
  std::int64_t width;  ///< of a phase: places from one row to the next

  PhasedAxis(const ConvDesc::Axis& of, std::int64_t given, std::int64_t kernel)
      : ConvAxis(of, given, kernel), width((given + of.before + of.after + of.stride - 1) / of.stride) {}
  std::int64_t phase(std::int64_t tap) const { return tap * dilation % stride; }
  std::int64_t shift(std::int64_t tap) const { return tap * dilation / stride; }
};

/// The convolution of one call. Elements of the padded input are sorted by phase, so that each tap reads places side by side: [phase y][phase x][row][column].
/// Such planes of four channels (or taps) are interleaved. Places of the output are those of a plane, row behind row: behind the end of each row lie some that nobody asked for.
class Run {
 public:
  Run(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out)
      : weights_(weights),
        form_(conv_integer_form(weights.desc, weights.dims)),
        y_(weights.dims.rank() == 4 ? PhasedAxis(weights.desc.axes[0], x.dim(2), weights.dims[2]) : PhasedAxis({}, 1, 1)),
        x_(weights.desc.axes.back(), x.dim(-1), weights.dims[-1]),
        from_(static_cast<const std::uint8_t*>(x.raw())),
        flip_(x.dtype() == DType::i8 ? 0x80 : 0),
        zero_(zero + flip_),
        steps_(steps),
        out_(static_cast<std::uint8_t*>(out.raw_mutable())),
        batch_(x.dim(0)),
        plane_(y_.width * x_.width),
        kernels_(int8_kernels()) {
    gathers_ = weights_.in_tiles;
    direct_ = flip_ == 0 && y_.stride == 1 && x_.stride == 1 && y_.width == y_.extent && x_.width == x_.extent;
    shared_ = form_.by_taps && x_.stride == 1;
    lanes_ = (form_.by_taps ? (shared_ ? 1 : form_.fours) * y_.stride : form_.fours * y_.stride * x_.stride) * plane_ + conv_places +
             4 * form_.fours * x_.dilation;
    planes_ = y_.stride * x_.stride * plane_ + 4 * x_.dilation + 4;
    for (std::int64_t c = 0; c < (form_.by_taps ? 1 : form_.fours); ++c)
      for (std::int64_t ky = 0; ky < y_.taps; ++ky)
        for (std::int64_t kx = 0; kx < (form_.by_taps ? form_.fours : x_.taps); ++kx) {
          const std::int64_t row = y_.shift(ky) * x_.width, phase = y_.phase(ky);
          if (!form_.by_taps)
            offsets_.push_back(((c * y_.stride + phase) * x_.stride + x_.phase(kx)) * plane_ + row + x_.shift(kx));
          else
            offsets_.push_back(((shared_ ? 0 : kx) * y_.stride + phase) * plane_ + row + (shared_ ? 4 * kx * x_.dilation : 0));
        }
    places_ = (y_.out - 1) * x_.width + x_.out;
    span_ = gathers_ ? most_sums / gathered_units : most_span;
    blocks_ = (places_ + span_ - 1) / span_;
  }

  std::int64_t scratch() const { return batch_ * form_.groups * lanes_ * 4; }

  void run(std::uint8_t* fours, ThreadTeam& team) const {
    const std::int64_t parts = form_.by_taps ? 1 : form_.fours;
    team.parallel(batch_ * form_.groups * parts, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, planes_)),
                  [&](std::int64_t begin, std::int64_t end) {
                    std::vector<std::uint8_t> room(static_cast<std::size_t>(direct_ && !form_.by_taps ? 0 : 4 * planes_));
                    for (std::int64_t i = begin; i < end; ++i) arrange(i / parts, i % parts, room.data(), fours + i / parts * lanes_ * 4);
                  });
    team.parallel(
        batch_ * form_.groups * blocks_, std::max<std::int64_t>(1, 1024 * conv_places / span_ / std::max<std::int64_t>(1, form_.steps())),
        [&](std::int64_t begin, std::int64_t end) {
          const auto room =
              std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(gathers_ ? form_.unit_stride() * span_ : 0));
          if (gathers_) kernels_.gathering.open();
          for (std::int64_t i = begin; i < end; ++i) multiply(i / blocks_, i % blocks_, fours + i / blocks_ * lanes_ * 4, room.get());
          if (gathers_) kernels_.gathering.close();
        });
  }

 private:
  /// One channel sorted by phase, what is padding as zero.
  void sort(const std::uint8_t* from, std::uint8_t* to) const {
    std::memset(to, zero_, static_cast<std::size_t>(y_.stride * x_.stride * plane_));  // a call for each row takes longer
    for (std::int64_t py = 0; py < y_.stride; ++py)
      for (std::int64_t px = 0; px < x_.stride; ++px)
        for (std::int64_t r = 0; r < y_.width; ++r, to += x_.width) {
          const std::int64_t row = r * y_.stride + py - y_.before;
          if (row < 0 || row >= y_.extent) continue;
          const std::uint8_t* const line = from + row * x_.extent;
          const std::int64_t first = px - x_.before;  // of the columns, less those in front of the input
          const std::int64_t begin = first >= 0 ? 0 : (-first + x_.stride - 1) / x_.stride;
          const std::int64_t end = std::min(x_.width, (x_.extent - first + x_.stride - 1) / x_.stride);
          if (begin >= end) continue;
          const std::uint8_t* const at = line + begin * x_.stride + first;
          if (x_.stride == 1 && flip_ == 0)
            std::memcpy(to + begin, at, static_cast<std::size_t>(end - begin));
          else
            kernels_.pick(at, x_.stride, static_cast<std::uint8_t>(flip_), end - begin, to + begin);
        }
  }

  /// Four channels, or all taps of the one channel, of group `group` of all images.
  void arrange(std::int64_t group, std::int64_t part, std::uint8_t* room, std::uint8_t* to) const {
    const std::int64_t first = group * form_.channels, area = y_.extent * x_.extent;
    const std::int64_t all = y_.stride * x_.stride * plane_;
    const std::uint8_t* from[4];
    if (!form_.by_taps) {
      for (std::int64_t j = 0; j < 4; ++j) {
        // Behind the last channel the weights are zeros.
        const std::int64_t channel = std::min(part * 4 + j, form_.channels - 1);
        from[j] = from_ + (first + channel) * area;
        if (direct_) continue;
        sort(from[j], room + j * planes_);
        from[j] = room + j * planes_;
      }
      return kernels_.interleave(from, all, to + part * all * 4);
    }
    sort(from_ + first * area, room);
    std::memset(room + all, 0, static_cast<std::size_t>(planes_ - all));
    for (std::int64_t four = 0; four < (shared_ ? 1 : form_.fours); ++four)
      for (std::int64_t py = 0; py < y_.stride; ++py) {
        for (std::int64_t j = 0; j < 4; ++j) {
          // Behind the last tap the weights are zeros.
          const std::int64_t tap = shared_ ? j : std::min(four * 4 + j, x_.taps - 1);
          from[j] = room + (py * x_.stride + x_.phase(tap)) * plane_ + x_.shift(tap);
        }
        // A shift reads behind the plane: places that nobody asked for.
        kernels_.interleave(from, plane_, to + (four * y_.stride + py) * plane_ * 4);
      }
  }

  /// All units of a group at some places.
  void multiply(std::int64_t group, std::int64_t block, const std::uint8_t* fours, std::uint8_t* room) const {
    alignas(64) std::int32_t sums[most_sums], windows[most_span];
    const std::int64_t at = group % form_.groups, first = block * span_, places = std::min(span_, places_ - first);
    const std::int8_t* const weights = weights_.data.data<std::int8_t>() + at * form_.group_stride();
    const std::int64_t panel = form_.unit_stride() * conv_places;  // bytes that are gathered for conv_places
    const auto conv = [&](std::int64_t unit, std::int64_t units, const std::int32_t* starts, std::int32_t* to, bool gathered) {
      for (std::int64_t p = 0; p < places; p += conv_places) {
        ConvBytesCall call{fours + (first + p) * 4,
                           offsets_.data(),
                           form_.steps(),
                           weights + unit * form_.unit_stride(),
                           form_.unit_stride(),
                           units,
                           std::min(conv_places, places - p),
                           starts,
                           to + p,
                           span_};
        if (gathered) call.gathered = room + p / conv_places * panel;
        kernels_.conv(call);
      }
    };
    constexpr std::int32_t none = 0;
    if (!weights_.zeros.empty()) conv(form_.unit_rows(), 1, &none, windows, false);
    for (std::int64_t p = 0; gathers_ && p < places; p += conv_places) {
      ConvBytesCall call{fours + (first + p) * 4, offsets_.data(), form_.steps()};
      call.places = std::min(conv_places, places - p);
      kernels_.gathering.gather(call, room + p / conv_places * panel);
    }
    const std::int64_t together = gathers_ ? gathered_units : conv_units;
    for (std::int64_t unit = 0; unit < form_.units; unit += together) {
      const std::int64_t units = std::min(together, form_.units - unit), of_all = at * form_.units + unit;
      // Sums that the zero of x makes too great come off in front, with what is added to the unit.
      std::int32_t starts[gathered_units];
      for (std::int64_t u = 0; u < units; ++u) {
        const auto each = static_cast<std::size_t>(of_all + u);
        starts[u] = internal::wrapping_sub(weights_.added.empty() ? 0 : weights_.added[each], zero_, weights_.sums[each]);
      }
      conv(unit, units, starts, sums, gathers_);
      std::int64_t count = places;
      for (std::int64_t u = 0; u < units && !is_done(); ++u) count = complete(of_all + u, first, places, windows, sums + u * span_);
      finish(group / form_.groups, of_all, units, first, count, sums);
    }
  }

  /// Takes off the part of sums that the zero of the weights makes, and moves the places of the output together: their number.
  std::int64_t complete(std::int64_t unit, std::int64_t first, std::int64_t places, const std::int32_t* windows, std::int32_t* sums) const {
    const std::int32_t zero = weights_.zeros.empty() ? 0 : weights_.zeros[static_cast<std::size_t>(unit)];
    for (std::int64_t i = 0; i < places && zero != 0; ++i) sums[i] = internal::wrapping_sub(sums[i], zero, windows[i]);
    if (dense()) return places;
    std::int32_t* to = sums;
    for (std::int64_t done = 0; done < places;) {
      const std::int64_t column = (first + done) % x_.width, left = std::min(places - done, x_.width - column);
      const std::int64_t count = std::max<std::int64_t>(0, std::min(left, x_.out - column));
      std::memmove(to, sums + done, static_cast<std::size_t>(count) * sizeof(std::int32_t));
      to += count;
      done += left;
    }
    return to - sums;
  }
  /// Whether sums are results as they are.
  bool is_done() const { return dense() && weights_.zeros.empty(); }

  /// Whether no place lies between the rows of the output.
  bool dense() const { return x_.width == x_.out; }

  /// Writes `count` places of the output of some units, those that lie behind place `first`.
  void finish(std::int64_t image, std::int64_t unit, std::int64_t units, std::int64_t first, std::int64_t count,
              const std::int32_t* sums) const {
    const std::int64_t area = y_.out * x_.out, row = first / x_.width;
    const auto size = static_cast<std::int64_t>(size_of(steps_.to));
    std::uint8_t* const to =
        out_ + ((image * form_.groups * form_.units + unit) * area + row * x_.out + std::min(x_.out, first % x_.width)) * size;
    if (steps_.to == DType::i32) {
      for (std::int64_t u = 0; u < units; ++u)
        std::memcpy(to + u * area * 4, sums + u * span_, static_cast<std::size_t>(count) * sizeof(std::int32_t));
      return;
    }
    ArithmeticCall<float> call = call_of(steps_, sums, span_, unit, false);
    call.out = reinterpret_cast<float*>(to);
    call.out_row = area;
    call.rows = units;
    call.count = count;
    arithmetic_rows(call);
  }

  const PackedConvInteger& weights_;
  ConvIntegerForm form_;
  PhasedAxis y_, x_;
  const std::uint8_t* from_;
  int flip_;
  std::int32_t zero_;
  const ConvIntegerSteps& steps_;
  std::uint8_t* out_;
  std::int64_t batch_, plane_, lanes_ = 0, planes_ = 0, places_ = 0, span_ = 0, blocks_ = 0;
  bool direct_ = false, shared_ = false, gathers_ = false;
  std::vector<std::int64_t> offsets_;
  const Int8Kernels& kernels_;
};

}  // namespace

ConvIntegerForm conv_integer_form(const ConvDesc& desc, const DDim& weights) {
  ConvIntegerForm form{};
  form.groups = desc.groups;
  form.units = weights[0] / desc.groups;
  form.channels = weights[1];
  form.taps[0] = weights.rank() == 4 ? weights[2] : 1;
  form.taps[1] = weights[-1];
  form.by_taps = form.channels == 1;
  form.fours = ((form.by_taps ? form.taps[1] : form.channels) + 3) / 4;
  return form;
}

ArithmeticCall<float> call_of(const ConvIntegerSteps& steps, const std::int32_t* sums, std::int64_t row, std::int64_t unit, bool across) {
  ArithmeticCall<float> call;
  call.steps = steps.steps.data();
  call.step_count = std::ssize(steps.steps);
  call.input_count = std::ssize(steps.operands) + 1;
  call.inputs[0] = {reinterpret_cast<const float*>(sums), row, false};
  for (std::size_t i = 0; i < steps.operands.size(); ++i) {
    const bool one = steps.operands[i].elements() == 1;
    call.inputs[i + 1] = {static_cast<const float*>(steps.operands[i].raw()) + (one ? 0 : unit), one || across ? 0 : 1, one || !across};
  }
  call.from = DType::i32;
  call.to = steps.to;
  return call;
}

void conv_integer(const PackedConvInteger& weights, const Tensor& x, std::int32_t zero, const ConvIntegerSteps& steps, const Tensor& out,
                  KernelContext& context) {
  const Run run(weights, x, zero, steps, out);
  const Tensor room(DType::u8, DDim{run.scratch()}, context.workspace());
  run.run(static_cast<std::uint8_t*>(room.raw_mutable()), context.team());
}

}  // namespace millrace::cpu
