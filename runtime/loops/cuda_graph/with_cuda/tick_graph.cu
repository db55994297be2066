// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/tick_graph.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <millrace/tensor/copy.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/with_cuda/launched.h>
#include <millrace/tensor/with_cuda/recording.h>
#include <millrace/tensor/with_cuda/stream_state.h>
#include <millrace/runtime/loops/cuda_graph/with_cuda/pieces.cuh>

namespace millrace::cuda {
namespace {

/// Rows of slabs, by slot.
struct TakeStates {
  const std::int64_t* slots;
  Pieces all = {};
  MILLRACE_HD void operator()(std::int64_t i) const {
    const Piece& piece = piece_at(all, i);
    move_unit(piece.unit, piece.from, slots[i / piece.width] * piece.width + i % piece.width, piece.to, i);
  }
};

/// Back to them, of as many rows as the tick has.
struct LeaveNext {
  const std::int64_t *slots, *bounds;
  Pieces all = {};
  MILLRACE_HD void operator()(std::int64_t i) const {
    const Piece& piece = piece_at(all, i);
    const std::int64_t row = i / piece.width;
    if (row < bounds[1]) move_unit(piece.unit, piece.from, i, piece.to, slots[row] * piece.width + i % piece.width);
  }
};

/// Where a tick finds its block of the host's memory, and leaves its outputs there. The host writes the addresses before each tick: the device reads
/// and writes such memory itself, and a copy would have the stream wait for the engine that copies, twice.
struct Links {
  std::uint64_t arrived, made;
};

/// The tick's block, 8 bytes at a time.
struct Arrive {
  const Links* links;
  std::uint64_t* to;
  MILLRACE_HD void operator()(std::int64_t i) const { to[i] = reinterpret_cast<const std::uint64_t*>(links->arrived)[i]; }
};

/// Collects the outputs, side by side: `word` is where a piece begins among them, in bytes.
struct Collect {
  const Links* links;
  Pieces all = {};
  MILLRACE_HD void operator()(std::int64_t i) const {
    const Piece& piece = piece_at(all, i);
    move_unit(piece.unit, piece.from, i, reinterpret_cast<std::byte*>(links->made) + piece.word, i);
  }
};

/// Tensors one behind the other in a block of bytes, each on a line.
class Layout {
 public:
  /// Gives the offset of the new piece.
  std::int64_t add(DType dtype, const DDim& dims) {
    const std::int64_t begin = bytes_;
    const std::int64_t size = dims.elements() * static_cast<std::int64_t>(size_of(dtype));
    bytes_ += (size + 63) / 64 * 64;
    return begin;
  }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

Tensor view(const Tensor& block, DType dtype, const DDim& dims, std::int64_t begin) {
  return Tensor(dtype, dims, dims.row_major(), begin / static_cast<std::int64_t>(size_of(dtype)), block.storage());
}

Piece piece_of(const Tensor& tensor) {
  Piece made;
  made.count = tensor.elements();
  made.width = std::max<std::int64_t>(1, tensor.dims().erased(0).elements());
  made.unit = static_cast<int>(size_of(tensor.dtype()));
  return made;
}

class RecordedTick final : public TickGraph, public std::enable_shared_from_this<RecordedTick> {
 public:
  RecordedTick(const std::shared_ptr<RecordingDevice>& device, const TickStep& step)
      : device_(device), recording_(make_recording(*device)), step_(step) {
    const OnDevice here(recording_->home_queue().device);
    arrange();
    record();
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph_.get(), 0), "cudaGraphInstantiate", recording_->home_queue().device);
    exec_.reset(exec);
    step_.run = nullptr;
  }

  std::int64_t rows() const noexcept override { return step_.rows; }
  std::size_t nodes() const noexcept override { return nodes_; }
  Started start(const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) override;

 private:
  void arrange();
  void record();
  void record_step(const Queue& queue, StreamRef stream);
  void collect(const std::vector<Tensor>& results, const Queue& queue);
  void leave(const std::vector<Tensor>& results, const Queue& queue);
  Tensor checked(const Tensor& result, StreamRef stream) const;
  void fill(const Tensor& staged, const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) const;
  void launch(const Tensor& staged, const Tensor& out, KernelContext& context) const;
  std::int64_t* bounds_in(const Tensor& block) const { return static_cast<std::int64_t*>(block.raw_mutable()); }
  const Links* links() const { return static_cast<const Links*>(links_.raw()); }
  std::int64_t* slots_in(const Tensor& block) const { return bounds_in(block) + slots_at_ / 8; }

