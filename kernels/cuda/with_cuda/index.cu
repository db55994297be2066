// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/cuda/with_cuda/fault_source.h>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/functions.cuh>

#include <cstring>

namespace millrace::cuda {
namespace {

/// Row-major indices; indices that lie otherwise are copied first.
class Places {
 public:
  Places(const Tensor& index, KernelContext& context) : held_(index) {
    if (!index.is_contiguous()) {
      held_ = scratch(queue_of(context), index.dtype(), index.dims());
      copy(index, held_, context);
    }
  }
  Elements<std::int64_t> elements() const { return cuda::elements<std::int64_t>(held_); }

 private:
  Tensor held_;
};

/// `index` within an axis, from its end when negative; raises a fault and gives 0 when it is outside.
MILLRACE_HD std::int64_t place_in(std::int64_t index, std::int64_t extent, const FaultSink& fault) {
  const std::int64_t place = index < 0 ? index + extent : index;
  if (place >= 0 && place < extent) return place;
  fault.raise(Fault::index, index);
  return 0;
}

Walk<1> walk_along(const DDim& dims, const DDim& strides) {
  const DDim* const one[1] = {&strides};
  return Walk<1>(dims, one);
}

template <class U>
const U* from_of(const Tensor& x) {
  return static_cast<const U*>(x.raw());
}
template <class U>
U* to_of(const Tensor& x) {
  return static_cast<U*>(x.raw_mutable());
}

template <class U>
struct Gather {
  Walk<1> outer, inner;
  const U* from;
  U* to;
  Elements<std::int64_t> index;
  std::int64_t entries, extent, step;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t before = i / inner.count;
    std::int64_t a[1], b[1];
    outer.find(before / entries, a);
    inner.find(i - before * inner.count, b);
    const std::int64_t place = place_in(index.get(before % entries), extent, fault);
    to[i] = extent == 0 ? U{} : from[a[0] + place * step + b[0]];
  }
};

template <class U>
struct GatherElements {
  Walk<2> walk;
  const U* from;
  U* to;
  Elements<std::int64_t> index;
  std::int64_t extent, step;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[2];
    walk.find(i, at);
    const std::int64_t place = place_in(index.get(i), extent, fault);
    to[at[1]] = extent == 0 ? U{} : from[at[0] + place * step];
  }
};

/// Rows of x at the places of a plan; −1: a row of `otherwise`, or zeros.
template <class U>
struct GatherRows {
  Walk<3> row;  // x, out, otherwise
  const U *from, *otherwise;
  U* to;
  Elements<std::int64_t> index;
  std::int64_t rows, from_step, to_step;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t entry = i / row.count;
    std::int64_t at[3];
    row.find(i - entry * row.count, at);
    std::int64_t place = index.get(entry);
    if (place < -1 || place >= rows) {
      fault.raise(Fault::index, place);
      place = -1;
    }
    to[entry * to_step + at[1]] = place >= 0 ? from[place * from_step + at[0]] : otherwise != nullptr ? otherwise[at[2]] : U{};
  }
};

/// The entry behind which no other names its row writes it.
template <class U>
struct ScatterRows {
  Walk<2> row;
  const U* from;
  U* to;
  Elements<std::int64_t> index;
  std::int64_t entries, rows, from_step, to_step;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t entry = i / row.count;
    const std::int64_t place = index.get(entry);
    if (place < -1 || place >= rows) return fault.raise(Fault::index, place);
    if (place < 0) return;
    for (std::int64_t later = entry + 1; later < entries; ++later)
      if (index.get(later) == place) return;
    std::int64_t at[2];
    row.find(i - entry * row.count, at);
    to[place * to_step + at[1]] = from[entry * from_step + at[0]];
  }
};

/// Finds the block that each entry [batch…, …, r] names.
struct Blocks {
  Elements<std::int64_t> index;
  std::int64_t* blocks;
  std::int64_t extents[max_rank];
  std::int64_t each;
  int places;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t block = i / each;
    for (int j = 0; j < places; ++j) block = block * extents[j] + place_in(index.get(i * places + j), extents[j], fault);
    blocks[i] = block;
  }
};

template <class U>
struct GatherBlocks {
  const U* from;
  U* to;
  const std::int64_t* blocks;
  std::int64_t block;
  MILLRACE_HD void operator()(std::int64_t i) const { to[i] = from[blocks[i / block] * block + i % block]; }
};

