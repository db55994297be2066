// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/pool.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <millrace/kernels/cpu/pool_kernels.h>
#include <millrace/kernels/cpu/span_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

bool is_trivial(const PoolDesc::Axis& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.before == 0 && axis.after == 0; }

/// One of the folded axes, in x and in the result.
struct Folded {
  PoolDesc::Axis form;
  std::int64_t extent, out_extent;
  std::int64_t step = 0;  // elements from one place to the next, of every axis but the last
};

/// The form of one call: rows of x along the last folded axis, as long as elements can be folded side by side.
struct Form {
  std::vector<Folded> outer;  // all but the last
  Folded last;
  std::int64_t planes = 1;  // extents in front of the folded axes
  bool tiled = false;       // windows that fill one row, of all planes: any of them may begin a part of it

  Form(const PoolDesc& desc, const Tensor& x, const Tensor& out) : last{{}, 1, 1} {
    const int first = x.rank() - static_cast<int>(desc.axes.size());
    for (int axis = 0; axis < first; ++axis) planes *= x.dim(axis);
    for (int axis = first; axis < x.rank(); ++axis) {
      const Folded next{desc.axes[static_cast<std::size_t>(axis - first)], x.dim(axis), out.dim(axis)};
      if (outer.empty() && is_trivial(next.form))
        planes *= next.extent;
      else
        outer.push_back(next);
    }
    // Axes behind the last window are elements that are folded side by side.
    while (!outer.empty() && is_trivial(outer.back().form)) {
      last.extent = last.out_extent *= outer.back().extent;
      outer.pop_back();
    }
    if (last.extent == 1 && !outer.empty()) {
      last = outer.back();
      outer.pop_back();
    }
    tiled = outer.empty() && last.form.before == 0 && last.form.after == 0 && last.form.kernel == last.form.stride &&
            last.form.dilation == 1 && last.extent == last.out_extent * last.form.stride;
    if (tiled) {
      last.extent *= planes;
      last.out_extent *= planes;
      planes = 1;
    }
    std::int64_t step = last.extent;
    for (std::size_t i = outer.size(); i-- > 0;) {
      outer[i].step = step;
      step *= outer[i].extent;
    }
    plane_step = step;
  }

  std::int64_t rows() const {
    std::int64_t count = planes;
    for (const Folded& axis : outer) count *= axis.out_extent;
    return count;
  }
  /// Elements that a row of the result reads.
  std::int64_t row_work() const {
    std::int64_t work = last.extent;
    for (const Folded& axis : outer) work *= axis.form.kernel;
    return work;
  }

  std::int64_t plane_step = 0;
};

/// Bytes of rows that are folded along one axis before they are folded along the other; they stay in the first cache.
constexpr std::int64_t strip_bytes = 16 << 10;

/// Computes rows of the result where two axes are folded, many rows in a call: rows of a small plane are shorter than what it takes to find them. Of one thread.
template <class T>
class Strips {
 public:
  Strips(const PoolDesc& desc, const Form& form, const T* x) : fold_(desc.fold), form_(form), x_(x) {
    const Folded& down = form.outer.front();
    const Folded& along = form.last;
    call_.rows = down.extent;
    call_.columns = along.extent;
    call_.down = axis_of(down.form);
    call_.along = axis_of(along.form);
    call_.padding = static_cast<T>(desc.padding());
    call_.width = along.form.before + along.extent + along.form.after;
    call_.out_columns = along.out_extent;
    most_ = std::clamp<std::int64_t>(strip_bytes / static_cast<std::int64_t>(sizeof(T)) / call_.width, 1, down.out_extent);
    const auto room = static_cast<std::size_t>(most_ * call_.width + strip_slack);
    memory_ = std::make_unique_for_overwrite<T[]>(room);
    std::fill_n(memory_.get(), room, call_.padding);
    call_.room = memory_.get();
  }

  static bool fit(const Form& form) {
    const PoolDesc::Axis& along = form.last.form;
    return form.outer.size() == 1 && !is_trivial(along) &&
           (along.stride == 1 || (along.stride == 2 && (along.dilation == 1 || along.kernel == 1)));
  }

  void run(std::int64_t begin, std::int64_t end, T* out) {
    const std::int64_t rows = form_.outer.front().out_extent;
    while (begin < end) {
      call_.plane = x_ + begin / rows * form_.plane_step;
      call_.first = begin % rows;
      call_.count = std::min({most_, rows - call_.first, end - begin});
      call_.out = out + begin * call_.out_columns;
      fold_strip(call_, fold_);
      begin += call_.count;
    }
  }

 private:
  static typename StripCall<T>::Axis axis_of(const PoolDesc::Axis& form) { return {form.kernel, form.stride, form.dilation, form.before}; }

  Binary fold_;
  const Form& form_;
  const T* x_;
  StripCall<T> call_;
  std::int64_t most_ = 1;  // rows of a strip
  std::unique_ptr<T[]> memory_;
};

