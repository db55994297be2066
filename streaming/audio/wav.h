// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/streaming/protocol/audio_format.h>

namespace millrace {

/// A sound file in memory, as a client would send it.
struct AudioFile {
  AudioFormat format;            ///< s16 for files of 16-bit samples or fewer, f32 otherwise
  std::vector<std::byte> bytes;  ///< interleaved, little-endian

  std::size_t frames() const { return bytes.size() / format.frame_bytes(); }
  double seconds() const { return static_cast<double>(frames()) / format.rate; }
};

/// Reads a WAV file through libsndfile. IoError when it is no regular file, cannot be read, or is above 1 GiB; ParseError, one line that
/// names the file, when it is no WAV file, is cut short of the samples that its header promises, has no samples' format that AudioFormat
/// can hold, or samples above 1 GiB. UnsupportedError without the part sndfile.
AudioFile read_wav(const std::string& path);
/// Reads the bytes of a WAV file; errors mention `name`.
AudioFile parse_wav(std::string_view bytes, const std::string& name);

}  // namespace millrace