  std::shared_ptr<RecordingDevice> device_;
  std::shared_ptr<Recording> recording_;
  TickStep step_;
  Tensor links_, arrived_;  // the inputs
  std::int64_t slots_at_ = 0, made_bytes_ = 0;
  std::vector<std::int64_t> inputs_at_, outputs_at_;
  std::vector<LoopIteration::Place> outputs_;
  std::vector<Tensor> held_;  // results, until the graph is made
  std::size_t nodes_ = 0;
  OwnedGraph graph_;
  OwnedExec exec_;
};

void RecordedTick::arrange() {
  Layout layout;
  layout.add(DType::i64, DDim{2});
  slots_at_ = layout.add(DType::i64, DDim{step_.rows});
  for (const LoopIteration::Place& input : step_.inputs) inputs_at_.push_back(layout.add(input.dtype, input.dims));
  arrived_ = room(DType::u8, DDim{layout.bytes()}, *recording_);
  links_ = room(DType::u8, DDim{static_cast<std::int64_t>(sizeof(Links))}, *recording_);
}

void RecordedTick::record() {
  const int device = recording_->home_queue().device;
  cudaGraph_t graph = nullptr;
  check(cudaGraphCreate(&graph, 0), "cudaGraphCreate", device);
  graph_.reset(graph);
  RecordingScope scope(*device_, recording_, graph);
  scope.stream().enqueue([&](KernelContext& context) { record_step(queue_of(context), scope.stream()); });
  scope.end();
  held_.clear();
  check(cudaGraphGetNodes(graph, nullptr, &nodes_), "cudaGraphGetNodes", device);
}

void RecordedTick::record_step(const Queue& queue, StreamRef stream) {
  each_index(queue, arrived_.elements() / 8, Arrive{links(), reinterpret_cast<std::uint64_t*>(bounds_in(arrived_))});
  TickStep::Values values;
  values.bounds = view(arrived_, DType::i64, DDim{2}, 0);
  values.slots = view(arrived_, DType::i64, DDim{step_.rows}, slots_at_);
  for (std::size_t i = 0; i < step_.inputs.size(); ++i)
    values.inputs.push_back(view(arrived_, step_.inputs[i].dtype, step_.inputs[i].dims, inputs_at_[i]));
  std::vector<Piece> pieces;
  for (const TickStep::State& state : step_.states) {
    values.states.emplace_back();
    if (!state.gathered) continue;
    values.states.back() = room(state.slab.dtype(), state.slab.dims().erased(0).inserted(0, step_.rows), *recording_);
    pieces.push_back(piece_of(values.states.back()));
    pieces.back().from = state.slab.raw();
    pieces.back().to = values.states.back().raw_mutable();
  }
  move_pieces(pieces, TakeStates{slots_in(arrived_)}, queue);
  for (const Tensor& result : step_.run(values)) held_.push_back(checked(result, stream));
  collect(held_, queue);
  leave(held_, queue);
}

/// Contiguous, on the device, with a row for each.
Tensor RecordedTick::checked(const Tensor& result, StreamRef stream) const {
  if (result.rank() == 0 || result.dim(0) != step_.rows)
    throw UnsupportedError("a step of " + std::to_string(step_.rows) + " rows gives " + result.to_string() + ", which does not have them");
  return result.is_contiguous() && !result.host_accessible() ? result : clone(result, stream);
}

void RecordedTick::collect(const std::vector<Tensor>& results, const Queue& queue) {
  Layout layout;
  for (std::size_t i = 0; i < step_.outputs; ++i) {
    outputs_.push_back({results[i].dtype(), results[i].dims()});
    outputs_at_.push_back(layout.add(results[i].dtype(), results[i].dims()));
  }
  made_bytes_ = layout.bytes();
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < step_.outputs; ++i) {
    const Piece whole = piece_of(results[i]);
    Piece& piece = pieces.emplace_back(whole);
    piece.from = results[i].raw();
    piece.word = outputs_at_[i];
    const std::int64_t bytes = whole.count * whole.unit;
    if (bytes % 8 == 0 && reinterpret_cast<std::uintptr_t>(piece.from) % 8 == 0) {
      piece.unit = 8;
      piece.count = bytes / 8;
    }
  }
  move_pieces(pieces, Collect{links()}, queue);
}

