// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv1d.h>

#include <algorithm>

#include <millrace/kernels/cpu/conv_steps.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/cpu/transpose_kernels.h>

namespace millrace::cpu {
namespace {

/// Room on the stack for unfolded rows; rows that need more go to the workspace.
constexpr std::int64_t room_bytes = 48 * 1024;

/// Room for the unfolded rows that meet the weights together, a part of a second cache. Weights beyond it are read from afar once for all these rows: 16 rows of
/// 5760 elements that met 4.6 MB of weights in pairs took three times as long.
constexpr std::int64_t rows_bytes = 384 * 1024;

/// Room in the workspace for results before they are turned.
constexpr std::int64_t turned_bytes = 64 * 1024;

template <class T>
struct Unfold {
  const Conv1dDesc& desc;
  const T* x;
  std::int64_t sequence_stride, channel_stride, time_stride;
  std::int64_t length, out_length, channels, k;

  /// The usual kernels, all of whose taps lie inside the sequence, without a loop over taps. False for others.
  bool copied(const T* from, T* to) const {
    switch (desc.kernel) {
      case 1: return copy_taps<1>(from, to);
      case 2: return copy_taps<2>(from, to);
      case 3: return copy_taps<3>(from, to);
      case 4: return copy_taps<4>(from, to);
      case 5: return copy_taps<5>(from, to);
      default: return false;
    }
  }
  template <int Taps>
  bool copy_taps(const T* from, T* to) const {
    const std::int64_t step = Taps > 1 ? desc.dilation * time_stride : 0;
    for (std::int64_t channel = 0; channel < channels; ++channel, from += channel_stride, to += Taps)
      for (int tap = 0; tap < Taps; ++tap) to[tap] = from[tap * step];
    return true;
  }

  /// Rows [row, row + count) of a kernel of one tap whose places stand side by side, turned into `room`. False for others.
  bool turned(std::int64_t row, std::int64_t count, std::int64_t group, T* room) const {
    if (desc.kernel != 1 || desc.stride != 1 || desc.pad_before != 0 || time_stride != 1 || channels == 1) return false;
    while (count > 0) {
      const std::int64_t place = row % out_length, some = std::min(count, out_length - place);
      if (place + some > length) return false;
      transpose_rows(bits_of(x + row / out_length * sequence_stride + group * channels * channel_stride + place), channel_stride,
                     bits_of(room), k, some, k);
      row += some;
      count -= some;
      room += some * k;
    }
    return true;
  }

  /// Taps that lie less than `distance` behind the first one. Sums with a dilation may not fit 64 bits.
  std::int64_t taps_up_to(std::int64_t distance) const {
    return distance <= 0 ? 0 : std::min(desc.kernel, (distance - 1) / desc.dilation + 1);
  }

