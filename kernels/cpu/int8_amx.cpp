// SPDX-License-Identifier: Apache-2.0
// Products of bytes by AMX, in tiles of 16 rows of 64 bytes. Weights lie as those of VNNI do. The functions say themselves what they need, as in
// int8_vnni.cpp.
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/int8_store.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#define MILLRACE_AMX __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")))

namespace millrace::cpu {
namespace {

constexpr std::int64_t tile_rows = 16, tile_bytes = 64, tile_groups = tile_bytes / dot_group;
constexpr std::int64_t panel_row = dot_width * dot_group;  ///< bytes of a group of a panel
constexpr std::int64_t block_rows = 2 * tile_rows;
static_assert(gathered_units == block_rows && gathered_unit_rows == tile_rows && gathered_steps == tile_groups &&
              conv_places == dot_width && max_rows == 2 * block_rows);
/// With fewer rows most of a tile is empty, and products of vectors are as fast.
constexpr std::int64_t least_rows = 3;

/// Stores to this memory are done before the instructions of tiles that follow. g++ 12 does not know what these read, and leaves out stores that nothing
/// else reads.
inline void finish_stores(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

/// The operand of ldtilecfg.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Tiles 0 to 3 are sums of two times two tiles, 4 and 5 rows of the left matrix, 6 and 7 sixteen groups of the right one. Without `lower` rows tiles 2, 3
/// and 5 are not used.
MILLRACE_AMX void shape_tiles(std::int64_t upper, std::int64_t lower) {
  TileShapes shapes;
  const auto shape = [&](int tile, std::int64_t rows) {
    shapes.bytes[tile] = tile_bytes;
    shapes.rows[tile] = static_cast<std::uint8_t>(rows);
  };
  for (const int tile : {0, 1, 4}) shape(tile, upper);
  if (lower > 0)
    for (const int tile : {2, 3, 5}) shape(tile, lower);
  for (const int tile : {6, 7}) shape(tile, tile_groups);
  finish_stores(&shapes);
  _tile_loadconfig(&shapes);
}

/// The matrices whose elements have a sign.
enum class Signs : std::uint8_t { left, right, both };

// The instructions name their tiles, which no template can.
#define MILLRACE_MULTIPLY_TILES(SUM, LEFT, RIGHT) \
  if constexpr (signs == Signs::left)             \
    _tile_dpbsud(SUM, LEFT, RIGHT);               \
  else if constexpr (signs == Signs::right)       \
    _tile_dpbusd(SUM, LEFT, RIGHT);               \
  else                                            \
    _tile_dpbssd(SUM, LEFT, RIGHT)

/// Adds the products of 64 bytes of each row with sixteen groups of 32 columns, or of 16 that are not `Wide`. The lower rows of the left matrix begin at `lower`.
template <Signs signs, bool Lower, bool Wide>
MILLRACE_AMX inline void add_products(const std::uint8_t* left, const std::uint8_t* lower, std::int64_t left_stride,
                                      const std::uint8_t* right, std::int64_t right_stride) {
  _tile_loadd(6, right, right_stride);
  _tile_loadd(4, left, left_stride);
  MILLRACE_MULTIPLY_TILES(0, 4, 6);
  if constexpr (Wide) {
    _tile_loadd(7, right + tile_bytes, right_stride);
    MILLRACE_MULTIPLY_TILES(1, 4, 7);
  }
  if constexpr (Lower) {
    _tile_loadd(5, lower, left_stride);
    MILLRACE_MULTIPLY_TILES(2, 5, 6);
    if constexpr (Wide) {
      MILLRACE_MULTIPLY_TILES(3, 5, 7);
    }
  }
}
template <Signs signs, bool Lower>
MILLRACE_AMX inline void add_products(const std::uint8_t* left, std::int64_t left_stride, const std::uint8_t* right) {
  add_products<signs, Lower, true>(left, left + tile_rows * left_stride, left_stride, right, panel_row);
}

#undef MILLRACE_MULTIPLY_TILES

template <bool Lower>
MILLRACE_AMX inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (Lower) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

/// `sums` [32][width], of which 32 columns are written.
template <bool Lower>
MILLRACE_AMX inline void store_tiles(std::int32_t* sums, std::int64_t width) {
  const std::int64_t stride = width * 4;
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + dot_lanes, stride);
  if constexpr (Lower) {
    _tile_stored(2, sums + tile_rows * width, stride);
    _tile_stored(3, sums + tile_rows * width + dot_lanes, stride);
  }
}

/// Up to 32 rows of a product.
class Block {
 public:
  Block(const Int8Call& call, std::int64_t first) : call_(call), first_(first), rows_(std::min(block_rows, call.rows - first)) {
    const std::uint8_t* const* a = call.a + first;
    stride_ = rows_ > 1 ? a[1] - a[0] : 0;
    for (std::int64_t row = 2; row < rows_ && even_; ++row) even_ = a[row] - a[row - 1] == stride_;
    if (call.k % tile_bytes != 0) stage(call.k / tile_bytes, last_);
  }

