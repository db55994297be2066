// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/conv.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <millrace/kernels/cpu/all_finite.h>
#include <millrace/kernels/cpu/conv_kernels.h>
#include <millrace/kernels/cpu/conv_steps.h>
#include <millrace/kernels/cpu/conv_units.h>
#include <millrace/kernels/cpu/depthwise_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/pad.h>
#include <millrace/kernels/cpu/strided_loop.h>
#include <millrace/tensor/checked.h>

namespace millrace::cpu {
namespace {

/// Multiply-adds of a part for one thread.
constexpr std::int64_t thread_work = 1 << 18;
/// Computing places between the rows of an output and dropping them is cheaper than gathering, up to so many places for each that stays.
constexpr std::int64_t most_between = 2;

/// The number of output channels from which on the first of them copy the panel for the others: vectors of the plane cross cache lines.
constexpr std::int64_t copied_units = 9;

/// Bytes of panels that are computed together; they stay in the first cache.
constexpr std::int64_t near_bytes = 16 << 10;

/// Bytes of results that wait for their arithmetic: long rows, which stay in the second cache.
constexpr std::int64_t left_bytes = 128 << 10;

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

/// The k that rows of the output see of x itself, where all of them see padding alone at the others: what those add is zero. Their order and their
/// blocks stay.
template <class T>
struct SeenTaps {
  std::vector<std::int64_t> offsets;  // of each k that is left, in the plane
  std::vector<std::int64_t> block_k;  // how many of each block of k_block are left
  std::unique_ptr<T[]> weights;       // [units, k]
};

/// The planes that the products read.
template <class T>
struct Planes {
  const T* first = nullptr;
  std::int64_t elements = 0;
  PaddedPlanes form;
};

/// One group of all images, the places of the output in the lanes. A vector of places sees, for each k, elements side by side of a plane, unless there is
/// much between the rows of the output: then they are packed first.
template <class T>
class Group {
 public:
  Group(const ConvDesc& desc, const DDim& x_dims, const Planes<T>& planes, const Tensor& weights, const ConvSteps& steps, const Tensor& out,
        std::int64_t group, const ConvTaps* taps)
      : desc_(desc), finish_(steps, out, true), width_(panel_vectors * gemm_kernels().lanes<T>()), units_(weights.dim(0) / desc.groups) {
    const int spatial = static_cast<int>(desc.axes.size());
    k_ = weights.elements() / std::max<std::int64_t>(1, weights.dim(0));
    weights_ = static_cast<const T*>(weights.raw()) + group * units_ * k_;
    first_unit_ = group * units_;
    out_ = static_cast<T*>(out.raw_mutable());
    extents_.assign(out.dims().begin() + 2, out.dims().end());
    for (const std::int64_t extent : extents_) places_ *= extent;
    out_image_ = out.dim(1) * places_;
    images_ = out.dim(0);
    for (int axis = 0; axis < spatial; ++axis) steps_.push_back(planes.form.strides[2 + axis]);
    // Rows of the output that adjoin, as their places in the plane do, are one row: no panel ends with one.
    while (extents_.size() > 1 && steps_.end()[-2] == extents_.back() * steps_.back()) {
      extents_.end()[-2] *= extents_.back();
      steps_.end()[-2] = steps_.back();
      extents_.pop_back();
      steps_.pop_back();
    }
    plane_image_ = planes.form.strides[0];
    x_ = planes.first + group * weights.dim(1) * planes.form.strides[1];
    find_offsets(planes.form, weights);
    if (taps != nullptr) take_parts(*taps);
    if (extents_.size() > 1 && extents_.back() % width_ == 0) {
      lines_ = places_ / extents_.back();
      between_ = extents_.back();
    } else {
      std::int64_t last = 0;
      for (std::size_t axis = 0; axis < extents_.size(); ++axis) last += (extents_[axis] - 1) * steps_[axis];
      between_ = last + 1;
    }
    together_ = std::max<std::int64_t>(1, near_bytes / std::max<std::int64_t>(1, k_ * width_ * static_cast<std::int64_t>(sizeof(T))));
    adjoining_ = lines_ > 1 || (between_ <= most_between * places_ && between_ >= width_ && rises());
    if (adjoining_ && spatial == 2 && extents_.size() == 2 && weights.dim(2) > 1 && parts_.empty()) find_seen(x_dims[2], weights);
  }

