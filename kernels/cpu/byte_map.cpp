// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/byte_map.h>

#include <cstdint>

#include <millrace/kernels/cpu/strided_loop.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::cpu {
namespace {

using Map = void (*)(const std::uint8_t* table, const std::uint8_t* from, std::int64_t count, std::uint8_t* to);

void map_each(const std::uint8_t* table, const std::uint8_t* from, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = table[from[i]];
}

#if defined(__x86_64__)
/// Two permutations of 128 bytes each; the sign bit of an index chooses.
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) void map_vectors(const std::uint8_t* table, const std::uint8_t* from,
                                                                        std::int64_t count, std::uint8_t* to) {
  const __m512i parts[4] = {_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64), _mm512_loadu_si512(table + 128),
                            _mm512_loadu_si512(table + 192)};
  std::int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i at = _mm512_loadu_si512(from + i);
    const __m512i low = _mm512_permutex2var_epi8(parts[0], at, parts[1]), high = _mm512_permutex2var_epi8(parts[2], at, parts[3]);
    _mm512_storeu_si512(to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high));
  }
  map_each(table, from + i, count - i, to + i);
}
#endif

Map best_map() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi")) return map_vectors;
#endif
  return map_each;
}

}  // namespace

void map_bytes(const Tensor& table, const Tensor& x, const Tensor& out, ThreadTeam& team) {
  static const Map map = best_map();
  const auto* const from = static_cast<const std::uint8_t*>(x.raw());
  auto* const to = static_cast<std::uint8_t*>(out.raw_mutable());
  team.parallel(x.elements(), 4 * grain_light, [&](std::int64_t begin, std::int64_t end) {
    map(static_cast<const std::uint8_t*>(table.raw()), from + begin, end - begin, to + begin);
  });
}

}  // namespace millrace::cpu
