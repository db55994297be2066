// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <millrace/kernels/row_function.h>

namespace millrace {

/// One axis of a convolution: of the input, of the output, and of the weights.
struct WindowAxis {
  std::int64_t extent = 0, places = 0, taps = 1, stride = 1, dilation = 1, before = 0;
};

/// Elements of `bytes` each, of x [C, extent, …], as each place of the output sees them: [place, …, C, tap, …], 0 beyond the borders.
class WindowCopy {
 public:
  WindowCopy(std::vector<WindowAxis> axes, std::int64_t channels, std::size_t bytes)
      : axes_(std::move(axes)), channels_(channels), bytes_(bytes) {
    for (const WindowAxis& axis : axes_) {
      plane_ *= axis.extent;
      taps_ *= axis.taps;
      places_ *= axis.places;
    }
    const WindowAxis& last = axes_.back();
    for (std::int64_t tap = 0; tap < last.taps; ++tap)
      seen_.push_back(inside(tap * last.dilation - last.before, last.stride, last.extent, last.places));
    for (std::int64_t place = 0; place < last.places && last.places <= few_places; ++place)
      inside_.push_back(inside(place * last.stride - last.before, last.dilation, last.extent, last.taps));
  }

  void operator()(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) const {
    bytes_ == 8 ? run<std::uint64_t>(inputs[0], outputs[0], rows) : run<std::uint32_t>(inputs[0], outputs[0], rows);
  }

 private:
  /// The most places of the last axis that are filled one after another, each for all channels: a loop over them would be too short.
  static constexpr std::int64_t few_places = 8;

  /// The elements of a line `start`, `start` + `step`, … that lie inside it: from number `first` to number `past`.
  struct Inside {
    std::int64_t first, past, start;
  };
  static Inside inside(std::int64_t start, std::int64_t step, std::int64_t extent, std::int64_t count) {
    const std::int64_t first = start >= 0 ? 0 : (step - 1 - start) / step;
    const std::int64_t past = start >= extent ? 0 : (extent - 1 - start) / step + 1;
    return {std::min(first, count), std::min(past, count), start};
  }
  template <class T>
  void run(const RowView& from, const RowView& to, std::int64_t rows) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      T* out = to.row<T>(row);
      std::fill_n(out, places_ * channels_ * taps_, T{0});
      if (!inside_.empty()) {
        walk(0, from.row<T>(row), plane_, out, taps_, places_, [this](const T* line, T* place) { fill_places(line, place); });
        continue;
      }
      for (std::int64_t channel = 0; channel < channels_; ++channel, out += taps_)
        walk(0, from.row<T>(row) + channel * plane_, plane_, out, taps_, places_, [this](const T* line, T* tap) { fill_taps(line, tap); });
    }
  }
  /// Calls `fill` with each line of the last axis and its place in the output, for the taps of the axes from `axis` on that lie inside: `plane`, `taps` and
  /// `places` are those of these axes.
  template <class T, class Fill>
  void walk(std::size_t axis, const T* from, std::int64_t plane, T* to, std::int64_t taps, std::int64_t places, const Fill& fill) const {
    if (axis + 1 == axes_.size()) return fill(from, to);
    const WindowAxis& at = axes_[axis];
    plane /= at.extent;
    taps /= at.taps;
    places /= at.places;
    const std::int64_t step = places * channels_ * taps_;
    for (std::int64_t tap = 0; tap < at.taps; ++tap)
      for (std::int64_t place = 0, i = tap * at.dilation - at.before; place < at.places; ++place, i += at.stride)
        if (i >= 0 && i < at.extent) walk(axis + 1, from + i * plane, plane, to + place * step + tap * taps, taps, places, fill);
  }
  /// Tap by tap, for one channel.
  template <class T>
  void fill_taps(const T* from, T* to) const {
    const WindowAxis& at = axes_.back();
    const std::int64_t step = channels_ * taps_;
    for (std::int64_t tap = 0; tap < at.taps; ++tap) {
      const auto [first, past, start] = seen_[static_cast<std::size_t>(tap)];
      const T* element = from + start + first * at.stride;
      T* place = to + first * step + tap;
      for (std::int64_t i = first; i < past; ++i, element += at.stride, place += step) *place = *element;
    }
  }
  /// Place by place, for all channels.
  template <class T>
  void fill_places(const T* from, T* to) const {
    const WindowAxis& at = axes_.back();
    for (std::int64_t place = 0; place < at.places; ++place, to += channels_ * taps_) {
      const auto [first, past, start] = inside_[static_cast<std::size_t>(place)];
      if (first < past) each_channel(from + start + first * at.dilation, past == first + 1 ? 1 : at.dilation, to + first, past - first);
    }
  }
  /// `count` taps of each channel, `dilation` apart.
  template <class T>
  void each_channel(const T* from, std::int64_t dilation, T* to, std::int64_t count) const {
    if (dilation == 1 && count == 1) return copies<1>(from, to);
    if (dilation == 1 && count == 2) return copies<2>(from, to);
    if (dilation == 1 && count == 3) return copies<3>(from, to);
    if (dilation == 1 && count == 4) return copies<4>(from, to);
    if (dilation == 1 && count == 5) return copies<5>(from, to);
    for (std::int64_t channel = 0; channel < channels_; ++channel, from += plane_, to += taps_)
      for (std::int64_t tap = 0; tap < count; ++tap) to[tap] = from[tap * dilation];
  }
  template <std::size_t Count, class T>
  void copies(const T* from, T* to) const {
    for (std::int64_t channel = 0; channel < channels_; ++channel, from += plane_, to += taps_) std::memcpy(to, from, Count * sizeof(T));
  }

  std::vector<WindowAxis> axes_;
  std::vector<Inside> seen_;    // places of the last axis, by tap
  std::vector<Inside> inside_;  // taps, by place; empty where there are more than a few places
  std::int64_t channels_, plane_ = 1, taps_ = 1, places_ = 1;
  std::size_t bytes_;
};

}  // namespace millrace