  std::int64_t panels() const { return adjoining_ ? images_ * lines_ * panels_of(between_) : panels_of(images_ * places_); }
  std::int64_t work() const { return width_ * k_ * units_; }
  std::int64_t room() const { return width_ * (k_ * together_ + (k_ > k_block ? units_ : 0)); }

  /// Panels [first, last); `room` elements of memory from the start of a cache line on.
  void run(std::int64_t first, std::int64_t last, const T* bias, T* room) const {
    std::vector<PlaceRun> segments;  // of one panel, in the results of an output channel
    std::vector<std::int64_t> places(static_cast<std::size_t>(width_));
    Stores stores;  // of the panels that wait
    ConvCall<T> call;
    call.units = units_;
    call.bias = bias == nullptr ? nullptr : bias + first_unit_;
    call.relu = desc_.relu;
    call.ending = finish_.ending();
    call.sums = room + width_ * k_ * together_;
    call.out = out_ + first_unit_ * places_;
    call.out_stride = places_;
    call.panels = 0;
    for (std::int64_t panel = first; panel < last; ++panel) {
      segments.clear();
      ConvCall<T> next = call;
      next.panels = 1;
      next.x = room;
      next.offsets = packed_.data();
      next.copy = nullptr;
      next.block_k = nullptr;
      next.vectors = panel_vectors;
      next.k = k_;
      next.weights = weights_;
      if (adjoining_) {
        const std::int64_t line = panel / panels_of(between_), begin = panel % panels_of(between_) * width_;
        const std::int64_t image = line / lines_, row = line % lines_;
        const std::int64_t count = std::min(width_, between_ - begin);
        const T* from = x_ + image * plane_image_ + start_of(row) + begin;
        if (lines_ > 1)
          segments.push_back({0, image * out_image_ + row * between_ + begin, count});
        else
          find_segments(image, begin, begin + count, segments);
        if (count == width_) {
          next.x = from;
          next.offsets = offsets_.data();
          next.copy = units_ < copied_units ? nullptr : room;
          if (const SeenTaps<T>* const seen = seen_of(segments, image)) {
            next.offsets = seen->offsets.data();
            next.block_k = seen->block_k.data();
            next.k = std::ssize(seen->offsets);
            next.weights = seen->weights.get();
          }
          if (call.panels > 0 && call.panels < together_ && call.offsets == next.offsets && next.x == call.x + call.panels * width_) {
            stores.add(segments, width_);
            ++call.panels;
            continue;
          }
        } else {  // no element behind the last is there
          finish(call, stores);
          next.vectors = vectors_of(count);
          pack_adjoining(from, count, room);
        }
      } else {
        const std::int64_t begin = panel * width_;
        const std::int64_t count = std::min(width_, images_ * places_ - begin);
        finish(call, stores);
        find_places(begin, count, places.data(), segments);
        next.vectors = vectors_of(count);
        pack_places(places.data(), count, room);
      }
      finish(call, stores);
      call = next;
      stores.add(segments, width_);
    }
    finish(call, stores);
    take_steps(stores);
  }

 private:
  /// Units that have the same taps.
  struct Part {
    std::int64_t first, units;
    std::vector<std::int64_t> offsets, packed, block_k;
    const T* weights;
  };
  void take_parts(const ConvTaps& taps) {
    std::int64_t unit = 0;
    for (const ConvTaps::Part& part : taps.parts) {
      if (unit >= first_unit_ && unit < first_unit_ + units_) {
        Part& made = parts_.emplace_back();
        made.first = unit - first_unit_;
        made.units = part.units;
        made.weights = static_cast<const T*>(part.weights.raw());
        made.block_k.assign(static_cast<std::size_t>(std::max<std::int64_t>(1, (k_ + k_block - 1) / k_block)), 0);
        for (const std::int64_t k : part.k) {
          made.offsets.push_back(offsets_[static_cast<std::size_t>(k)]);
          made.packed.push_back(packed_[static_cast<std::size_t>(k)]);
          ++made.block_k[static_cast<std::size_t>(k / k_block)];
        }
      }
      unit += part.units;
    }
  }

