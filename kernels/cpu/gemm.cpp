// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/gemm.h>

#include <algorithm>

#include <millrace/kernels/cpu/spans.h>

namespace millrace::cpu {
namespace {

/// Packed operands up to this size stay on the stack.
constexpr std::int64_t stack_bytes = 8192;
constexpr std::int64_t line_bytes = 64;
/// The number of rows up to which a product reads each panel once, and gains nothing from a panel that stays near.
constexpr std::int64_t few_rows = 2;

template <class T>
struct Views {
  std::int64_t m, n, k;
  const T* a;
  std::int64_t a_row, a_column;
  const T* b;
  std::int64_t b_row, b_column;
  T* c;
  std::int64_t c_row, c_column;

  Views(const Tensor& left, const Tensor& right, const Tensor& out)
      : m(left.dim(0)),
        n(right.dim(1)),
        k(left.dim(1)),
        a(static_cast<const T*>(left.raw())),
        a_row(left.strides()[0]),
        a_column(left.strides()[1]),
        b(static_cast<const T*>(right.raw())),
        b_row(right.strides()[0]),
        b_column(right.strides()[1]),
        c(static_cast<T*>(out.raw_mutable())),
        c_row(out.strides()[0]),
        c_column(out.strides()[1]) {}
};

bool packs_a(const Tensor& a) { return a.dim(1) > 1 && a.strides()[1] != 1; }
/// Whether vectors of this machine are whole lines of a cache.
template <class T>
bool vectors_are_lines() {
  return gemm_kernels().lanes<T>() * static_cast<std::int64_t>(sizeof(T)) == line_bytes;
}

/// The most rows of a for which b is read where it lies; for more, packing b costs less than it saves. Every few rows of a read all of b once more.
/// Vectors of whole lines take so many rows at a time that any cache keeps up, unless rows of b begin at one place of their pages: these share few places
/// of the second cache. Narrower vectors need b in the second cache, where rows at a distance of many lines share few places.
template <class T>
std::int64_t rows_in_place(const Tensor& b) {
  constexpr std::int64_t apart = 8, page_bytes = 4096, few_k = 256;
  const std::int64_t stride = b.strides()[0] * static_cast<std::int64_t>(sizeof(T));
  if (vectors_are_lines<T>()) return stride % page_bytes != 0 ? 256 : std::min(b.dim(0), k_block) > few_k ? 31 : 95;
  return stride % (apart * line_bytes) == 0 ? 24 : 128;
}

template <class T>
bool packs_b(const Tensor& a, const Tensor& b) {
  const bool repeats = b.dim(0) > 1 && b.strides()[0] == 0;  // a call takes a stride of 0 as a packed panel
  return repeats || (b.dim(1) > 1 && b.strides()[1] != 1) || a.dim(0) > rows_in_place<T>(b);
}

/// Elements from one row of a to the next where they lie side by side: an odd number of cache lines. Rows whose distance is a power of two would share
/// the same few places of the first cache.
template <class T>
std::int64_t turned_stride(std::int64_t k) {
  constexpr auto line = static_cast<std::int64_t>(line_bytes / sizeof(T));
  return ((k + line - 1) / line | 1) * line;
}

template <class T>
std::int64_t packed_bytes(const Tensor& a, const Tensor& b) {
  const PackedLayout layout = layout_for<T>(gemm_kernels(), b.dim(0), b.dim(1));
  return (layout.elements() + (packs_a(a) ? a.dim(0) * turned_stride<T>(a.dim(1)) : 0)) * static_cast<std::int64_t>(sizeof(T));
}

/// Runs panels of `call` for all rows of `views`; `call` says where b is.
template <class T>
void run_rows(const GemmKernels& kernels, const Views<T>& views, MatrixCall<T> call, std::int64_t first, std::int64_t panels,
              ThreadTeam& team) {
  const std::int64_t work = kernels.panel * kernels.lanes<T>() * views.k;
  each_span(team, views.m, max_rows, panels, work, [&](std::int64_t row, std::int64_t rows, std::int64_t from, std::int64_t to) {
    const T* a[max_rows];
    T* out[max_rows];
    for (std::int64_t i = 0; i < rows; ++i) {
      a[i] = views.a + (row + i) * views.a_row;
      out[i] = views.c + (row + i) * views.c_row;
    }
    MatrixCall<T> part = call;
    part.a = a;
    part.out = out;
    part.rows = rows;
    part.first_panel = first + from;
    part.last_panel = first + to;
    kernels.run(part);
  });
}

/// Fetches `width` columns from `column` on of rows [first, last) of b into the caches.
template <class T>
void fetch_ahead(const Views<T>& views, std::int64_t column, std::int64_t width, std::int64_t first, std::int64_t last) {
  constexpr auto line = static_cast<std::int64_t>(line_bytes / sizeof(T));
  for (std::int64_t k = first; k < last; ++k)
    for (std::int64_t i = 0; i < width; i += line) __builtin_prefetch(views.b + k * views.b_row + column + i);
}

/// All rows by one panel after another, each packed where the one before lay: it is still in the second cache when rows read it. In one thread. Rows
/// of b lie far apart, so the rows of the next panel are fetched while this one is multiplied, unless vectors are so wide that the fetches delay them.
template <class T>
void run_panels(const GemmKernels& kernels, const Views<T>& views, const PackedLayout& layout, MatrixCall<T> call, T* scratch) {
  const T* a[max_rows];
  T* out[max_rows];
  call.a = a;
  call.out = out;
  call.b = scratch;
  call.b_stride = 0;
  call.first_panel = 0;
  // Panels that are packed together: few rows multiply eight vectors of columns at a time, and four vectors are two lines of a row of b, side by side.
  const std::int64_t together = (views.m <= few_rows ? 8 : 4) / layout.panel, step = together * layout.width();
  constexpr std::int64_t rows_at_once = 6;
  const bool fetches = !vectors_are_lines<T>() && views.b_column == 1 && views.k >= 64 && views.m >= 2 * rows_at_once;
  const std::int64_t most = fetches ? rows_at_once : max_rows;
  for (std::int64_t column = 0; column < layout.columns; column += step) {
    const PackedLayout some = layout_for<T>(kernels, layout.k, std::min(step, layout.columns - column));
    pack_panels(some, views.b + column * views.b_column, views.b_row, views.b_column, 0, some.panels(), scratch);
    call.panel_stride = some.panel_stride();
    call.columns = some.columns;
    call.last_panel = some.panels();
    for (std::int64_t row = 0; row < views.m; row += most) {
      call.rows = std::min(most, views.m - row);
      for (std::int64_t i = 0; i < call.rows; ++i) {
        a[i] = views.a + (row + i) * views.a_row;
        out[i] = views.c + (row + i) * views.c_row + column * views.c_column;
      }
      if (fetches && column + step < layout.columns)
        fetch_ahead(views, column + step, std::min(step, views.n - column - step), row * views.k / views.m,
                    (row + call.rows) * views.k / views.m);
      kernels.run(call);
    }
  }
}

/// The rows of a side by side, by tiles: both their columns in a and their rows here stay in the first cache, however far apart they lie.
template <class T>
void turn(const Views<T>& views, T* rows, std::int64_t stride, ThreadTeam& team) {
  constexpr std::int64_t tile = 16, elements_a_task = 32768;
  const std::int64_t strips = (views.m + tile - 1) / tile;
  team.parallel(strips, std::max<std::int64_t>(1, elements_a_task / (tile * views.k)), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t past = std::min(views.m, end * tile);
    if (views.a_row == 1) {
      // Few columns of all rows at a time: a is read from its first element to its last.
      const std::int64_t first = begin * tile;
      for (std::int64_t k = 0; k < views.k; k += tile)
        transpose_rows(bits_of(views.a + first + k * views.a_column), views.a_column, bits_of(rows + first * stride + k), stride,
                       past - first, std::min(tile, views.k - k));
      return;
    }
    for (std::int64_t first = begin * tile; first < past; first += tile) {
      const std::int64_t last = std::min(views.m, first + tile);
      for (std::int64_t k = 0; k < views.k; k += tile) {
        const std::int64_t count = std::min(tile, views.k - k);
        for (std::int64_t row = first; row < last; ++row) {
          const T* from = views.a + row * views.a_row + k * views.a_column;
          T* to = rows + row * stride + k;
          for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * views.a_column];
        }
      }
    }
  });
}