template <class T>
MILLRACE_HD T reduced(T a, T b, ScatterReduction reduction) {
  if (reduction == ScatterReduction::none) return b;
  if (reduction == ScatterReduction::min) return b < a || b != b ? b : a;
  if (reduction == ScatterReduction::max) return b > a || b != b ? b : a;
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return wrapped(reduction == ScatterReduction::add ? bits_of(a) + bits_of(b) : bits_of(a) * bits_of(b));
  } else {
    return reduction == ScatterReduction::add ? a + b : a * b;
  }
}

/// The first entry that names a block takes in all that name it, in their order.
template <class T>
struct ScatterBlocks {
  Elements<T> from, to;
  const std::int64_t* blocks;
  std::int64_t entries, block;
  ScatterReduction reduction;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t entry = i / block;
    const std::int64_t within = i % block;
    const std::int64_t target = blocks[entry];
    for (std::int64_t before = 0; before < entry; ++before)
      if (blocks[before] == target) return;
    const std::int64_t at = target * block + within;
    for (std::int64_t one = entry; one < entries; ++one)
      // Narrow floats are narrowed after each, as the order is defined.
      if (blocks[one] == target) to.set(at, reduced(to.get(at), from.get(one * block + within), reduction));
  }
};

/// Where in `out` each element of index goes.
struct ElementTargets {
  Walk<1> walk;  // over out, with the axis left out
  Elements<std::int64_t> index;
  std::int64_t* targets;
  std::int64_t extent, step;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t at[1];
    walk.find(i, at);
    targets[i] = at[0] + place_in(index.get(i), extent, fault) * step;
  }
};

template <class U>
struct MappedCopy {
  const U* from;
  U* to;
  U none;
  const std::int64_t* maps;  // one behind the other
  std::int64_t extents[max_rank];
  std::int64_t steps[max_rank];
  int rank;
  MILLRACE_HD void operator()(std::int64_t i) const {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    std::int64_t first = 0;
    for (int axis = 0; axis < rank; ++axis) first += extents[axis];
    for (int axis = rank - 1; axis >= 0; --axis) {
      first -= extents[axis];
      const std::int64_t place = maps[first + rest % extents[axis]];
      rest /= extents[axis];
      if (place < 0) {
        to[i] = none;
        return;
      }
      offset += place * steps[axis];
    }
    to[i] = from[offset];
  }
};

template <class U>
struct OneHot {
  U off, on;
  U* to;
  Elements<std::int64_t> index;
  std::int64_t depth, behind;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t outer = i / (behind * depth);
    const std::int64_t given = index.get(outer * behind + i % behind);
    const std::int64_t place = given < 0 ? given + depth : given;
    to[i] = place == i / behind % depth ? on : off;
  }
};

template <class U>
struct ReverseSequence {
  Walk<2> inner;
  const U* from;
  U* to;
  Elements<std::int64_t> lengths;
  std::int64_t steps, batch;
  std::int64_t from_time, from_batch, to_time, to_batch;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / inner.count;
    const std::int64_t n = row % batch;
    const std::int64_t t = row / batch;
    std::int64_t length = lengths.get(n);
    if (length < 0 || length > steps) {
      fault.raise(Fault::index, length);
      length = 0;
    }
    std::int64_t at[2];
    inner.find(i - row * inner.count, at);
    const std::int64_t source = t < length ? length - 1 - t : t;
    to[t * to_time + n * to_batch + at[1]] = from[source * from_time + n * from_batch + at[0]];
  }
};

template <class T>
struct SequenceScatter {
  Elements<T> from, added, to;
  Elements<std::int64_t> ids;
  const std::int64_t* offsets;
  std::int64_t columns;
  FaultSink fault;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns;
    const std::int64_t column = i % columns;
    std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, T> sum = static_cast<decltype(sum)>(from.get(i));
    for (std::int64_t j = offsets[row]; j < offsets[row + 1]; ++j) {
      const std::int64_t place = ids.get(j);
      if (column == 0 && (place < 0 || place >= columns)) fault.raise(Fault::index, place);
      if (place == column) sum += static_cast<decltype(sum)>(added.get(j));
    }
    to.set(i, static_cast<T>(sum));
  }
};

DDim erased_front(const DDim& dims) { return dims.erased(0); }

