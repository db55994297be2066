// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/step_runner.h>

#include <millrace/runtime/trace/tracer.h>

#include <algorithm>
#include <utility>

#include <millrace/runtime/lowering/passes.h>
#include <millrace/tensor/device.h>

namespace millrace {
namespace {

/// Rows and inputs of a thread's own: fewer are not worth waking it.
constexpr std::int64_t rows_of_thread = 16;

}  // namespace

/// The memory that one thread works with.
struct StepRunner::Room {
  std::vector<std::byte> workspace;
  std::vector<RowView> inputs, outputs;
  std::byte* aligned() {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    return workspace.data() + (64 - address % 64) % 64;
  }
};

StepRunner::StepRunner(const Program& program, std::shared_ptr<Device> device, Backend backend)
    : step_(program, device), device_(std::move(device)) {
  if (backend == Backend::captured)
    throw UnsupportedError("backend captured: expected single steps of a StateSlab on a CUDA device, found single steps on " +
                           device_->place().to_string());
  if (backend == Backend::interpreted) {
    reason_ = "it was asked for op by op";
    return;
  }
  fuse();
  if (backend == Backend::fused && !kernel_)
    throw UnsupportedError("backend fused: expected a step that runs as one kernel, but " + reason_);
}

void StepRunner::fuse() {
  if (!device_->place().is_cpu()) {
    reason_ = "there are no fused kernels for " + device_->place().to_string() + " yet";
    return;
  }
  try {
    kernel_.emplace(passes::merge_products(passes::share_expressions(step_.program())));
    weights_ = kernel_->known();
  } catch (const Error& error) {
    kernel_.reset();
    reason_ = error.what();
  }
  if (kernel_ && kernel_->packs_inputs()) {
    kernel_.reset();
    reason_ = "a weight is an input";
  }
}

StepRunner::~StepRunner() = default;
StepRunner::StepRunner(StepRunner&&) noexcept = default;
StepRunner& StepRunner::operator=(StepRunner&&) noexcept = default;

std::vector<Tensor> StepRunner::run(const std::vector<Tensor>& inputs, Tracer* tracer) {
  std::vector<Tensor> made;
  if (!kernel_ || (tracer != nullptr && tracer->records()) || inputs.empty()) {
    const std::vector<Value> values(inputs.begin(), inputs.end());
    for (const Value& value : step_.run(values, tracer)) made.push_back(value.tensor().tensor());
    return made;
  }
  const std::int64_t rows = inputs[0].dim(0);
  std::vector<RowView> in, out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DDim wanted = kernel_->inputs()[i].dims.inserted(0, rows);
    if (inputs[i].dims() != wanted || !inputs[i].is_contiguous() || inputs[i].dtype() != kernel_->plan().desc().dtype)
      throw ShapeError("step: expected contiguous " + std::string(name_of(kernel_->plan().desc().dtype)) + wanted.to_string() +
                       " as input " + std::to_string(i) + ", found " + inputs[i].to_string());
    in.push_back({const_cast<void*>(inputs[i].raw()), kernel_->inputs()[i].width});
  }
  for (const RowKernel::Port& port : kernel_->outputs()) {
    made.emplace_back(kernel_->plan().desc().dtype, port.dims.inserted(0, rows), device_->memory());
    made.back().storage()->mark_written();
    out.push_back({made.back().raw_mutable(), port.width});
  }
  run(in, out, rows);
  return made;
}

void StepRunner::run(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
  const auto size = static_cast<std::int64_t>(size_of(kernel_->plan().desc().dtype));
  const StreamRef stream = device_->stream(0);
  stream.enqueue([&](ThreadTeam& team) {
    const std::int64_t pieces = std::clamp<std::int64_t>(rows / rows_of_thread, 1, team.size());
    while (std::cmp_less(rooms_.size(), pieces)) {
      auto room = std::make_unique<Room>();  // whole, or there is none: memory may run out
      room->workspace.resize(static_cast<std::size_t>(kernel_->plan().workspace_bytes()) + 64);
      rooms_.push_back(std::move(room));
    }
    team.parallel(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t first = rows * piece / pieces;
        Room& room = *rooms_[static_cast<std::size_t>(piece)];
        const auto moved = [&](std::span<const RowView> from, std::vector<RowView>& to) {
          to.clear();
          for (const RowView& view : from) to.push_back({static_cast<std::byte*>(view.first) + first * view.stride * size, view.stride});
        };
        moved(inputs, room.inputs);
        moved(outputs, room.outputs);
        kernel_->run(weights_, room.inputs, room.outputs, rows * (piece + 1) / pieces - first, room.aligned());
      }
    });
  });
  stream.position().wait();  // reached, unless somebody else was on the stream
}

}  // namespace millrace