/// c = alpha·a·b + beta·c for all k of `views`. `turns_a`: the rows of a are laid side by side first; `packs`: so are the panels of b.
template <class T>
void gemm_block(const GemmKernels& kernels, Views<T> views, MatrixCall<T> call, bool turns_a, bool packs, T* scratch, ThreadTeam& team) {
  const PackedLayout layout = layout_for<T>(kernels, views.k, views.n);
  if (turns_a) {
    T* rows = scratch + layout.elements();
    const std::int64_t stride = turned_stride<T>(views.k);
    turn(views, rows, stride, team);
    views.a = rows;
    views.a_row = stride;
    views.a_column = 1;
  }
  call.k = views.k;
  // Where columns are whole vectors, all panels are read where they lie: no vector reaches behind its row of b.
  const bool whole = views.n % layout.lanes == 0;
  const std::int64_t direct = packs ? 0 : whole ? layout.panels() : views.n / layout.width();
  if (direct > 0) {
    call.b = views.b;
    call.b_stride = views.b_row;
    call.panel_stride = layout.width();
    run_rows(kernels, views, call, 0, direct, team);
  }
  if (direct == layout.panels()) return;
  if (direct == 0 && team.size() == 1) return run_panels(kernels, views, layout, call, scratch);
  team.parallel(layout.panels() - direct, 1, [&](std::int64_t first, std::int64_t last) {
    pack_panels(layout, views.b, views.b_row, views.b_column, direct + first, direct + last, scratch);
  });
  call.b = scratch;
  call.b_stride = 0;
  call.panel_stride = layout.panel_stride();
  run_rows(kernels, views, call, direct, layout.panels() - direct, team);
}