void RecordedTick::leave(const std::vector<Tensor>& results, const Queue& queue) {
  std::vector<Piece> pieces;
  for (const TickStep::State& state : step_.states) {
    if (!state.next) continue;
    const Tensor& next = results.at(*state.next);
    if (next.dims().erased(0) != state.slab.dims().erased(0) || next.dtype() != state.slab.dtype())
      throw UnsupportedError("a step makes " + next.to_string() + " of a state of " + state.slab.to_string());
    pieces.push_back(piece_of(next));
    pieces.back().from = next.raw();
    pieces.back().to = state.slab.raw_mutable();
  }
  move_pieces(pieces, LeaveNext{slots_in(arrived_), bounds_in(arrived_)}, queue);
}

// ---- A tick ----

void RecordedTick::fill(const Tensor& staged, const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) const {
  bounds_in(staged)[0] = 0;
  bounds_in(staged)[1] = static_cast<std::int64_t>(slots.size());
  std::int64_t* const to = slots_in(staged);
  std::fill(std::copy(slots.begin(), slots.end(), to), to + step_.rows, slots.front());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t row = inputs[i].bytes() / slots.size();
    auto* at = static_cast<std::byte*>(staged.raw_mutable()) + inputs_at_[i];
    if (row == 0) continue;
    std::memcpy(at, inputs[i].raw(), inputs[i].bytes());
    for (auto n = static_cast<std::int64_t>(slots.size()); n < step_.rows; ++n)
      std::memcpy(at + static_cast<std::size_t>(n) * row, inputs[i].raw(), row);
  }
}

void RecordedTick::launch(const Tensor& staged, const Tensor& out, KernelContext& context) const {
  const Queue& queue = queue_of(context);
  queue.state->keep(staged.storage());
  queue.state->keep(out.storage());
  const Links now{reinterpret_cast<std::uint64_t>(staged.raw()), reinterpret_cast<std::uint64_t>(out.raw_mutable())};
  auto* const word = static_cast<std::uint64_t*>(links_.raw_mutable());
  // A copy of memory that is not pinned has left it when the call returns.
  if (!queue.state->write(word, now.arrived) || !queue.state->write(word + 1, now.made))
    check(cudaMemcpyAsync(word, &now, sizeof now, cudaMemcpyHostToDevice, queue.stream), "cudaMemcpyAsync", queue.device);
  if (queue.launched != nullptr) queue.launched->add("F = graph of a live step");
  check(cudaGraphLaunch(exec_.get(), queue.stream), "cudaGraphLaunch", queue.device);
}

TickGraph::Started RecordedTick::start(const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) {
  const StreamRef stream = recording_->home();
  // A block for each: the one before may still be read.
  const Tensor staged(DType::u8, arrived_.dims(), step_.pinned), out(DType::u8, DDim{made_bytes_}, step_.pinned);
  fill(staged, slots, inputs);
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  for (const TickStep::State& state : step_.states) detail::order_write(state.slab, stream);
  stream.enqueue([self = shared_from_this(), staged, out, begun](KernelContext& context) {
    begun->store(true);
    self->launch(staged, out, context);
  });
  Started made{{}, stream.position(), begun};
  out.storage()->set_ready(made.done);
  out.storage()->mark_written();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    DDim dims = outputs_[i].dims;
    dims[0] = static_cast<std::int64_t>(slots.size());
    made.outputs.push_back(view(out, outputs_[i].dtype, dims, outputs_at_[i]));
  }
  return made;
}

}  // namespace

std::shared_ptr<TickGraph> record_tick(const std::shared_ptr<RecordingDevice>& device, const TickStep& step) {
  return std::make_shared<RecordedTick>(device, step);
}

}  // namespace millrace::cuda
