// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gather.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <millrace/kernels/cpu/element_size.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cpu/mapped_copy.h>
#include <millrace/kernels/cpu/transpose_kernels.h>

namespace millrace::cpu {

std::vector<std::int64_t> checked_places(const char* op, const Tensor& index, int axis, const DDim& dims) {
  std::vector<std::int64_t> places = index_values(index);
  const std::int64_t extent = dims[axis];
  for (std::int64_t& place : places) {
    const std::int64_t named = place;
    if (place < 0) place += extent;
    if (place < 0 || place >= extent)
      throw IndexError(std::string(op) + ": expected an index within axis " + std::to_string(axis) + " of " + dims.to_string() +
                       ", found " + std::to_string(named));
  }
  return places;
}

namespace {

/// Elements of one row (all axes but the first), as one run or as a loop.
template <class U>
struct RowCopy {
  RowCopy(const Tensor& x, const Tensor& out) : RowCopy(x.dims().erased(0), x.strides().erased(0), out.strides().erased(0)) {}
  RowCopy(const DDim& dims, const DDim& from, const DDim& to)
      : strides{from, to},
        loop(dims, {&strides[0], &strides[1]}),
        adjoin(loop.count() <= 1 || (loop.inner()[0] == 1 && loop.inner()[1] == 1)),
        side_by_side(from == dims.row_major() && to == dims.row_major()) {}

  void operator()(const U* from, U* to) const {
    if (side_by_side) {
      std::memcpy(to, from, static_cast<std::size_t>(loop.count()) * sizeof(U));
      return;
    }
    loop.each_run(0, loop.count(), [&](const auto& offsets, std::int64_t run) {
      if (adjoin) {
        std::memcpy(to + offsets[1], from + offsets[0], static_cast<std::size_t>(run) * sizeof(U));
      } else {
        for (std::int64_t i = 0; i < run; ++i) to[offsets[1] + i * loop.inner()[1]] = from[offsets[0] + i * loop.inner()[0]];
      }
    });
  }
  void zero(U* to) const {
    loop.each_run(0, loop.count(), [&](const auto& offsets, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i) to[offsets[1] + i * loop.inner()[1]] = U{};
    });
  }

  DDim strides[2];
  StridedLoop<2> loop;
  bool adjoin;
  bool side_by_side;  ///< the whole row, here and there
};

/// Each of some places, one after another, so many times in a row: r where place i is that of 0 plus i / r; 1 where they are others.
std::int64_t repeats_of(const std::vector<std::int64_t>& places) {
  const std::int64_t first = places.front();
  const std::int64_t repeats =
      std::find_if(places.begin(), places.end(), [=](std::int64_t place) { return place != first; }) - places.begin();
  for (std::int64_t i = 0; i < std::ssize(places); ++i)
    if (places[static_cast<std::size_t>(i)] != first + i / repeats) return 1;
  return repeats;
}

/// A call that copies so many elements takes less time than a loop over them.
constexpr std::int64_t long_run = 8;

/// The number of runs of places that follow one another.
std::int64_t runs_of(const std::vector<std::int64_t>& places) {
  std::int64_t runs = 1;
  for (std::size_t i = 1; i < places.size(); ++i) runs += places[i] == places[i - 1] + 1 ? 0 : 1;
  return runs;
}

/// Elements [begin, end) of a row in which each element of `from` stands `repeats` times.
template <class U>
void repeat_each(const U* from, U* to, std::int64_t repeats, std::int64_t begin, std::int64_t end) {
  for (; begin < end && begin % repeats != 0; ++begin) to[begin] = from[begin / repeats];
  const std::int64_t whole = (end - begin) / repeats;
  if (sizeof(U) < 4 && repeats == 4) {  // a turn of narrow elements has no vectors, this loop does
    const U* const first = from + begin / 4;
    for (std::int64_t i = 0; i < whole; ++i)
      for (int again = 0; again < 4; ++again) to[begin + i * 4 + again] = first[i];
  } else {
    transpose_rows(from + begin / repeats, 0, to + begin, repeats, whole, repeats);
  }
  for (begin += whole * repeats; begin < end; ++begin) to[begin] = from[begin / repeats];
}

/// A function of its own: within another one, whose pointers may move, the loop took 1.6 times as long.
template <class U>
[[gnu::noinline]] void pick_each(const U* __restrict from, const std::int64_t* __restrict places, std::int64_t count, U* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[places[i]];
}

/// The elements behind `axis` lie side by side, `block` of them at each place; places that follow one another are one run of memory.
void gather_blocks(const Tensor& x, const std::vector<std::int64_t>& places, int axis, std::int64_t block, const Tensor& out,
                   ThreadTeam& team) {
  const std::int64_t step = x.strides()[axis], width = std::ssize(places);
  const bool adjoin = step == block;
  const std::int64_t repeats = block == 1 && step == 1 ? repeats_of(places) : 1;
  const bool all = repeats > 1 && places.front() == 0 && width == repeats * x.dim(axis);
  const bool apart = block == 1 && (!adjoin || width < long_run * runs_of(places));
  const DDim strides = x.strides().slice(0, axis);
  const StridedLoop<1> rows(x.dims().slice(0, axis), {&strides});
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    const auto copy = [&](const U* source, U* target, std::int64_t begin, std::int64_t end) {
      if (repeats > 1) return repeat_each(source + places.front(), target, repeats, begin, end);
      if (apart && step == 1) return pick_each(source, places.data() + begin, end - begin, target + begin);
      if (apart) {
        for (std::int64_t at = begin; at < end; ++at) target[at] = source[places[static_cast<std::size_t>(at)] * step];
        return;
      }
      for (std::int64_t at = begin, count = 1; at < end; at += count) {
        const std::int64_t* const place = places.data() + at;
        for (count = 1; adjoin && at + count < end && place[count] == *place + count;) ++count;
        if (count * block == 1)
          target[at] = source[*place * step];
        else
          std::memcpy(target + at * block, source + *place * step, static_cast<std::size_t>(count * block) * sizeof(U));
      }
    };
    team.parallel(rows.count() * width, std::max<std::int64_t>(1, grain_light / block), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t row = begin / width;
      const std::int64_t last = (end - 1) / width;
      rows.each_run(row, last + 1, [&](const auto& offsets, std::int64_t run) {
        if (all && rows.inner()[0] == x.dim(axis)) {  // rows that adjoin are one
          copy(from + offsets[0], to + row * width, row * width < begin ? begin % width : 0,
               std::min(end, (row + run) * width) - row * width);
          row += run;
          return;
        }
        for (std::int64_t i = 0; i < run; ++i, ++row)
          copy(from + offsets[0] + i * rows.inner()[0], to + row * width * block, row * width < begin ? begin % width : 0,
               row == last ? (end - 1) % width + 1 : width);
      });
    });
  });
}

