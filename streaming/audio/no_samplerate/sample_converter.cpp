// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/audio/sample_converter.h>

#include <string>

#include <millrace/tensor/error.h>

namespace millrace {

std::unique_ptr<SampleConverter> make_sample_converter(int from_rate, int to_rate, ResampleQuality) {
  throw UnsupportedError("audio: from " + std::to_string(from_rate) + " to " + std::to_string(to_rate) +
                         " Hz: this build has no resampler: configure with MILLRACE_SAMPLERATE=ON (Debian package libsamplerate0-dev)");
}

}  // namespace millrace