void gather_rows_from(const Tensor& x, const Elements<std::int64_t>& index, const Tensor* otherwise, const Tensor& out,
                      KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const DDim from = erased_front(x.strides());
  const DDim to = erased_front(out.strides());
  const DDim& rest = otherwise == nullptr ? to : otherwise->strides();
  const DDim* const strides[3] = {&from, &to, &rest};
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(
        queue, out.elements(),
        GatherRows<U>{Walk<3>(erased_front(out.dims()), strides), from_of<U>(x), otherwise == nullptr ? nullptr : from_of<U>(*otherwise),
                      to_of<U>(out), index, x.dim(0), x.strides()[0], out.strides()[0], fault_sink(queue, FaultyOp::gather_rows)});
  });
}

void scatter_rows_from(const Tensor& x, const Elements<std::int64_t>& index, const Tensor& out, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const DDim from = erased_front(x.strides());
  const DDim to = erased_front(out.strides());
  const DDim* const strides[2] = {&from, &to};
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(queue, x.elements(),
               ScatterRows<U>{Walk<2>(erased_front(x.dims()), strides), from_of<U>(x), to_of<U>(out), index, x.dim(0), out.dim(0),
                              x.strides()[0], out.strides()[0], fault_sink(queue, FaultyOp::scatter_rows)});
  });
}

/// Blocks of `dims` behind the first batch_axes + r axes.
Tensor blocks_of(FaultyOp op, const Tensor& index, int batch_axes, const DDim& dims, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const std::int64_t entries = index.dims().slice(0, index.rank() - 1).elements();
  const std::int64_t batches = dims.slice(0, batch_axes).elements();
  Tensor made = scratch(queue, DType::i64, DDim{entries});
  const Places places(index, context);
  Blocks kernel{places.elements(),
                static_cast<std::int64_t*>(made.raw_mutable()),
                {},
                batches == 0 ? 1 : entries / batches,
                static_cast<int>(index.dim(-1)),
                fault_sink(queue, op)};
  for (int j = 0; j < kernel.places; ++j) kernel.extents[j] = dims[batch_axes + j];
  if (kernel.each > 0) each_index(queue, entries, kernel);
  return made;
}

void scatter_at(const Tensor& updates, const Tensor& blocks, std::int64_t block, ScatterReduction reduction, const Tensor& out,
                KernelContext& context) {
  visit_wide(out.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue_of(context), updates.elements(),
               ScatterBlocks<T>{elements<T>(updates), elements<T>(out), integers(blocks), blocks.elements(), block, reduction});
  });
}

}  // namespace

void gather(const Tensor& x, const Tensor& index, int axis, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Places places(index, context);
  const Walk<1> outer = walk_along(x.dims().slice(0, axis), x.strides().slice(0, axis));
  const Walk<1> inner = walk_along(x.dims().slice(axis + 1, x.rank()), x.strides().slice(axis + 1, x.rank()));
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(queue, out.elements(),
               Gather<U>{outer, inner, from_of<U>(x), to_of<U>(out), places.elements(), index.elements(), x.dim(axis), x.strides()[axis],
                         fault_sink(queue, FaultyOp::gather)});
  });
}

void gather_elements(const Tensor& x, const Tensor& index, int axis, const Tensor& out, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const Places places(index, context);
  DDim from = x.strides();
  from[axis] = 0;
  const DDim* const strides[2] = {&from, &out.strides()};
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(queue, out.elements(),
               GatherElements<U>{Walk<2>(out.dims(), strides), from_of<U>(x), to_of<U>(out), places.elements(), x.dim(axis),
                                 x.strides()[axis], fault_sink(queue, FaultyOp::gather_elements)});
  });
}

void gather_rows(const Tensor& x, const Indices& index, const Tensor& out, KernelContext& context) {
  const Tensor plan = uploaded(queue_of(context), index);
  gather_rows_from(x, elements<std::int64_t>(plan), nullptr, out, context);
}

void gather_rows(const Tensor& x, const Tensor& index, const Tensor& out, KernelContext& context) {
  const Places places(index, context);
  gather_rows_from(x, places.elements(), nullptr, out, context);
}

void gather_rows_or(const Tensor& x, const Indices& index, const Tensor& otherwise, const Tensor& out, KernelContext& context) {
  const Tensor plan = uploaded(queue_of(context), index);
  gather_rows_from(x, elements<std::int64_t>(plan), &otherwise, out, context);
}

void scatter_rows(const Tensor& x, const Indices& index, const Tensor& out, KernelContext& context) {
  const Tensor plan = uploaded(queue_of(context), index);
  scatter_rows_from(x, elements<std::int64_t>(plan), out, context);
}

void scatter_rows(const Tensor& x, const Tensor& index, const Tensor& out, KernelContext& context) {
  const Places places(index, context);
  scatter_rows_from(x, places.elements(), out, context);
}