std::int64_t rows_grain(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, grain_light / std::max<std::int64_t>(1, row_elements));
}

}  // namespace

void gather(const Tensor& x, const Tensor& index, int axis, const Tensor& out, ThreadTeam& team) {
  const std::vector<std::int64_t> places = checked_places("gather", index, axis, x.dims());
  if (out.elements() == 0) return;
  if (axis == 0) return gather_rows(x, places, out.reshape(x.dims().erased(0).inserted(0, index.elements())), team);
  const DDim behind = x.dims().slice(axis + 1, x.rank());
  if (x.strides().slice(axis + 1, x.rank()) == behind.row_major()) return gather_blocks(x, places, axis, behind.elements(), out, team);
  // One map for each axis of x; the axes of the index are one in the output.
  IndexMaps maps;
  for (int at = 0; at < x.rank(); ++at) {
    if (at == axis) {
      maps.push_back(places);
      continue;
    }
    maps.emplace_back(static_cast<std::size_t>(x.dim(at)));
    for (std::int64_t i = 0; i < x.dim(at); ++i) maps.back()[static_cast<std::size_t>(i)] = i;
  }
  mapped_copy(x, maps, nullptr, out, team);
}

void gather_planes(const Tensor& x, const Tensor& rows, const Tensor& columns, const Tensor& out, ThreadTeam& team) {
  const int rank = x.rank();
  const std::vector<std::int64_t> down = checked_places("gather_planes", rows, rank - 2, x.dims());
  const std::vector<std::int64_t> along = checked_places("gather_planes", columns, rank - 1, x.dims());
  if (out.elements() == 0) return;
  const std::int64_t height = std::ssize(down), width = std::ssize(along), extent = x.dim(rank - 1), lines = x.dim(rank - 2);
  const std::int64_t planes = out.elements() / (height * width), repeats = repeats_of(along);
  const bool one_run = runs_of(along) == 1, all = repeats > 1 && along.front() == 0 && width == repeats * extent;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U* const from = static_cast<const U*>(x.raw());
    U* const to = static_cast<U*>(out.raw_mutable());
    const auto copy = [&](const U* source, U* target) { std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(U)); };
    // The lines of small planes are spread together, in memory that stays in the first cache, since a call for a short line takes longer than its elements.
    constexpr std::int64_t room_bytes = 16384, long_line = 256;
    const std::int64_t spread = lines * width * std::int64_t{sizeof(U)}, together = std::max<std::int64_t>(1, room_bytes / spread);
    if (all && width * std::int64_t{sizeof(U)} < long_line && spread <= room_bytes) {
      team.parallel(planes, std::max<std::int64_t>(together, grain_light / (height * width)), [&](std::int64_t begin, std::int64_t end) {
        alignas(64) std::byte bytes[room_bytes];
        U* const room = reinterpret_cast<U*>(bytes);
        for (std::int64_t plane = begin; plane < end; plane += together) {
          const std::int64_t some = std::min(together, end - plane);
          repeat_each(from + plane * lines * extent, room, repeats, 0, some * lines * width);
          U* target = to + plane * height * width;
          for (std::int64_t i = 0; i < some; ++i)
            for (const std::int64_t line : down) {
              copy(room + (i * lines + line) * width, target);
              target += width;
            }
        }
      });
      return;
    }
    team.parallel(planes * height, std::max<std::int64_t>(1, grain_light / width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t line = row % height, place = down[static_cast<std::size_t>(line)];
        U* const target = to + row * width;
        const U* const source = from + (row / height * lines + place) * extent;
        if (row > begin && line > 0 && down[static_cast<std::size_t>(line - 1)] == place)
          copy(target - width, target);
        else if (repeats > 1)
          repeat_each(source + along.front(), target, repeats, 0, width);
        else if (one_run)
          copy(source + along.front(), target);
        else
          pick_each(source, along.data(), width, target);
      }
    });
  });
}

