// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/wav.h>

#include <sndfile.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 30;

std::uint32_t u32_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

constexpr std::size_t riff_bytes = 12;

void check_riff(std::string_view bytes, const std::string& name) {
  if (bytes.size() < riff_bytes || bytes.substr(0, 4) != "RIFF" || bytes.substr(8, 4) != "WAVE")
    throw ParseError(name + ": expected a WAV file (RIFF, WAVE), found something else");
}

// libsndfile reads a file that was cut without a word: the chunks are walked here to see whether the samples are all there.
void check_chunks(std::string_view bytes, const std::string& name) {
  check_riff(bytes, name);
  constexpr std::uint32_t unknown = 0xffffffff;  // what writers to a pipe leave behind
  for (std::size_t at = riff_bytes; at + 8 <= bytes.size();) {
    const std::uint32_t size = u32_at(bytes, at + 4);
    const std::size_t left = bytes.size() - at - 8;
    const bool data = bytes.substr(at, 4) == "data";
    if (data && size == unknown) return;
    if (size > left)
      throw ParseError(name + ": expected " + std::to_string(size) + " bytes in the chunk at byte " + std::to_string(at) + ", found " +
                       std::to_string(left) + ": the file was cut");
    if (data) return;
    at += 8 + std::size_t{size} + (size & 1);
  }
  throw ParseError(name + ": expected a data chunk, found none: the file was cut");
}

/// The bytes as a file, for libsndfile.
struct Reader {
  std::string_view bytes;
  std::size_t at = 0;

  static sf_count_t length(void* self) { return static_cast<sf_count_t>(static_cast<Reader*>(self)->bytes.size()); }
  static sf_count_t tell(void* self) { return static_cast<sf_count_t>(static_cast<Reader*>(self)->at); }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
  static sf_count_t seek(sf_count_t offset, int whence, void* self) {
    Reader& reader = *static_cast<Reader*>(self);
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? tell(self) : length(self);
    sf_count_t to = 0;
    if (__builtin_add_overflow(base, offset, &to) || to < 0) return -1;
    reader.at = static_cast<std::size_t>(std::min(to, length(self)));
    return tell(self);
  }
  static sf_count_t read(void* into, sf_count_t count, void* self) {
    Reader& reader = *static_cast<Reader*>(self);
    const std::size_t part = std::min(static_cast<std::size_t>(std::max<sf_count_t>(count, 0)), reader.bytes.size() - reader.at);
    std::memcpy(into, reader.bytes.data() + reader.at, part);
    reader.at += part;
    return static_cast<sf_count_t>(part);
  }
};

struct CloseSound {
  void operator()(SNDFILE* file) const noexcept { sf_close(file); }
};
using Sound = std::unique_ptr<SNDFILE, CloseSound>;

AudioFormat format_of(const SF_INFO& info, const std::string& name) {
  if ((info.format & SF_FORMAT_TYPEMASK) != SF_FORMAT_WAV && (info.format & SF_FORMAT_TYPEMASK) != SF_FORMAT_WAVEX)
    throw ParseError(name + ": expected a WAV file, found another format");
  if (info.channels < 1 || info.channels > AudioFormat::max_channels)
    throw ParseError(name + ": expected 1 to " + std::to_string(AudioFormat::max_channels) + " channels, found " +
                     std::to_string(info.channels));
  if (info.samplerate < AudioFormat::min_rate || info.samplerate > AudioFormat::max_rate)
    throw ParseError(name + ": expected a rate from " + std::to_string(AudioFormat::min_rate) + " to " +
                     std::to_string(AudioFormat::max_rate) + " Hz, found " + std::to_string(info.samplerate));
  AudioFormat format;
  format.rate = info.samplerate;
  format.channels = info.channels;
  const int samples = info.format & SF_FORMAT_SUBMASK;
  const bool wide = samples == SF_FORMAT_PCM_24 || samples == SF_FORMAT_PCM_32 || samples == SF_FORMAT_FLOAT || samples == SF_FORMAT_DOUBLE;
  format.format = wide ? SampleFormat::f32 : SampleFormat::s16;
  return format;
}

// Piece by piece, so that memory follows the samples that are there and not the number that a header names.
template <class T>
void read_samples(SNDFILE* file, sf_count_t (*read)(SNDFILE*, T*, sf_count_t), AudioFile& sound, const std::string& name) {
  std::array<T, 8192> piece;
  const auto frames = static_cast<sf_count_t>(piece.size()) / sound.format.channels;
  while (const sf_count_t got = read(file, piece.data(), frames)) {
    const std::size_t bytes = static_cast<std::size_t>(got) * sound.format.frame_bytes();
    if (got < 0 || sound.bytes.size() + bytes > most_bytes) throw ParseError(name + ": expected at most 1 GiB of samples, found more");
    const auto* from = reinterpret_cast<const std::byte*>(piece.data());
    sound.bytes.insert(sound.bytes.end(), from, from + bytes);
  }
}

}  // namespace

AudioFile parse_wav(std::string_view bytes, const std::string& name) {
  check_chunks(bytes, name);
  SF_VIRTUAL_IO io{Reader::length, Reader::seek, Reader::read, Reader::write, Reader::tell};
  Reader reader{bytes};
  SF_INFO info{};
  const Sound file(sf_open_virtual(&io, SFM_READ, &info, &reader));
  if (!file) throw ParseError(name + ": expected a WAV file that libsndfile reads, found: " + sf_strerror(nullptr));
  AudioFile sound;
  sound.format = format_of(info, name);
  if (sound.format.format == SampleFormat::s16)
    read_samples<short>(file.get(), sf_readf_short, sound, name);
  else
    read_samples<float>(file.get(), sf_readf_float, sound, name);
  if (sf_error(file.get()) != SF_ERR_NO_ERROR) throw ParseError(name + ": " + sf_strerror(file.get()));
  if (static_cast<sf_count_t>(sound.frames()) < info.frames)
    throw ParseError(name + ": expected " + std::to_string(info.frames) + " samples, found " + std::to_string(sound.frames()) +
                     ": the file was cut");
  return sound;
}

AudioFile read_wav(const std::string& path) {
  check_riff(read_file_start(path, riff_bytes).bytes, path);
  return parse_wav(read_file(path, most_bytes), path);
}

}  // namespace millrace
