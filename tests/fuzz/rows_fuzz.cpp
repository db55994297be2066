// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <millrace/streaming/audio/audio_front_end.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/streaming/protocol/row_assembler.h>

namespace {

void drain(millrace::RowSource& source, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t taken = source.feed(bytes);
    if (taken == 0 && source.rows() == 0) std::abort();  // nothing would ever move again
    bytes = bytes.subspan(taken);
    for (std::size_t k = 0; k < source.rows(); ++k)
      if (source.row(k).size() != source.row_bytes()) std::abort();
    source.pop(source.rows());
  }
  source.end();
}

}  // namespace

// Four bytes choose a source; the rest is what a client sends.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const auto rest = std::as_bytes(std::span<const std::uint8_t>(data + 4, size - 4));
  try {
    millrace::parse_binary_result(rest);
  } catch (const millrace::ProtocolError&) {
  }
  try {
    const millrace::Message message = millrace::binary_message({reinterpret_cast<const char*>(rest.data()), rest.size()});
    const auto view = millrace::parse_data(message, data[0] % 2 == 0);
    if (data[1] % 2 == 0) {
      millrace::RowAssembler rows("x", static_cast<millrace::DType>(data[2] % 9), millrace::DDim{1 + data[3] % 7}, 64);
      drain(rows, view.bytes);
    } else {
      millrace::AudioConfig config;
      config.window = 1 + data[2] % 32;
      config.hop = 1 + data[2] / 8;
      config.context = data[3] % 16;
      millrace::AudioFormat format;
      format.format = data[3] % 2 == 0 ? millrace::SampleFormat::s16 : millrace::SampleFormat::f32;
      format.channels = 1 + data[3] / 32;
      millrace::AudioFrontEnd front(config, format, 64);
      drain(front, view.bytes);
    }
  } catch (const millrace::ProtocolError&) {
  }
  return 0;
}