  std::int64_t rows() const { return rows_; }

  template <Signs signs>
  MILLRACE_AMX void run(std::int64_t panel, const std::uint8_t* right, const std::uint8_t* last_right) const {
    rows_ > tile_rows ? run_rows<signs, true>(panel, right, last_right) : run_rows<signs, false>(panel, right, last_right);
  }

 private:
  template <Signs signs, bool Lower>
  MILLRACE_AMX void run_rows(std::int64_t panel, const std::uint8_t* right, const std::uint8_t* last_right) const {
    alignas(64) std::int32_t sums[block_rows * dot_width];
    const std::int64_t left_columns = call_.columns - panel * dot_width, chunks = call_.k / tile_bytes;
    for (std::int64_t v = 0; v < panel_vectors && v * dot_lanes < left_columns; v += 2) {
      const std::int64_t side = v * tile_bytes;
      clear_sums<Lower>();
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::uint8_t* const b = right + chunk * tile_groups * panel_row + side;
        if (even_) {
          add_products<signs, Lower>(call_.a[first_] + chunk * tile_bytes, stride_, b);
        } else {
          alignas(64) std::uint8_t some[block_rows * tile_bytes];
          stage(chunk, some);
          add_products<signs, Lower>(some, tile_bytes, b);
        }
      }
      if (call_.k % tile_bytes != 0) add_products<signs, Lower>(last_, tile_bytes, last_right + side);
      store_tiles<Lower>(sums + v * dot_lanes, dot_width);
    }
    for (std::int64_t v = 0; v < panel_vectors && v * dot_lanes < left_columns; ++v) {
      const std::int64_t column = panel * dot_width + v * dot_lanes;
      const __m512i offset = _mm512_mullo_epi32(column_sums(call_, column), _mm512_set1_epi32(call_.zero));
      for (std::int64_t row = 0; row < rows_; ++row)
        store_sums(call_, first_ + row, column, _mm512_sub_epi32(_mm512_load_si512(sums + row * dot_width + v * dot_lanes), offset));
    }
  }

  /// 64 bytes of each row, zeros behind its end.
  void stage(std::int64_t chunk, std::uint8_t* to) const {
    const std::int64_t from = chunk * tile_bytes, count = std::min(tile_bytes, call_.k - from);
    for (std::int64_t row = 0; row < rows_; ++row, to += tile_bytes) {
      if (count < tile_bytes) std::memset(to, 0, tile_bytes);
      std::memcpy(to, call_.a[first_ + row] + from, static_cast<std::size_t>(count));
    }
    finish_stores(to);
  }