  /// Where the vectors of some panels go.
  struct Stores {
    std::vector<PlaceStore> stores;
    std::vector<std::int32_t> begins{0};

    /// One panel more, of `width` places.
    void add(const std::vector<PlaceRun>& segments, std::int64_t width) {
      const std::int64_t lanes = width / panel_vectors;
      auto next = segments.begin();
      for (std::int64_t begin = 0; begin < width; begin += lanes) {
        while (next != segments.end() && next->first + next->count <= begin) ++next;
        for (auto at = next; at != segments.end() && at->first < begin + lanes; ++at) {
          const std::int64_t from = std::max(begin, at->first), to = std::min(begin + lanes, at->first + at->count);
          stores.push_back({static_cast<int>(from - begin), static_cast<int>(to - from), at->start + from - at->first});
        }
        begins.push_back(static_cast<std::int32_t>(stores.size()));
      }
    }
    void clear() {
      stores.clear();
      begins.resize(1);
    }

    std::vector<PlaceRun> written;  // runs of places whose results wait for their arithmetic
    std::int64_t left = 0;          // such places
    /// The places of the stores wait.
    void leave() {
      for (const PlaceStore& store : stores) {
        left += store.count;
        if (!written.empty() && written.back().start + written.back().count == store.to)
          written.back().count += store.count;
        else
          written.push_back({0, store.to, store.count});
      }
    }
  };
  /// The arithmetic of results that wait for it.
  void take_steps(Stores& stores) const {
    for (const PlaceRun& run : stores.written)
      finish_.run(out_ + first_unit_ * places_ + run.start, first_unit_, units_, places_, run.count);
    stores.written.clear();
    stores.left = 0;
  }
  void finish(ConvCall<T>& waiting, Stores& stores) const {
    waiting.stores = stores.stores.data();
    waiting.begins = stores.begins.data();
    if (waiting.panels > 0 && parts_.empty()) conv_panel(waiting);
    for (std::size_t i = 0; waiting.panels > 0 && i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      ConvCall<T> one = waiting;
      one.offsets = waiting.offsets == packed_.data() ? part.packed.data() : part.offsets.data();
      one.block_k = part.block_k.data();
      one.k = std::ssize(part.offsets);
      one.weights = part.weights;
      one.units = part.units;
      if (part.units < copied_units) one.copy = nullptr;
      if (waiting.bias != nullptr) one.bias = waiting.bias + part.first;
      one.out = waiting.out + part.first * places_;
      conv_panel(one);
    }
    if (waiting.panels > 0 && !finish_.empty()) stores.leave();
    if (stores.left * units_ * static_cast<std::int64_t>(sizeof(T)) >= left_bytes) take_steps(stores);
    waiting.panels = 0;
    stores.clear();
  }
  std::int64_t panels_of(std::int64_t count) const { return (count + width_ - 1) / width_; }
  /// Vectors that hold `count` places of a panel.
  int vectors_of(std::int64_t count) const { return static_cast<int>((count * panel_vectors + width_ - 1) / width_); }

  /// Finds the distance from the element that the first k of a place sees to the element of each k: over channels, then taps in row-major order.
  void find_offsets(const PaddedPlanes& form, const Tensor& weights) {
    const DDim taps = weights.dims().erased(0).erased(0);
    std::vector<std::int64_t> of_taps(static_cast<std::size_t>(taps.elements()));
    for (std::size_t tap = 0; tap < of_taps.size(); ++tap) {
      auto rest = static_cast<std::int64_t>(tap);
      for (int axis = taps.rank() - 1; axis >= 0; --axis) {
        of_taps[tap] += form.offset_of(axis, desc_.axes[static_cast<std::size_t>(axis)], rest % taps[axis]);
        rest /= taps[axis];
      }
    }
    offsets_.reserve(static_cast<std::size_t>(k_));
    packed_.reserve(static_cast<std::size_t>(k_));
    for (std::int64_t channel = 0; channel < weights.dim(1); ++channel)
      for (const std::int64_t offset : of_taps) {
        packed_.push_back(std::ssize(offsets_) * width_);
        offsets_.push_back(channel * form.strides[1] + offset);
      }
  }

