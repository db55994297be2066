// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <millrace/streaming/audio/audio_front_end.h>
#include <millrace/streaming/audio/segmenter.h>
#include <millrace/streaming/config/stream_config.h>

// A config that is taken must be one that a session can be made with.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::StreamConfig config;
  try {
    config = millrace::parse_stream_config({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const millrace::ParseError&) {
    return 0;
  }
  if (!config.audio) return 0;
  millrace::AudioFormat format;
  format.rate = config.audio->rate;
  millrace::AudioFrontEnd front(*config.audio, format);
  for (const auto& label : config.labels) millrace::Segmenter(label, config.audio->step_seconds());
  return 0;
}