void gather_nd(const Tensor& x, const Tensor& index, int batch_axes, const Tensor& out, KernelContext& context) {
  if (index.dims().slice(0, index.rank() - 1).elements() == 0) return;
  const Tensor blocks = blocks_of(FaultyOp::gather_nd, index, batch_axes, x.dims(), context);
  if (out.elements() == 0 || x.elements() == 0) return;
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(queue_of(context), out.elements(),
               GatherBlocks<U>{from_of<U>(x), to_of<U>(out), integers(blocks), out.elements() / blocks.elements()});
  });
}

void scatter_nd(const Tensor& updates, const Tensor& index, ScatterReduction reduction, const Tensor& out, KernelContext& context) {
  if (updates.elements() == 0) return;
  const Tensor blocks = blocks_of(FaultyOp::scatter_nd, index, 0, out.dims(), context);
  if (out.elements() > 0) scatter_at(updates, blocks, updates.elements() / blocks.elements(), reduction, out, context);
}

void scatter_elements(const Tensor& updates, const Tensor& index, int axis, ScatterReduction reduction, const Tensor& out,
                      KernelContext& context) {
  if (updates.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Places places(index, context);
  const Tensor targets = scratch(queue, DType::i64, DDim{index.elements()});
  DDim strides = out.strides();
  strides[axis] = 0;
  each_index(queue, index.elements(),
             ElementTargets{walk_along(index.dims(), strides), places.elements(), static_cast<std::int64_t*>(targets.raw_mutable()),
                            out.dim(axis), out.strides()[axis], fault_sink(queue, FaultyOp::scatter_elements)});
  if (out.elements() > 0) scatter_at(updates, targets, 1, reduction, out, context);
}

void mapped_copy(const Tensor& x, const std::vector<Indices>& maps, const Tensor* otherwise, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  Indices all;
  for (const Indices& map : maps) all.insert(all.end(), map.begin(), map.end());
  const Tensor tables = uploaded(queue, all);
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    MappedCopy<U> kernel{from_of<U>(x), to_of<U>(out), U{}, integers(tables), {}, {}, x.rank()};
    if (otherwise != nullptr) std::memcpy(&kernel.none, otherwise->raw(), sizeof(U));
    for (int axis = 0; axis < x.rank(); ++axis) {
      kernel.extents[axis] = static_cast<std::int64_t>(maps[static_cast<std::size_t>(axis)].size());
      kernel.steps[axis] = x.strides()[axis];
    }
    each_index(queue, out.elements(), kernel);
  });
}

void one_hot(const Tensor& index, int axis, const Tensor& values, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Places places(index, context);
  visit_bytes(out.dtype(), [&](auto unit) {
    using U = decltype(unit);
    U both[2];
    std::memcpy(both, values.raw(), sizeof both);
    each_index(queue_of(context), out.elements(),
               OneHot<U>{both[0], both[1], to_of<U>(out), places.elements(), out.dim(axis), out.strides()[axis]});
  });
}

void reverse_sequence(const Tensor& x, const Tensor& lengths, int time_axis, const Tensor& out, KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Places places(lengths, context);
  const int batch = 1 - time_axis;
  const DDim from = x.strides().slice(2, x.rank());
  const DDim to = out.strides().slice(2, out.rank());
  const DDim* const strides[2] = {&from, &to};
  visit_bytes(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    each_index(queue, out.elements(),
               ReverseSequence<U>{Walk<2>(x.dims().slice(2, x.rank()), strides), from_of<U>(x), to_of<U>(out), places.elements(),
                                  x.dim(time_axis), x.dim(batch), x.strides()[time_axis], x.strides()[batch], out.strides()[time_axis],
                                  out.strides()[batch], fault_sink(queue, FaultyOp::reverse_sequence)});
  });
}

void sequence_scatter(const Tensor& x, const Tensor& ids, const Tensor& updates, const Indices& offsets, const Tensor& out,
                      KernelContext& context) {
  if (out.elements() == 0) return;
  const Queue& queue = queue_of(context);
  const Places places(ids, context);
  const Tensor bounds = uploaded(queue, offsets);
  visit_wide(x.dtype(), [&](auto wide) {
    using T = decltype(wide);
    each_index(queue, out.elements(),
               SequenceScatter<T>{elements<T>(x), elements<T>(updates), elements<T>(out), places.elements(), integers(bounds), x.dim(1),
                                  fault_sink(queue, FaultyOp::sequence_scatter)});
  });
}

}  // namespace millrace::cuda