  /// A few elements, without a call.
  static void copy_some(const T* from, std::int64_t count, T* to) {
    constexpr std::int64_t some = 4;
    if (count < some) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
      return;
    }
    for (std::int64_t i = 0; i + some <= count; i += some) std::memcpy(to + i, from + i, some * sizeof(T));
    std::memcpy(to + count - some, from + count - some, some * sizeof(T));
  }

  /// For rows of the output at the edges of x: the taps that they see. Weights that are not finite keep all.
  void find_seen(std::int64_t rows, const Tensor& weights) {
    const ConvDesc::Axis& axis = desc_.axes[0];
    const std::int64_t taps = weights.dim(2), along = weights.dim(3), per_row = panels_of(extents_[1]);
    taps_.resize(static_cast<std::size_t>(extents_[0]));
    for (std::int64_t row = 0; row < extents_[0]; ++row) {
      const std::int64_t start = row * axis.stride - axis.before;
      std::int64_t first = 0, last = taps;
      while (first < last && start + first * axis.dilation < 0) ++first;
      while (last > first && start + (last - 1) * axis.dilation >= rows) --last;
      taps_[static_cast<std::size_t>(row)] = {first, last};
      if ((first == 0 && last == taps) || first == last || per_row < 2 || seen_.contains({first, last})) continue;
      SeenTaps<T> made;
      made.block_k.assign(static_cast<std::size_t>((k_ + k_block - 1) / k_block), 0);
      for (std::int64_t k = 0; k < k_; ++k) {
        if (const std::int64_t tap = k / along % taps; tap < first || tap >= last) continue;
        made.offsets.push_back(offsets_[static_cast<std::size_t>(k)]);
        ++made.block_k[static_cast<std::size_t>(k / k_block)];
      }
      if (std::count(made.block_k.begin(), made.block_k.end(), 0) > 0) continue;
      if (!all_finite(weights_, units_ * k_)) return;
      // Of each channel the taps that are left stand side by side.
      const std::int64_t each = taps * along, some = (last - first) * along;
      made.weights = std::make_unique_for_overwrite<T[]>(made.offsets.size() * static_cast<std::size_t>(units_));
      for (std::int64_t channel = 0; channel < units_ * k_ / each; ++channel)
        copy_some(weights_ + channel * each + first * along, some, made.weights.get() + channel * some);
      seen_.emplace(std::pair(first, last), std::move(made));
    }
  }
  /// The taps that the rows of a panel see; null: all.
  const SeenTaps<T>* seen_of(const std::vector<PlaceRun>& segments, std::int64_t image) const {
    if (seen_.empty() || segments.empty()) return nullptr;
    std::pair<std::int64_t, std::int64_t> taps{std::numeric_limits<std::int64_t>::max(), 0};
    for (const PlaceRun& segment : segments) {
      const auto [first, last] = taps_[static_cast<std::size_t>((segment.start - image * out_image_) / extents_[1])];
      taps = {std::min(taps.first, first), std::max(taps.second, last)};
    }
    const auto found = seen_.find(taps);
    return found == seen_.end() ? nullptr : &found->second;
  }