/// A product of many k takes one block of the chain (gemm.h) after the other, each for all rows and columns: a panel of more k would leave the second
/// cache before the next rows read it. Later blocks are added to c, which is the order of the chain.
template <class T>
void gemm_floats(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, T* scratch, ThreadTeam& team) {
  const GemmKernels& kernels = gemm_kernels();
  const Views<T> views(a, b, c);
  alignas(64) T small[stack_bytes / sizeof(T)];
  if (packed_bytes<T>(a, b) <= stack_bytes) scratch = small;
  MatrixCall<T> call;
  call.columns = views.n;
  call.alpha = static_cast<T>(alpha);
  call.beta = static_cast<T>(beta);
  call.column_stride = views.c_column;
  const bool in_blocks = alpha == 1 && beta == 0 && views.m > few_rows;
  const std::int64_t block = in_blocks ? k_block : std::max<std::int64_t>(1, views.k);
  std::int64_t first = 0;
  do {
    Views<T> part = views;
    part.k = std::min(block, views.k - first);
    part.a += first * views.a_column;
    part.b += first * views.b_row;
    if (first > 0) call.beta = T{1};
    gemm_block(kernels, part, call, packs_a(a), packs_b<T>(a, b), scratch, team);
    first += block;
  } while (first < views.k);
}

/// Wrapping arithmetic in 64 bits gives the low bits of any sum of products.
template <class T, class Out>
void gemm_integers(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, ThreadTeam& team) {
  const auto* left = static_cast<const T*>(a.raw());
  const auto* right = static_cast<const T*>(b.raw());
  auto* out = static_cast<Out*>(c.raw_mutable());
  const auto scale = static_cast<std::uint64_t>(static_cast<std::int64_t>(alpha));
  const auto keep = static_cast<std::uint64_t>(static_cast<std::int64_t>(beta));
  const std::int64_t n = b.dim(1);
  const std::int64_t k = a.dim(1);
  team.parallel(a.dim(0), std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, n * k)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        std::uint64_t sum = 0;
        for (std::int64_t at = 0; at < k; ++at)
          sum += static_cast<std::uint64_t>(left[i * a.strides()[0] + at * a.strides()[1]]) *
                 static_cast<std::uint64_t>(right[at * b.strides()[0] + j * b.strides()[1]]);
        Out& to = out[i * c.strides()[0] + j * c.strides()[1]];
        sum *= scale;
        if (beta != 0) sum += keep * static_cast<std::uint64_t>(to);
        to = static_cast<Out>(sum);
      }
    }
  });
}

template <class T>
void packed_floats(const GemmKernels& kernels, const PackedLayout& layout, const PackedProduct<T>& product, ThreadTeam& team) {
  const std::int64_t work = layout.panel_stride();
  each_span(team, product.rows, max_rows, layout.panels(), work,
            [&](std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last) {
              const T* a[max_rows];
              T* out[max_rows];
              for (std::int64_t i = 0; i < rows; ++i) {
                a[i] = product.a + (row + i) * product.a_row;
                out[i] = product.out + (row + i) * product.out_row;
              }
              MatrixCall<T> call;
              call.a = a;
              call.out = out;
              call.rows = rows;
              call.k = layout.k;
              call.b = product.packed;
              call.pairs = product.pairs;
              call.panel_stride = layout.panel_stride();
              call.columns = layout.columns;
              call.first_panel = first;
              call.last_panel = last;
              call.bias = product.bias;
              kernels.run(call);
            });
}

}  // namespace

std::int64_t gemm_scratch_bytes(const Tensor& a, const Tensor& b) {
  if (!is_floating(a.dtype())) return 0;
  const std::int64_t bytes = a.dtype() == DType::f32 ? packed_bytes<float>(a, b) : packed_bytes<double>(a, b);
  return bytes <= stack_bytes ? 0 : bytes;
}

void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c, const Tensor& scratch, ThreadTeam& team) {
  if (c.elements() == 0) return;
  switch (a.dtype()) {
    case DType::f32: return gemm_floats(alpha, a, b, beta, c, static_cast<float*>(scratch.raw_mutable()), team);
    case DType::f64: return gemm_floats(alpha, a, b, beta, c, static_cast<double*>(scratch.raw_mutable()), team);
    case DType::i64: return gemm_integers<std::int64_t, std::int64_t>(alpha, a, b, beta, c, team);
    case DType::i32: return gemm_integers<std::int32_t, std::int32_t>(alpha, a, b, beta, c, team);
    case DType::i8: return gemm_integers<std::int8_t, std::int32_t>(alpha, a, b, beta, c, team);
    default: return gemm_integers<std::uint8_t, std::int32_t>(alpha, a, b, beta, c, team);
  }
}

void packed_gemm(const GemmKernels& kernels, const PackedLayout& layout, const PackedProduct<float>& product, ThreadTeam& team) {
  packed_floats(kernels, layout, product, team);
}
void packed_gemm(const GemmKernels& kernels, const PackedLayout& layout, const PackedProduct<double>& product, ThreadTeam& team) {
  packed_floats(kernels, layout, product, team);
}

}  // namespace millrace::cpu
