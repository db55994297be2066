// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class SampleFormat : std::uint8_t { s16, f32 };

/// The form in which a client sends audio: interleaved little-endian samples. s16 is scaled by 1/32768, f32 is taken as it is.
struct AudioFormat {
  SampleFormat format = SampleFormat::s16;
  int rate = 16000;  ///< Hz, 4,000…192,000
  int channels = 1;  ///< 1…8, averaged

  static constexpr int min_rate = 4000;
  static constexpr int max_rate = 192000;
  static constexpr int max_channels = 8;

  std::size_t sample_bytes() const { return format == SampleFormat::s16 ? 2 : 4; }
  std::size_t frame_bytes() const { return sample_bytes() * static_cast<std::size_t>(channels); }
  friend bool operator==(const AudioFormat&, const AudioFormat&) = default;
};

/// "s16", "f32".
constexpr std::string_view name_of(SampleFormat format) { return format == SampleFormat::s16 ? "s16" : "f32"; }
constexpr std::optional<SampleFormat> sample_format_named(std::string_view name) {
  if (name == "s16") return SampleFormat::s16;
  if (name == "f32") return SampleFormat::f32;
  return std::nullopt;
}

}  // namespace millrace
