// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/causal_filter.h>

#include <algorithm>
#include <vector>

#include <millrace/kernels/cpu/causal_filter_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Rows of fewer places are no vectors: channels stand in the lanes.
constexpr std::int64_t short_row = 16;
/// Channels whose places are turned around at a time.
constexpr std::int64_t block_channels = 64;

template <class T>
class Filter {
 public:
  Filter(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor& bias, const Tensor& out,
         const Tensor& last)
      : desc_(desc),
        length_(x.dim(desc.places)),
        before_(past.dim(desc.places)),
        channels_(x.dim(desc.channels)),
        sequences_(x.dim(desc.sequences)),
        dtype_(x.dtype()),
        x_(static_cast<const T*>(x.raw())),
        past_(static_cast<const T*>(past.raw())),
        last_(static_cast<T*>(last.raw_mutable())) {
    call_.weights = static_cast<const T*>(weights.raw());
    call_.weight_step = channels_;
    call_.bias = bias.elements() == 0 ? nullptr : static_cast<const T*>(bias.raw());
    call_.out = static_cast<T*>(out.raw_mutable());
    call_.tap_count = static_cast<std::int64_t>(desc.delays.size());
  }

  void run(const KernelContext& context) const {
    const auto grain = [](std::int64_t work) { return std::max<std::int64_t>(1, grain_light / std::max<std::int64_t>(1, work)); };
    const std::int64_t of_place = call_.tap_count, rows = sequences_ * channels_;
    if (desc_.places != 2) {
      context.team().parallel(sequences_ * length_, grain(channels_ * of_place),
                              [&](std::int64_t begin, std::int64_t end) { along_channels(begin, end); });
      context.team().parallel(sequences_ * before_, grain(channels_),
                              [&](std::int64_t begin, std::int64_t end) { keep_places(begin, end); });
    } else if (length_ < short_row && desc_.channels == 1) {
      const std::int64_t blocks = (channels_ + block_channels - 1) / block_channels;
      context.team().parallel(sequences_ * blocks, grain(block_channels * (length_ * of_place + before_)),
                              [&](std::int64_t begin, std::int64_t end) { short_rows(begin, end, blocks, context); });
    } else {
      context.team().parallel(rows, grain(length_ * of_place + before_),
                              [&](std::int64_t begin, std::int64_t end) { along_places(begin, end, context); });
    }
  }

