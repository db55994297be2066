// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/pad.h>

#include <algorithm>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// The copy of x between its padding, axis by axis.
template <class U>
class Surrounding {
 public:
  Surrounding(const Tensor& x, const std::vector<std::int64_t>& before, PadMode mode, U element, const Tensor& out)
      : rank_(x.rank()),
        mode_(mode),
        element_(element),
        before_(before.data()),
        x_dims_(x.dims()),
        x_strides_(x.strides()),
        dims_(out.dims()),
        strides_(out.strides()) {
    const auto is_whole = [&](int axis) {
      return before[static_cast<std::size_t>(axis)] == 0 && x.dim(axis) == out.dim(axis) &&
             (x.dim(axis) == 1 || x.strides()[axis] == out.strides()[axis]);
    };
    for (whole_ = rank_; whole_ > 0 && is_whole(whole_ - 1);) --whole_;
  }

  /// Items [begin, end) of `axis` of the output, the first of which is at `to`; `from` is the first item that x has along the axis.
  void items(int axis, std::int64_t begin, std::int64_t end, const U* from, U* to) const {
    const std::int64_t front = before_[axis], count = x_dims_.begin()[axis], size = strides_.begin()[axis];
    if (axis >= whole_) {
      std::copy_n(from + begin * size, (end - begin) * size, to);
      return;
    }
    const std::int64_t step = count == 1 ? size : x_strides_.begin()[axis];
    const std::int64_t first = std::clamp(front, begin, end), past = std::clamp(front + count, begin, end);
    to = padding(axis, begin, first, from, to);
    const U* next = from + (first - front) * step;
    if (axis + 1 == whole_ && step == size) {
      std::copy_n(next, (past - first) * size, to);
      to += (past - first) * size;
    } else if (axis + 1 == rank_) {
      for (std::int64_t i = first; i < past; ++i, next += step) *to++ = *next;
    } else {
      for (std::int64_t i = first; i < past; ++i, next += step, to += size) items(axis + 1, 0, dims_.begin()[axis + 1], next, to);
    }
    padding(axis, past, end, from, to);
  }

 private:
  /// Items [begin, end), which are in front of x or behind it. The result is the place behind them.
  U* padding(int axis, std::int64_t begin, std::int64_t end, const U* from, U* to) const {
    const std::int64_t size = strides_.begin()[axis];
    if (mode_ == PadMode::constant) return std::fill_n(to, (end - begin) * size, element_);
    for (std::int64_t i = begin; i < end; ++i, to += size) {
      const U* shown = from + padding_source(i - before_[axis], x_dims_.begin()[axis], mode_) * x_strides_.begin()[axis];
      if (axis + 1 == rank_)
        *to = *shown;
      else
        items(axis + 1, 0, dims_.begin()[axis + 1], shown, to);
    }
    return to;
  }

  const int rank_;
  int whole_ = 0;  ///< axes from it on are neither padded nor apart: they are one run of elements in x and in the result
  const PadMode mode_;
  const U element_;
  const std::int64_t* const before_;
  const DDim x_dims_, x_strides_, dims_, strides_;
};

}  // namespace

std::int64_t padding_source(std::int64_t at, std::int64_t extent, PadMode mode) {
  if (at >= 0 && at < extent) return at;
  switch (mode) {
    case PadMode::constant: return -1;
    case PadMode::reflect: return at < 0 ? -at : 2 * (extent - 1) - at;
    case PadMode::edge: return at < 0 ? 0 : extent - 1;
    case PadMode::wrap: return (at % extent + extent) % extent;
  }
  return -1;
}

void surround(const Tensor& x, const std::vector<std::int64_t>& before, PadMode mode, const Tensor& element, const Tensor& out,
              ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const Surrounding<U> form(x, before, mode, *static_cast<const U*>(element.raw()), out);
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    if (x.rank() == 0) {
      *to = *from;
      return;
    }
    // The first axis of more than one item is shared out.
    int axis = 0;
    while (axis + 1 < x.rank() && out.dims()[axis] == 1 && x.dims()[axis] == 1) ++axis;
    const std::int64_t size = out.strides()[axis];
    team.parallel(out.dims()[axis], std::max<std::int64_t>(1, grain_light / size),
                  [&](std::int64_t begin, std::int64_t end) { form.items(axis, begin, end, from, to + begin * size); });
  });
}

}  // namespace millrace::cpu
