// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/wav.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

[[noreturn]] void absent(const std::string& name) {
  throw UnsupportedError(name + ": this build reads no sound files: configure with MILLRACE_SNDFILE=ON (Debian package libsndfile1-dev)");
}

}  // namespace

AudioFile read_wav(const std::string& path) { absent(path); }
AudioFile parse_wav(std::string_view, const std::string& name) { absent(name); }

}  // namespace millrace
