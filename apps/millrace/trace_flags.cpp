// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <millrace/runtime/trace/nvtx.h>
#include <support/standard_streams.h>

#include "commands.h"
#include "model_flags.h"

namespace millrace::app {

void TraceFlags::add_to(CLI::App& command, const std::string& shown) {
  command.add_option("--trace", file, "Writes what ran when, for chrome://tracing or Perfetto; whole when the command ends");
  command.add_option("--trace-limit", most_bytes, "Bytes of that file from which on events are counted, not written: 300M, 2G")
      ->transform(CLI::AsSizeValue(false))
      ->check(bytes_above_zero())
      ->default_str("1G");
  command.add_flag("--nvtx", nvtx, fmt::format("Shows {} to NVIDIA's profilers, as ranges of NVTX", shown));
}

TracerOptions TraceFlags::options(const std::string& ending) const {
  TracerOptions options;
  options.record = !file.empty();
  if (options.record) options.file = file + ending;
  options.most_bytes = most_bytes;
  if (nvtx) options.ranges = make_nvtx_ranges();
  return options;
}

void TraceFlags::finish(Tracer& tracer) const {
  if (file.empty()) return;
  const std::uint64_t left_out = tracer.finish();
  if (left_out > 0)
    complain("millrace", fmt::format("--trace {}: {} events had no room in {} bytes: see --trace-limit", file, left_out, most_bytes));
}

}  // namespace millrace::app