void gather_elements(const Tensor& x, const Tensor& index, int axis, const Tensor& out, ThreadTeam& team) {
  const std::vector<std::int64_t> places = checked_places("gather_elements", index, axis, x.dims());
  DDim strides = x.strides();
  const std::int64_t place_step = strides[axis];
  strides[axis] = 0;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    const StridedLoop<2> loop(out.dims(), {&strides, &out.strides()});
    const std::int64_t from_step = loop.inner()[0];
    loop.parallel(team, grain_light, [&](const auto& offsets, std::int64_t count) {
      const U* row = from + offsets[0];
      const std::int64_t* named = places.data() + offsets[1];
      for (std::int64_t i = 0; i < count; ++i) to[offsets[1] + i] = row[i * from_step + named[i] * place_step];
    });
  });
}

void check_row_index(const char* op, const std::vector<std::int64_t>& index, const DDim& dims) {
  const std::int64_t rows = dims[0];
  for (const std::int64_t row : index)
    if (row < -1 || row >= rows)
      throw IndexError(std::string(op) + ": expected -1 or a row of " + dims.to_string() + ", found " + std::to_string(row));
}

void gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const RowCopy<U> copy_row(x, out);
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    const std::int64_t from_stride = x.strides()[0], to_stride = out.strides()[0];
    const std::int64_t elements = copy_row.loop.count();
    const bool dense = copy_row.side_by_side && from_stride == elements && to_stride == elements;
    team.parallel(out.dim(0), rows_grain(elements), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = index[static_cast<std::size_t>(i)];
        U* target = to + i * to_stride;
        if (row < 0) {
          copy_row.zero(target);
          continue;
        }
        // Rows of one iteration that stay together are one run of memory.
        std::int64_t count = 1;
        while (dense && i + count < end && index[static_cast<std::size_t>(i + count)] == row + count) ++count;
        if (count == 1) {
          copy_row(from + row * from_stride, target);
          continue;
        }
        std::memcpy(target, from + row * from_stride, static_cast<std::size_t>(count * elements) * sizeof(U));
        i += count - 1;
      }
    });
  });
}

void gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const RowCopy<U> copy_row(x, out);
    const RowCopy<U> copy_other(otherwise.dims(), otherwise.strides(), out.strides().erased(0));
    const U* from = static_cast<const U*>(x.raw());
    const U* other = static_cast<const U*>(otherwise.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    team.parallel(out.dim(0), rows_grain(copy_row.loop.count()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = index[static_cast<std::size_t>(i)];
        U* target = to + i * out.strides()[0];
        row < 0 ? copy_other(other, target) : copy_row(from + row * x.strides()[0], target);
      }
    });
  });
}

void scatter_rows(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& out, ThreadTeam& team) {
  (void)team;  // two entries may name one row: the later one wins only in order
  if (x.elements() == 0) return;
  visit_size(x.dtype(), [&](auto type) {
    using U = typename decltype(type)::type;
    const RowCopy<U> copy_row(x, out);
    const U* from = static_cast<const U*>(x.raw());
    U* to = static_cast<U*>(out.raw_mutable());
    for (std::size_t i = 0; i < index.size(); ++i)
      if (index[i] >= 0) copy_row(from + static_cast<std::int64_t>(i) * x.strides()[0], to + index[i] * out.strides()[0]);
  });
}

}  // namespace millrace::cpu