  void pack_adjoining(const T* from, std::int64_t count, T* panel) const {
    for (std::int64_t k = 0; k < k_; ++k, panel += width_) {
      std::memcpy(panel, from + offsets_[static_cast<std::size_t>(k)], static_cast<std::size_t>(count) * sizeof(T));
      std::fill(panel + count, panel + width_, T{0});
    }
  }
  /// The runs of places that lie side by side.
  static std::vector<PlaceRun> runs_of(const std::int64_t* places, std::int64_t count) {
    std::vector<PlaceRun> runs;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i > 0 && places[i] == places[i - 1] + 1)
        ++runs.back().count;
      else
        runs.push_back({i, places[i], 1});
    }
    return runs;
  }
  void pack_places(const std::int64_t* places, std::int64_t count, T* panel) const {
    const std::vector<PlaceRun> runs = runs_of(places, count);
    pack_runs(x_, offsets_.data(), k_, runs.data(), std::ssize(runs), width_, panel);
    if (count < width_)
      for (std::int64_t k = 0; k < k_; ++k) std::fill(panel + k * width_ + count, panel + (k + 1) * width_, T{0});
  }

  /// Places [begin, end) of an image, counted along its plane: those of rows of the output, without what lies between them.
  void find_segments(std::int64_t image, std::int64_t begin, std::int64_t end, std::vector<PlaceRun>& segments) const {
    const std::int64_t along = extents_.back();
    const std::int64_t rows = places_ / along;
    for (std::int64_t row = first_row(begin - along + 1); row < rows; ++row) {
      const std::int64_t start = start_of(row);
      if (start >= end) return;
      const std::int64_t from = std::max(begin, start), to = std::min(end, start + along);
      if (from < to) segments.push_back({from - begin, image * out_image_ + row * along + from - start, to - from});
    }
  }
  /// Where a row of the output, all axes but the last, begins along the plane.
  std::int64_t start_of(std::int64_t row) const {
    std::int64_t start = 0;
    for (std::size_t axis = extents_.size() - 1; axis-- > 0;) {
      if (axis == 0) return start + row * steps_[0];
      start += row % extents_[axis] * steps_[axis];
      row /= extents_[axis];
    }
    return start;
  }
  /// Whether each row begins behind the one before it. Wide padding on both sides of an axis is shared by neighbours, so that the last rows of one lie among
  /// the first of the next.
  bool rises() const {
    for (std::size_t axis = 1; axis + 1 < extents_.size(); ++axis)
      if (extents_[axis] * steps_[axis] > steps_[axis - 1]) return false;
    return true;
  }
  /// The first row that begins at `place` or behind it.
  std::int64_t first_row(std::int64_t place) const {
    std::int64_t low = 0, high = places_ / extents_.back();
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (start_of(middle) < place)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  /// Places [begin, begin + count) of all images in the order of the output.
  void find_places(std::int64_t begin, std::int64_t count, std::int64_t* places, std::vector<PlaceRun>& segments) const {
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t image = (begin + i) / places_, place = (begin + i) % places_;
      const std::int64_t some = std::min(count - i, places_ - place);
      segments.push_back({i, image * out_image_ + place, some});
      const std::int64_t along = extents_.back();
      for (std::int64_t next = 0; next < some; ++next, ++i)
        places[i] = image * plane_image_ + start_of((place + next) / along) + (place + next) % along;
    }
  }

  const ConvDesc& desc_;
  ConvFinish<T> finish_;
  std::int64_t width_;  // places of a panel
  std::int64_t units_;  // output channels
  std::int64_t k_ = 0, first_unit_ = 0, places_ = 1, images_ = 0, out_image_ = 0, plane_image_ = 0;
  std::int64_t together_ = 1;  // panels side by side that are computed together: with few k a row of out would be written in short pieces
  std::int64_t lines_ = 1;     // rows of an image that are whole panels, one after the other
  std::int64_t between_ = 0;   // places of a line: of such a row, or of an image with those between its rows
  bool adjoining_ = false;     // places that lie side by side are computed side by side, those between rows too
  std::vector<std::int64_t> extents_;  // of the output
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> offsets_;                        // of each k, in the plane
  std::vector<std::int64_t> packed_;                         // and in a packed panel
  std::vector<std::pair<std::int64_t, std::int64_t>> taps_;  // by row of the output: those along its axis that see x
  std::map<std::pair<std::int64_t, std::int64_t>, SeenTaps<T>> seen_;
  std::vector<Part> parts_;  // empty: all units have all taps
  const T* weights_ = nullptr;
  const T* x_ = nullptr;
  T* out_ = nullptr;
};