  /// Row `row` of group `group`: where it lies in x, when its elements stand side by side there, else unfolded into
  /// `room`.
  const T* operator()(std::int64_t row, std::int64_t group, T* room) const {
    const std::int64_t start = row % out_length * desc.stride - desc.pad_before;
    const T* base = x + row / out_length * sequence_stride + group * channels * channel_stride;
    const bool inside = start >= 0 && start + (desc.kernel - 1) * desc.dilation < length;
    const bool taps_adjoin = desc.kernel == 1 || (time_stride == 1 && desc.dilation == 1);
    if (inside && taps_adjoin && (channels == 1 || channel_stride == desc.kernel)) return base + start * time_stride;
    if (inside && copied(base + start * time_stride, room)) return room;
    // Taps [first, last) lie inside the sequence; the others are padding.
    const std::int64_t first = taps_up_to(-start), last = std::max(first, taps_up_to(length - start));
    T* to = room;
    for (std::int64_t channel = 0; channel < channels; ++channel, to += desc.kernel) {
      const T* from = base + channel * channel_stride;
      for (std::int64_t tap = 0; tap < first; ++tap) to[tap] = T{0};
      for (std::int64_t tap = first; tap < last; ++tap) to[tap] = from[(start + tap * desc.dilation) * time_stride];
      for (std::int64_t tap = last; tap < desc.kernel; ++tap) to[tap] = T{0};
    }
    return room;
  }
};

template <class T>
void run_group(const Conv1dPlan& plan, const Unfold<T>& unfold, std::int64_t group, const T* packed, const T* bias,
               const ConvFinish<T>& finish, T* out, std::int64_t rows, const KernelContext& context) {
  const Conv1dDesc& desc = plan.desc();
  const PackedLayout layout = conv1d_layout(plan);
  const std::int64_t out_length = unfold.out_length;
  constexpr std::int64_t room_elements = room_bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t most_rows =
      std::clamp<std::int64_t>(rows_bytes / static_cast<std::int64_t>(sizeof(T)) / std::max<std::int64_t>(1, layout.k), 1, max_rows);
  // Where panels are fewer than threads, rows are cut as far as the stack's room goes.
  const std::int64_t small = std::clamp<std::int64_t>(room_elements / std::max<std::int64_t>(1, layout.k), 1, max_rows);
  const std::int64_t cuts = (context.team().size() + layout.panels() - 1) / layout.panels();
  const std::int64_t parts = std::max((rows + most_rows - 1) / most_rows, std::min(cuts, (rows + small - 1) / small));
  const std::int64_t chunk = (rows + parts - 1) / parts;
  each_span(context.team(), rows, chunk, layout.panels(), layout.panel_stride(),
            [&](std::int64_t row, std::int64_t count, std::int64_t first, std::int64_t last) {
              alignas(64) T room[room_elements];
              const T* a[max_rows];
              // Units lie far apart in the result: they are computed side by side, and turned.
              const std::int64_t beside =
                  std::max<std::int64_t>(2, turned_bytes / static_cast<std::int64_t>(sizeof(T)) / (count * layout.width()));
              const std::int64_t most = std::min(last - first, beside) * layout.width();
              const std::int64_t large = count * layout.k > room_elements ? count * layout.k : 0, apart = out_length > 1 ? count * most : 0;
              Tensor more;
              if (apart + large > 0) more = Tensor(dtype_of<T>, DDim{apart + large}, context.workspace());
              T* const results = apart > 0 ? static_cast<T*>(more.raw_mutable()) : nullptr;
              T* const row_room = large > 0 ? static_cast<T*>(more.raw_mutable()) + apart : room;
              const bool turned = unfold.turned(row, count, group, row_room);
              for (std::int64_t i = 0; i < count; ++i)
                a[i] = turned ? row_room + i * layout.k : unfold(row + i, group, row_room + i * layout.k);
              T* to[max_rows];
              for (; first < last; first += beside) {
                const std::int64_t unit = group * layout.columns + first * layout.width();
                const auto place_of = [&](std::int64_t at) {
                  return out + (at / out_length * desc.out_channels + unit) * out_length + at % out_length;
                };
                for (std::int64_t i = 0; i < count; ++i) to[i] = results != nullptr ? results + i * most : place_of(row + i);
                MatrixCall<T> call;
                call.a = a;
                call.out = to;
                call.rows = count;
                call.k = layout.k;
                call.b = packed + group * layout.elements() + first * layout.panel_stride();
                call.panel_stride = layout.panel_stride();
                call.columns = layout.columns - first * layout.width();
                call.last_panel = std::min(beside, last - first);
                call.bias = bias == nullptr ? nullptr : bias + unit;
                plan.gemm().kernels().run(call);
                const std::int64_t units = std::min(call.columns, call.last_panel * layout.width());
                for (std::int64_t i = 0; i < count;) {  // the rows of one sequence
                  const std::int64_t some = std::min(count - i, out_length - (row + i) % out_length);
                  if (results != nullptr)
                    transpose_rows(bits_of(results + i * most), most, bits_of(place_of(row + i)), out_length, units, some);
                  finish.run(place_of(row + i), unit, units, out_length, some);
                  i += some;
                }
              }
            });
}

template <class T>
void run_type(const Conv1dPlan& plan, const Tensor& x, const Tensor& packed, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
              const KernelContext& context) {
  const Conv1dDesc& desc = plan.desc();
  const PackedLayout layout = conv1d_layout(plan);
  const Unfold<T> unfold{desc,       static_cast<const T*>(x.raw()), x.strides()[0], x.strides()[1], x.strides()[2], x.dim(2),
                         out.dim(2), desc.in_channels / desc.groups, layout.k};
  const ConvFinish<T> finish(steps, out);
  for (std::int64_t group = 0; group < desc.groups; ++group)
    run_group(plan, unfold, group, static_cast<const T*>(packed.raw()), bias == nullptr ? nullptr : static_cast<const T*>(bias->raw()),
              finish, static_cast<T*>(out.raw_mutable()), out.dim(0) * out.dim(2), context);
}

}  // namespace

PackedLayout conv1d_layout(const Conv1dPlan& plan) {
  const GemmDesc& desc = plan.gemm().desc();
  const GemmKernels& kernels = plan.gemm().kernels();
  return desc.dtype == DType::f64 ? layout_for<double>(kernels, desc.k, desc.n) : layout_for<float>(kernels, desc.k, desc.n);
}

void conv1d(const Conv1dPlan& plan, const Tensor& x, const Tensor& packed, const Tensor* bias, const ConvSteps& steps, const Tensor& out,
            const KernelContext& context) {
  if (out.elements() == 0) return;
  if (x.dtype() == DType::f64) return run_type<double>(plan, x, packed, bias, steps, out, context);
  run_type<float>(plan, x, packed, bias, steps, out, context);
}

}  // namespace millrace::cpu
