// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <millrace/kernels/cpu/instruction_set.h>
#include <millrace/kernels/library_products.h>
#include <millrace/kernels/lstm_sequence.h>
#include <millrace/runtime/distributed/mpi.h>
#include <millrace/runtime/distributed/nccl.h>
#include <millrace/tensor/cuda_device.h>

#include "commands.h"

namespace millrace::app {
namespace {

/// Prints the limits of one device for kernels whose blocks meet.
void print_limits(int index) {
  CudaOptions options;
  options.index = index;
  const LstmLimits limits = lstm_limits(CudaPlace{index}, DType::f16);
  std::string clusters;
  for (const auto& [blocks, most] : limits.clusters) clusters += fmt::format(", {} clusters of {}", most, blocks);
  fmt::print("cuda:{}: {} bytes of shared memory a block, at once {} blocks that meet{}\n", index, limits.shared_bytes,
             limits.cooperative ? limits.multiprocessors : 0, clusters);
  fmt::print("cuda:{}: launches that record when their blocks run: {}\n", index, completion_event_launches(*make_cuda_device(options)));
}

int info() {
  fmt::print("millrace {}\nparts: {}\n", MILLRACE_VERSION, MILLRACE_BUILT_PARTS);
  fmt::print("cpu: instruction sets {}\n", fmt::join(cpu::instruction_sets(), ", "));
  fmt::print("cuda: {}\n", cuda_status());
  if (!cuda_devices().empty()) {
    fmt::print("cuda products: {}\n", library_products_status());
    for (const std::string& line : cuda_arithmetic_ids()) fmt::print("cuda arithmetic: {}\n", line);
  }
  fmt::print("nccl: {}\n", nccl_status());
  fmt::print("mpi: {}\n", mpi_status());
  for (const CudaDeviceInfo& device : cuda_devices()) {
    fmt::print("cuda:{}: {}, compute capability {}.{}, {} multiprocessors, {:.1f} of {:.1f} GiB free\n", device.index, device.name,
               device.major, device.minor, device.multiprocessors, static_cast<double>(device.free_bytes) / (1 << 30),
               static_cast<double>(device.bytes) / (1 << 30));
    print_limits(device.index);
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "Prints what this build has and which devices this machine has");
  command->callback([&action] { action = info; });
}

}  // namespace millrace::app