  const Int8Call& call_;
  std::int64_t first_, rows_, stride_;
  bool even_ = true;                                        ///< the rows lie `stride_` apart
  alignas(64) std::uint8_t last_[block_rows * tile_bytes];  ///< the last bytes of the rows, fewer than 64
};

template <Signs signs>
MILLRACE_AMX void multiply_rows(const Int8Call& call) {
  const std::int64_t chunks = call.k / tile_bytes, groups = (call.k + dot_group - 1) / dot_group;
  const std::int64_t left = groups - chunks * tile_groups;  // groups behind the last whole tile
  alignas(64) std::uint8_t last_right[tile_groups * panel_row];
  if (left > 0) std::memset(last_right + left * panel_row, 0, static_cast<std::size_t>((tile_groups - left) * panel_row));
  const auto* b = reinterpret_cast<const std::uint8_t*>(call.b);
  for (std::int64_t first = 0; first < call.rows; first += block_rows) {
    const Block block(call, first);
    // Shaping the tiles takes as long as many products.
    if (first == 0 || block.rows() < block_rows)
      shape_tiles(std::min(tile_rows, block.rows()), std::max<std::int64_t>(0, block.rows() - tile_rows));
    for (std::int64_t panel = call.first_panel; panel < call.last_panel; ++panel) {
      const std::uint8_t* const right = b + panel * groups * panel_row;
      if (left > 0) {
        std::memcpy(last_right, right + chunks * tile_groups * panel_row, static_cast<std::size_t>(left * panel_row));
        finish_stores(last_right);
      }
      block.run<signs>(panel, right, last_right);
    }
  }
  _tile_release();
}

MILLRACE_AMX void gather(const ConvBytesCall& call, std::uint8_t* to) {
  const std::int64_t row = gathered_row(call.places);
  for (std::int64_t step = 0; step < call.steps; ++step, to += row) {
    const std::uint8_t* const from = call.x + 4 * call.offsets[step];
    for (std::int64_t i = 0; i < row; i += tile_bytes) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
  }
  finish_stores(to);
}

/// Sums of 32 places from place 16·v on, or of 16 that are not `Wide`.
template <bool Lower, bool Wide>
MILLRACE_AMX void conv_columns(const ConvBytesCall& call, const std::int32_t* starts, std::int64_t v) {
  constexpr std::int64_t tile = tile_rows * tile_bytes;
  const std::int64_t row = gathered_row(call.places), stride = call.sums_stride * 4;
  const auto* const left = reinterpret_cast<const std::uint8_t*>(call.weights);
  const std::uint8_t *const lower = left + tile_rows * call.weights_stride, *const right = call.gathered + v * tile_bytes;
  std::int32_t* const sums = call.sums + v * dot_lanes;
  _tile_loadd(0, starts, tile_bytes);
  if constexpr (Wide) _tile_loadd(1, starts, tile_bytes);
  if constexpr (Lower) _tile_loadd(2, starts + tile_rows * dot_lanes, tile_bytes);
  if constexpr (Lower && Wide) _tile_loadd(3, starts + tile_rows * dot_lanes, tile_bytes);
  for (std::int64_t chunk = 0; chunk * tile_groups < call.steps; ++chunk)
    add_products<Signs::left, Lower, Wide>(left + chunk * tile, lower + chunk * tile, tile_bytes, right + chunk * tile_groups * row, row);
  _tile_stored(0, sums, stride);
  if constexpr (Wide) _tile_stored(1, sums + dot_lanes, stride);
  if constexpr (Lower) _tile_stored(2, sums + tile_rows * call.sums_stride, stride);
  if constexpr (Lower && Wide) _tile_stored(3, sums + tile_rows * call.sums_stride + dot_lanes, stride);
}

template <bool Lower>
MILLRACE_AMX void conv_tiles(const ConvBytesCall& call) {
  alignas(64) std::int32_t starts[(Lower ? block_rows : tile_rows) * dot_lanes] = {};
  for (std::int64_t unit = 0; unit < call.units; ++unit)
    _mm512_store_si512(starts + unit * dot_lanes, _mm512_set1_epi32(call.starts[unit]));
  finish_stores(starts);
  for (std::int64_t v = 0; v * dot_lanes < call.places; v += 2)
    call.places > (v + 1) * dot_lanes ? conv_columns<Lower, true>(call, starts, v) : conv_columns<Lower, false>(call, starts, v);
}

/// The system must be asked for the registers of tiles, once for a process.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned tile = 1u << 24, int8 = 1u << 25;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & (tile | int8)) != (tile | int8)) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

const Int8Kernels* vectors = nullptr;

void multiply(const Int8Call& call) {
  if (call.rows < least_rows) return vectors->multiply(call);
  call.has_sign ? multiply_rows<Signs::both>(call) : multiply_rows<Signs::right>(call);
}

void conv(const ConvBytesCall& call) {
  if (call.gathered == nullptr) return vectors->conv(call);
  call.units > tile_rows ? conv_tiles<true>(call) : conv_tiles<false>(call);
}

MILLRACE_AMX void open_tiles() { shape_tiles(tile_rows, tile_rows); }
MILLRACE_AMX void close_tiles() { _tile_release(); }

}  // namespace

const Int8Kernels* amx_kernels(const Int8Kernels& vnni) {
  if (!has_tiles()) return nullptr;
  static const Int8Kernels kernels = [&] {
    vectors = &vnni;
    Int8Kernels made = vnni;
    made.multiply = multiply;
    made.conv = conv;
    made.gathering = {gather, open_tiles, close_tiles};
    return made;
  }();
  return &kernels;
}

}  // namespace millrace::cpu

#else

namespace millrace::cpu {

const Int8Kernels* amx_kernels(const Int8Kernels&) { return nullptr; }

}  // namespace millrace::cpu

#endif