/// Computes rows of the result; of one thread.
template <class T>
class Rows {
 public:
  Rows(const PoolDesc& desc, const Form& form, const T* x)
      : fold_(desc.fold), form_(form), x_(x), between_(span_function<T>(desc.fold)), padding_(static_cast<T>(desc.padding())) {
    wide_ = form.last.form.before + form.last.extent + form.last.form.after;
    // A row for each axis that is folded; the last of them, which has the padding around it, also for rows that are read from x.
    levels_ = std::max<std::size_t>(1, form.outer.size());
    const std::size_t room = levels_ * static_cast<std::size_t>(wide_);
    memory_ = std::make_unique_for_overwrite<T[]>(room);
    std::fill_n(memory_.get(), room, padding_);
    begins_.resize(form.outer.size());
    if (!form.outer.empty()) taps_.resize(static_cast<std::size_t>(form.outer.front().form.kernel));
  }

  void run(std::int64_t row, T* out) {
    std::int64_t rest = row;
    for (std::size_t i = form_.outer.size(); i-- > 0;) {
      const Folded& axis = form_.outer[i];
      begins_[i] = rest % axis.out_extent * axis.form.stride - axis.form.before;
      rest /= axis.out_extent;
    }
    const Span<T> folded = fold_axes(form_.outer.size(), rest * form_.plane_step);
    const Folded& last = form_.last;
    const T* from = folded.first;
    if (wide_ > last.extent || folded.repeats) {
      T* inside = room_of(levels_ - 1);
      if (folded.repeats)
        std::fill_n(inside, last.extent, padding_);
      else if (folded.first != inside)
        std::copy_n(folded.first, last.extent, inside);
      from = inside - last.form.before;
    }
    fold_windows({from, last.form.kernel, last.form.stride, last.form.dilation, last.out_extent}, fold_, out);
  }

 private:
  T* room_of(std::size_t level) { return memory_.get() + static_cast<std::int64_t>(level) * wide_ + form_.last.form.before; }

  /// The row at `offset` of x with the first `count` of the outer axes folded.
  Span<T> fold_axes(std::size_t count, std::int64_t offset) {
    if (count == 0) return {x_ + offset, false};
    const Folded& axis = form_.outer[count - 1];
    T* room = room_of(count - 1);
    if (count == 1) {
      bool any = false;
      for (std::int64_t tap = 0; tap < axis.form.kernel; ++tap) {
        const std::int64_t place = begins_[0] + tap * axis.form.dilation;
        const bool inside = place >= 0 && place < axis.extent;
        taps_[static_cast<std::size_t>(tap)] = inside ? x_ + offset + place * axis.step : nullptr;
        any |= inside;
      }
      if (!any) return {&padding_, true};
      if (axis.form.kernel == 1) return {taps_[0], false};
      fold_rows({taps_.data(), axis.form.kernel, form_.last.extent, padding_}, fold_, room);
      return {room, false};
    }
    const auto length = static_cast<std::size_t>(form_.last.extent);
    Span<T> total;
    for (std::int64_t tap = 0; tap < axis.form.kernel; ++tap) {
      const std::int64_t place = begins_[count - 1] + tap * axis.form.dilation;
      const bool inside = place >= 0 && place < axis.extent;
      const Span<T> next = inside ? fold_axes(count - 1, offset + place * axis.step) : Span<T>{&padding_, true};
      if (tap > 0) {
        between_(total, next, room, length);
        total = {room, false};
      } else if (axis.form.kernel > 1 && !next.repeats) {  // the next tap overwrites the room of this one
        std::copy_n(next.first, length, room);
        total = {room, false};
      } else {
        total = next;
      }
    }
    return total;
  }

  Binary fold_;
  const Form& form_;
  const T* x_;
  SpanFunction<T> between_;
  T padding_;
  std::int64_t wide_ = 0;
  std::size_t levels_ = 1;
  std::unique_ptr<T[]> memory_;
  std::vector<std::int64_t> begins_;  // of the windows of a row, along each outer axis
  std::vector<const T*> taps_;        // rows of x that a window of the first outer axis has; null: padding
};

template <class T>
void run_type(const PoolDesc& desc, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  const Form form(desc, x, out);
  const T* from = static_cast<const T*>(x.raw());
  T* to = static_cast<T*>(out.raw_mutable());
  const auto grain_of = [](std::int64_t work) { return std::max<std::int64_t>(1, grain_light / std::max<std::int64_t>(1, work)); };
  if (form.tiled) {
    const PoolDesc::Axis& window = form.last.form;
    return team.parallel(form.last.out_extent, grain_of(window.kernel), [&](std::int64_t begin, std::int64_t end) {
      fold_windows({from + begin * window.stride, window.kernel, window.stride, window.dilation, end - begin}, desc.fold, to + begin);
    });
  }
  const std::int64_t grain = grain_of(form.row_work());
  team.parallel(form.rows(), grain, [&](std::int64_t begin, std::int64_t end) {
    if (Strips<T>::fit(form)) return Strips<T>(desc, form, from).run(begin, end, to);
    Rows<T> rows(desc, form, from);
    for (std::int64_t row = begin; row < end; ++row) rows.run(row, to + row * form.last.out_extent);
  });
}

}  // namespace

void pool(const PoolDesc& desc, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  if (x.dtype() == DType::f64) return run_type<double>(desc, x, out, team);
  run_type<float>(desc, x, out, team);
}

}  // namespace millrace::cpu