 private:
  /// Rows of places, of one sequence and channel each. The places that look at the past are computed from a copy in which it stands in front of them.
  void along_places(std::int64_t begin, std::int64_t end, const KernelContext& context) const {
    const std::int64_t edge = std::min(before_, length_);
    const Tensor room(dtype_, DDim{before_ + edge + 1}, context.workspace());
    T* const front = static_cast<T*>(room.raw_mutable());
    std::vector<const T*> taps(desc_.delays.size());
    FilterCall<T> call = call_;
    call.taps = taps.data();
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t channel = desc_.channels == 1 ? row % channels_ : row / sequences_;
      const T* const x = x_ + row * length_;
      call.weights = call_.weights + channel;
      call.bias = call_.bias == nullptr ? nullptr : call_.bias + channel;
      call.out = call_.out + row * length_;
      const auto filter = [&](const T* first, std::int64_t count) {
        if (count == 0) return;
        for (std::size_t j = 0; j < taps.size(); ++j) taps[j] = first - desc_.delays[j];
        call.count = count;
        filter_run(call);
        call.out += count;
      };
      std::copy_n(past_ + row * before_, before_, front);
      std::copy_n(x, edge, front + before_);
      filter(front + before_, edge);
      filter(x + edge, length_ - edge);
      std::copy_n(edge < before_ ? front + edge : x + length_ - before_, before_, last_ + row * before_);
    }
  }

  /// Blocks of channels of one sequence, which stand in front of few places.
  void short_rows(std::int64_t begin, std::int64_t end, std::int64_t blocks, const KernelContext& context) const {
    const std::int64_t all = before_ + length_;
    const Tensor room(dtype_, DDim{(all + length_) * block_channels + 1}, context.workspace());
    T* const seen = static_cast<T*>(room.raw_mutable());
    T* const made = seen + all * block_channels;
    std::vector<const T*> taps(desc_.delays.size());
    FilterCall<T> call = call_;
    call.taps = taps.data();
    call.each = true;
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t channel = block % blocks * block_channels, row = block / blocks * channels_ + channel;
      const std::int64_t count = std::min(block_channels, channels_ - channel);
      turn(past_ + row * before_, count, before_, seen);
      turn(x_ + row * length_, count, length_, seen + before_ * block_channels);
      call.count = count;
      call.weights = call_.weights + channel;
      call.bias = call_.bias == nullptr ? nullptr : call_.bias + channel;
      for (std::int64_t place = 0; place < length_; ++place) {
        for (std::size_t j = 0; j < taps.size(); ++j) taps[j] = seen + (before_ + place - desc_.delays[j]) * block_channels;
        call.out = made + place * block_channels;
        filter_run(call);
      }
      turn_back(made, count, length_, call_.out + row * length_);
      turn_back(seen + length_ * block_channels, count, before_, last_ + row * before_);
    }
  }
  static void turn(const T* from, std::int64_t rows, std::int64_t columns, T* to) {
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t row = 0; row < rows; ++row) to[column * block_channels + row] = from[row * columns + column];
  }
  static void turn_back(const T* from, std::int64_t rows, std::int64_t columns, T* to) {
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t row = 0; row < rows; ++row) to[row * columns + column] = from[column * block_channels + row];
  }

  /// The channels of one sequence at a place of x, counted from its first; places before it are those of the past.
  const T* at(std::int64_t sequence, std::int64_t place) const {
    const T* const from = place < 0 ? past_ : x_;
    const std::int64_t places = place < 0 ? before_ : length_, which = place < 0 ? before_ + place : place;
    return from + (desc_.places == 0 ? which * sequences_ + sequence : sequence * places + which) * channels_;
  }
  /// The sequence and the place of row `row` of a tensor with so many places.
  struct Position {
    std::int64_t sequence = 0, place = 0;
  };
  Position position(std::int64_t row, std::int64_t places) const {
    return desc_.places == 0 ? Position{row % sequences_, row / sequences_} : Position{row / places, row % places};
  }

  /// Rows of channels, of one sequence and place each.
  void along_channels(std::int64_t begin, std::int64_t end) const {
    std::vector<const T*> taps(desc_.delays.size());
    FilterCall<T> call = call_;
    call.taps = taps.data();
    call.each = true;
    call.count = channels_;
    for (std::int64_t row = begin; row < end; ++row) {
      const Position here = position(row, length_);
      for (std::size_t j = 0; j < taps.size(); ++j) taps[j] = at(here.sequence, here.place - desc_.delays[j]);
      call.out = call_.out + row * channels_;
      filter_run(call);
    }
  }
  void keep_places(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      const Position here = position(row, before_);
      std::copy_n(at(here.sequence, length_ - before_ + here.place), channels_, last_ + row * channels_);
    }
  }

  const FilterDesc& desc_;
  const std::int64_t length_, before_, channels_, sequences_;
  const DType dtype_;
  const T *x_, *past_;
  T* last_;
  FilterCall<T> call_;
};

}  // namespace

void causal_filter(const FilterDesc& desc, const Tensor& x, const Tensor& past, const Tensor& weights, const Tensor& bias,
                   const Tensor& out, const Tensor& last, const KernelContext& context) {
  if (past.elements() == 0 && x.elements() == 0) return;
  if (x.dtype() == DType::f64)
    Filter<double>(desc, x, past, weights, bias, out, last).run(context);
  else
    Filter<float>(desc, x, past, weights, bias, out, last).run(context);
}

}  // namespace millrace::cpu