template <class T>
void run_groups(const ConvDesc& desc, const DDim& x_dims, const Planes<T>& planes, const Tensor& weights, const Tensor* bias,
                const ConvSteps& steps, const Tensor& out, ThreadTeam& team, const ConvTaps* taps) {
  if (taps != nullptr && !all_finite(planes.first, planes.elements)) taps = nullptr;  // zero times infinity is NaN
  for (std::int64_t index = 0; index < desc.groups; ++index) {
    const Group<T> group(desc, x_dims, planes, weights, steps, out, index, taps);
    const std::int64_t grain = std::max<std::int64_t>(1, thread_work / std::max<std::int64_t>(1, group.work()));
    team.parallel(group.panels(), grain, [&](std::int64_t first, std::int64_t last) {
      const auto room =
          std::make_unique_for_overwrite<CacheLine[]>(static_cast<std::size_t>(group.room()) * sizeof(T) / sizeof(CacheLine) + 1);
      group.run(first, last, bias == nullptr ? nullptr : static_cast<const T*>(bias->raw()), reinterpret_cast<T*>(room.get()));
    });
  }
}

/// Copies x between its padding into `room`: rows are as far apart as a row and the padding that follows it, in front of all which stands that of the first row.
template <class T>
void pad_planes(const ConvDesc& desc, const PaddedPlanes& form, const Tensor& x, const Tensor& room, ThreadTeam& team) {
  DDim dims = x.dims();
  for (int axis = 2; axis < x.rank(); ++axis) {
    const ConvDesc::Axis& window = desc.axes[static_cast<std::size_t>(axis - 2)];
    dims[axis] += std::max(window.before, window.after);
  }
  const std::int64_t behind = form.first + dims.elements();
  T* const first = static_cast<T*>(room.raw_mutable());
  std::fill_n(first, form.first, T{0});
  std::fill(first + behind, first + form.elements, T{0});
  surround(x, std::vector<std::int64_t>(static_cast<std::size_t>(x.rank()), 0), PadMode::constant, Tensor::scalar(T{0}),
           room.slice(0, form.first, behind).reshape(dims), team);
}

/// Elements that lie behind the planes of a channel: a copy writes up to a vector of zeros behind its last row.
constexpr std::int64_t plane_slack = 16;

/// Splits the channels of x into the planes of their phases.
template <class T>
class PhaseSplit {
 public:
  PhaseSplit(const ConvDesc& desc, const PaddedPlanes& form, const Tensor& x) : desc_(desc), form_(form), x_(x) {
    leading_ = static_cast<int>(desc.axes.size()) - 1;
    for (int axis = 0; axis < leading_; ++axis) phases_ *= form.axes[static_cast<std::size_t>(axis)].phases;
  }

