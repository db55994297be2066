// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <millrace/streaming/protocol/error_code.h>
#include <millrace/streaming/protocol/frame.h>

// The first byte says in what pieces the rest arrives. Frames that come out must encode to the bytes that went in.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] % 16;
  const auto all = std::as_bytes(std::span<const std::uint8_t>(data + 1, size - 1));
  millrace::FrameDecoder decoder(256);
  std::string encoded;
  std::size_t at = 0;
  try {
    while (at < all.size()) {
      at += decoder.feed(all.subspan(at, std::min(piece, all.size() - at)));
      if (const auto message = decoder.take()) encoded += millrace::encode_frame(*message);
    }
  } catch (const millrace::ProtocolError&) {
  }
  if (!std::equal(encoded.begin(), encoded.end(), reinterpret_cast<const char*>(data) + 1)) std::abort();
  return 0;
}