  void run(T* room, ThreadTeam& team) const {
    const std::int64_t channels = x_.dim(0) * x_.dim(1);
    const std::int64_t grain = std::max<std::int64_t>(1, grain_light / std::max<std::int64_t>(1, form_.strides[1]));
    team.parallel(channels, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t channel = begin; channel < end; ++channel) {
        T* const to = room + channel * form_.strides[1];
        std::fill_n(to, form_.strides[1], T{0});  // the padding, which nothing else writes
        // Where there is one channel, its stride may be any.
        const T* const from =
            static_cast<const T*>(x_.raw()) + channel / x_.dim(1) * x_.strides()[0] + channel % x_.dim(1) * x_.strides()[1];
        // Planes are written in the order of memory: zeros behind the last row of a plane fall into the next plane, which is still to be written.
        for (std::int64_t phase = 0; phase < phases_; ++phase) split(0, phase, from, to);
      }
    });
  }

 private:
  /// Copies the rows that lie in the planes of `phase`, a number that counts the phases of the leading axes from `axis` on.
  void split(int axis, std::int64_t phase, const T* from, T* to) const {
    if (axis >= leading_) return rows(from, 0, 1, to, 0);
    std::int64_t later = 1;
    for (int next = axis + 1; next < leading_; ++next) later *= form_.axes[static_cast<std::size_t>(next)].phases;
    const ConvDesc::Axis& window = desc_.axes[static_cast<std::size_t>(axis)];
    const std::int64_t mine = phase / later, step = x_.strides()[2 + axis], to_step = form_.strides[2 + axis];
    const std::int64_t first = ((mine - window.before) % window.stride + window.stride) % window.stride;
    const std::int64_t extent = x_.dim(2 + axis);
    if (first >= extent) return;
    const std::int64_t place = (window.before + first) / window.stride, count = (extent - first + window.stride - 1) / window.stride;
    from += first * step;
    to += mine * form_.axes[static_cast<std::size_t>(axis)].phase_step + place * to_step;
    if (axis + 1 == leading_) return rows(from, window.stride * step, count, to, to_step);
    for (std::int64_t i = 0; i < count; ++i) split(axis + 1, phase % later, from + i * window.stride * step, to + i * to_step);
  }

  /// Copies `count` rows along the last axis.
  void rows(const T* from, std::int64_t from_row, std::int64_t count, T* to, std::int64_t to_row) const {
    const ConvDesc::Axis& window = desc_.axes.back();
    const PaddedPlanes::Axis& axis = form_.axes.back();
    const std::int64_t extent = x_.dim(-1);
    if (axis.phases == window.stride)
      return split_phases(PlaneCopy<T>{from, from_row, count, extent, window.before, window.stride, axis.phase_step, to_row, to});
    for (std::int64_t row = 0; row < count; ++row, from += from_row, to += to_row)
      for (std::int64_t i = 0; i < extent; ++i)
        if (const std::int64_t place = window.before + i, phase = place % window.stride; phase < axis.phases)
          to[phase * axis.phase_step + place / window.stride] = from[i];
  }

  const ConvDesc& desc_;
  const PaddedPlanes& form_;
  const Tensor& x_;
  int leading_ = 0;          // axes but the last
  std::int64_t phases_ = 1;  // of the leading axes together
};

template <class T>
void run_type(const ConvDesc& desc, const Tensor& x, const Tensor* room, const Tensor& weights, const Tensor* bias, const ConvSteps& steps,
              const Tensor& out, ThreadTeam& team, const ConvTaps* taps, const Tensor* units) {
  const PaddedPlanes form(desc, x.dims(), weights.dims());
  if (room == nullptr) {
    const T* const from = static_cast<const T*>(x.raw());
    if (units != nullptr) return conv_by_units(desc, from, form, weights.dims(), *units, bias, steps, out, team);
    return run_groups<T>(desc, x.dims(), {from, x.elements(), form}, weights, bias, steps, out, team, taps);
  }
  if (form.split)
    PhaseSplit<T>(desc, form, x).run(static_cast<T*>(room->raw_mutable()), team);
  else
    pad_planes<T>(desc, form, x, *room, team);
  const T* const planes = static_cast<const T*>(room->raw());
  if (units != nullptr) return conv_by_units(desc, planes, form, weights.dims(), *units, bias, steps, out, team);
  run_groups<T>(desc, x.dims(), {planes, form.elements, form}, weights, bias, steps, out, team, taps);
}

}  // namespace

bool needs_planes(const ConvDesc& desc) {
  return std::any_of(desc.axes.begin(), desc.axes.end(),
                     [](const ConvDesc::Axis& axis) { return axis.before > 0 || axis.after > 0 || axis.stride > 1; });
}

PaddedPlanes::PaddedPlanes(const ConvDesc& desc, const DDim& dims, const DDim& weights) : strides(dims), axes(desc.axes.size()) {
  split = std::any_of(desc.axes.begin(), desc.axes.end(), [](const ConvDesc::Axis& axis) { return axis.stride > 1; });
  const auto form_of = [&](int axis) { return axis < 2 ? ConvDesc::Axis() : desc.axes[static_cast<std::size_t>(axis - 2)]; };
  std::int64_t step = 1, behind = 0;
  if (split) {
    for (int axis = dims.rank() - 1; axis >= 2; --axis) {
      const ConvDesc::Axis form = form_of(axis);
      const std::int64_t places = checked_add(checked_add(form.before, dims[axis]), form.after);
      strides[axis] = step;
      step = checked_mul(step, places / form.stride + (places % form.stride != 0 ? 1 : 0));
    }
    for (int axis = dims.rank() - 1; axis >= 2; --axis) {
      const ConvDesc::Axis form = form_of(axis);
      axes[static_cast<std::size_t>(axis - 2)] = {std::min(form.stride, (weights[axis] - 1) * form.dilation + 1), step};
      step = checked_mul(step, axes[static_cast<std::size_t>(axis - 2)].phases);
    }
    strides[1] = checked_add(step, plane_slack);
    strides[0] = checked_mul(dims[1], strides[1]);
    elements = checked_mul(dims[0], strides[0]);
    return;
  }
  for (int axis = dims.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    const ConvDesc::Axis form = form_of(axis);
    first = checked_add(first, checked_mul(form.before, step));
    behind = checked_add(behind, checked_mul(form.after, step));
    step = checked_mul(step, checked_add(dims[axis], std::max(form.before, form.after)));
  }
  elements = checked_add(first, checked_add(step, behind));
}

void conv(const ConvDesc& desc, const Tensor& x, const Tensor* room, const Tensor& weights, const Tensor* bias, const ConvSteps& steps,
          const Tensor& out, ThreadTeam& team, const ConvTaps* taps, const Tensor* units) {
  if (out.elements() == 0) return;
  if (x.dtype() == DType::f64) return run_type<double>(desc, x, room, weights, bias, steps, out, team, taps, units);
  run_type<float>(desc, x, room, weights, bias, steps, out, team, taps, units);
}

template <class T>
std::shared_ptr<const ConvTaps> find_taps(const ConvDesc& desc, const Tensor& weights) {
  constexpr std::int64_t few_units = 4;      // which would fill less than a tile
  constexpr std::int64_t saved_of_all = 16;  // one in so many products is left out
  const std::int64_t units = weights.dim(0), channels = weights.dim(1), taps = weights.elements() / (units * channels);
  const auto* const from = static_cast<const T*>(weights.raw());
  auto found = std::make_shared<ConvTaps>();
  std::vector<bool> last;
  std::int64_t products = 0;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    std::vector<bool> there(static_cast<std::size_t>(taps), false);
    for (std::int64_t i = 0; i < channels * taps; ++i)
      if (from[unit * channels * taps + i] != T{0}) there[static_cast<std::size_t>(i % taps)] = true;  // NaN too
    products += channels * std::count(there.begin(), there.end(), true);
    if (unit % (units / desc.groups) == 0 || there != last) found->parts.emplace_back();
    last = std::move(there);
    ConvTaps::Part& part = found->parts.back();
    if (++part.units > 1) continue;
    for (std::int64_t i = 0; i < channels * taps; ++i)
      if (last[static_cast<std::size_t>(i % taps)]) part.k.push_back(i);
  }
  const std::int64_t all = weights.elements();
  if (all - products < all / saved_of_all || units < few_units * std::ssize(found->parts)) return nullptr;
  const T* unit = from;
  for (ConvTaps::Part& part : found->parts) {
    part.weights = Tensor(weights.dtype(), DDim{part.units, std::ssize(part.k)});
    T* to = static_cast<T*>(part.weights.raw_mutable());
    for (std::int64_t i = 0; i < part.units; ++i, unit += channels * taps)
      for (const std::int64_t k : part.k) *to++ = unit[k];
  }
  return found;
}
template std::shared_ptr<const ConvTaps> find_taps<float>(const ConvDesc& desc, const Tensor& weights);
template std::shared_ptr<const ConvTaps> find_taps<double>(const ConvDesc& desc, const Tensor& weights);

}  // namespace millrace::cpu
