// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_graph/loop_graph.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/with_cuda/launched.h>
#include <millrace/tensor/with_cuda/recording.h>
#include <millrace/runtime/loops/cuda_graph/with_cuda/pieces.cuh>

namespace millrace::cuda {
namespace {

/// A graph of fewer nodes costs the device more to go round than its kernels take.
constexpr std::size_t least_nodes = 32;
constexpr std::int64_t most_iterations_at_once = 32;

// ---- On the device ----

/// The table of a run, in words of 64 bits: these, then for each input where the addresses of its slots stand, for each output where it
/// begins, and for each state where its last value goes.
enum Word : std::int64_t { word_iteration, word_iterations, word_run, word_rows, word_offsets, word_kept, word_kept_offsets, words_fixed };

MILLRACE_HD inline const std::int64_t* list_at(const std::int64_t* table, std::int64_t word) {
  return reinterpret_cast<const std::int64_t*>(table[word]);
}

/// Units between slots and the fixed memory of the body.
struct SlotUnits {
  const std::int64_t* table;
  Pieces all;
  bool ragged;
  /// Null where the iteration has no such unit: it is over, or has fewer rows. Else `i` becomes the unit's place in the piece.
  MILLRACE_HD const Piece* of_iteration(std::int64_t iteration, std::int64_t& i) const {
    if (iteration >= table[word_iterations]) return nullptr;
    const Piece& piece = piece_at(all, i);
    return ragged && i / piece.width >= list_at(table, word_rows)[iteration] ? nullptr : &piece;
  }
};

/// The slots of an iteration, as far as it has rows. Other rows stay as they were: those that left go through their last iteration again, and nothing
/// of that is kept.
struct TakeSlots : SlotUnits {
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t iteration = table[word_iteration];
    const Piece* const piece = of_iteration(iteration, i);
    if (piece == nullptr) return;
    move_unit(piece->unit, reinterpret_cast<const void*>(list_at(table, piece->word)[iteration]), i, piece->to, i);
  }
};

/// Outputs of an iteration go to its slot.
struct LeaveOutputs : SlotUnits {
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t iteration = table[word_iteration];
    const Piece* const piece = of_iteration(iteration, i);
    if (piece == nullptr) return;
    const std::int64_t begin = ragged ? list_at(table, word_offsets)[iteration] * piece->width : iteration * piece->count;
    move_unit(piece->unit, piece->from, i, reinterpret_cast<void*>(table[piece->word]), begin + i);
  }
};

/// Next states become states, of the rows that the next iteration has; those of the last iteration are handed out.
struct LeaveStates {
  const std::int64_t* table;
  Pieces all;
  bool ragged, moves;
  MILLRACE_HD void operator()(std::int64_t i) const {
    const std::int64_t iteration = table[word_iteration];
    if (iteration >= table[word_iterations]) return;
    const Piece& piece = piece_at(all, i);
    const bool last = iteration + 1 == table[word_iterations];
    const std::int64_t row = i / piece.width;
    if (ragged && row >= list_at(table, word_rows)[last ? iteration : iteration + 1]) return;
    std::int64_t source = i;
    if (moves && !last)
      source = list_at(table, word_kept)[list_at(table, word_kept_offsets)[iteration + 1] + row] * piece.width + i % piece.width;
    if (!last) return move_unit(piece.unit, piece.from, source, piece.to, i);
    if (table[piece.word] != 0) move_unit(piece.unit, piece.from, i, reinterpret_cast<void*>(table[piece.word]), i);
  }
};

/// The next iteration, and whether there is one. Only the last iteration of a graph's body asks, and looks whether the host gave the run up.
struct NextIteration {
  std::int64_t* table;
  const volatile std::int64_t* cancelled;  // the run, of the host's memory
  cudaGraphConditionalHandle handle;
  bool asks;
  MILLRACE_HD void operator()(std::int64_t) const {
    const std::int64_t iteration = table[word_iteration] + 1;
    table[word_iteration] = iteration;
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    if (asks) cudaGraphSetConditional(handle, iteration < table[word_iterations] && *cancelled != table[word_run] ? 1 : 0);
#endif
  }
};

// ---- On the host ----

/// A word of the host's that the device reads.
class HostWord {
 public:
  explicit HostWord(int device) {
    void* made = nullptr;
    check(cudaHostAlloc(&made, sizeof(std::int64_t), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc", device);
    host_ = static_cast<std::int64_t*>(made);
    *host_ = 0;
    const cudaError_t code = cudaHostGetDevicePointer(&made, host_, 0);
    if (code != cudaSuccess) static_cast<void>(cudaFreeHost(host_));
    check(code, "cudaHostGetDevicePointer", device);
    device_ = static_cast<std::int64_t*>(made);
  }
  ~HostWord() { static_cast<void>(cudaFreeHost(host_)); }
  HostWord(const HostWord&) = delete;
  HostWord& operator=(const HostWord&) = delete;
  void set(std::int64_t value) noexcept { std::atomic_ref(*host_).store(value, std::memory_order_relaxed); }
  const volatile std::int64_t* on_device() const noexcept { return device_; }

 private:
  std::int64_t* host_ = nullptr;
  std::int64_t* device_ = nullptr;
};

std::int64_t word_of(const void* pointer) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer)); }

class RecordedLoop final : public LoopGraph, public std::enable_shared_from_this<RecordedLoop> {
 public:
  RecordedLoop(const std::shared_ptr<RecordingDevice>& device, const LoopIteration& iteration)
      : device_(device),
        recording_(make_recording(*device)),
        cancelled_(recording_->home_queue().device),
        ragged_(iteration.ragged),
        moves_(iteration.moves),
        next_(iteration.next) {
    const OnDevice here(recording_->home_queue().device);
    words_ = words_fixed + static_cast<std::int64_t>(iteration.inputs.size() + iteration.outputs + iteration.states.size());
    table_ = room(DType::i64, DDim{words_}, *recording_);
    for (const auto* places : {&iteration.inputs, &iteration.states, &iteration.shared})
      for (const LoopIteration::Place& place : *places) places_.push_back(room(place.dtype, place.dims, *recording_));
    inputs_ = iteration.inputs.size();
    record(iteration, 1);
    if (nodes_ < least_nodes && nodes_ > 0)
      record(iteration, std::min(most_iterations_at_once, static_cast<std::int64_t>((least_nodes + nodes_ - 1) / nodes_)));
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph_.get(), 0), "cudaGraphInstantiate", recording_->home_queue().device);
    exec_.reset(exec);
  }

  /// The last run may be under way, and no stream's order keeps the host's word that it reads.
  ~RecordedLoop() override { static_cast<void>(cudaStreamSynchronize(recording_->home_queue().stream)); }

  const std::vector<LoopIteration::Place>& outputs() const noexcept override { return outputs_; }
  std::size_t nodes() const noexcept override { return nodes_; }
  std::int64_t iterations_at_once() const noexcept override { return iterations_at_once_; }
  std::int64_t run(LoopSlots slots) override;
  void cancel(std::int64_t run) noexcept override { cancelled_.set(run); }

 private:
  void record(const LoopIteration& iteration, std::int64_t iterations);
  void record_iteration(const LoopIteration& iteration, cudaGraphConditionalHandle handle, bool last, const Queue& queue, StreamRef stream);
  std::vector<Tensor> results_of(const LoopIteration& iteration, StreamRef stream);
  Piece piece(const Tensor& place, std::int64_t word) const;
  void launch(const LoopSlots& slots, std::int64_t run, KernelContext& context);
  void fill_table(const LoopSlots& slots, std::int64_t run, const Queue& queue, Tensor& lists);

  std::shared_ptr<RecordingDevice> device_;
  std::shared_ptr<Recording> recording_;
  HostWord cancelled_;
  std::atomic<std::int64_t> runs_{0};
  bool ragged_, moves_;
  std::vector<std::optional<std::size_t>> next_;
  std::size_t inputs_ = 0;
  std::int64_t words_ = 0;
  Tensor table_;
  std::vector<Tensor> places_;  // inputs, states, shared
  std::vector<LoopIteration::Place> outputs_;
  std::size_t nodes_ = 0;
  std::int64_t iterations_at_once_ = 1;
  OwnedGraph graph_;
  OwnedExec exec_;
};

/// `iterations` iterations in a conditional node of a graph of its own.
void RecordedLoop::record(const LoopIteration& iteration, std::int64_t iterations) {
  const int device = recording_->home_queue().device;
  cudaGraph_t graph = nullptr;
  check(cudaGraphCreate(&graph, 0), "cudaGraphCreate", device);
  graph_.reset(graph);
  cudaGraphConditionalHandle handle{};
  check(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault), "cudaGraphConditionalHandleCreate", device);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params), "cudaGraphAddNode", device);
  cudaGraph_t body = params.conditional.phGraph_out[0];
  RecordingScope scope(*device_, recording_, body);
  for (std::int64_t i = 0; i < iterations; ++i)
    scope.stream().enqueue(
        [&](KernelContext& context) { record_iteration(iteration, handle, i + 1 == iterations, queue_of(context), scope.stream()); });
  scope.end();
  check(cudaGraphGetNodes(body, nullptr, &nodes_), "cudaGraphGetNodes", device);
  iterations_at_once_ = iterations;
}

Piece RecordedLoop::piece(const Tensor& place, std::int64_t word) const {
  Piece made;
  made.word = word;
  made.count = place.elements();
  made.width = ragged_ ? place.dims().erased(0).elements() : std::max<std::int64_t>(1, place.elements());
  made.unit = static_cast<int>(size_of(place.dtype()));
  return made;
}

/// Contiguous, and none of them a view of what the iteration worked on: those places get new contents when the iteration is over.
std::vector<Tensor> RecordedLoop::results_of(const LoopIteration& iteration, StreamRef stream) {
  std::vector<Tensor> results = iteration.run(places_);
  for (Tensor& result : results) {
    const auto shares = [&](const Tensor& place) { return place.storage() == result.storage(); };
    if (!result.is_contiguous() || result.host_accessible() || std::any_of(places_.begin(), places_.end(), shares))
      result = clone(result, stream);
  }
  return results;
}

void RecordedLoop::record_iteration(const LoopIteration& iteration, cudaGraphConditionalHandle handle, bool last, const Queue& queue,
                                    StreamRef stream) {
  auto* const table = static_cast<std::int64_t*>(table_.raw_mutable());
  std::int64_t word = words_fixed;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < inputs_; ++i) {
    pieces.push_back(piece(places_[i], word++));
    pieces.back().to = places_[i].raw_mutable();
  }
  move_pieces(pieces, TakeSlots{{table, {}, ragged_}}, queue);
  const std::vector<Tensor> results = results_of(iteration, stream);
  outputs_.clear();
  pieces.clear();
  for (std::size_t i = 0; i < iteration.outputs; ++i) {
    pieces.push_back(piece(results[i], word++));
    pieces.back().from = results[i].raw();
    outputs_.push_back({results[i].dtype(), results[i].dims()});
    if (ragged_ && (results[i].rank() == 0 || results[i].dim(0) != places_[0].dim(0)))
      throw UnsupportedError("an iteration gives " + results[i].to_string() + ", which does not have its rows");
  }
  move_pieces(pieces, LeaveOutputs{{table, {}, ragged_}}, queue);
  pieces.clear();
  std::vector<Tensor> stays;
  for (std::size_t i = 0; i < next_.size(); ++i, ++word) {
    const Tensor& place = places_[inputs_ + i];
    if (!next_[i] && !moves_) continue;
    if (!next_[i]) stays.push_back(clone(place, stream));
    const Tensor& next = next_[i] ? results.at(*next_[i]) : stays.back();
    if (next.dims() != place.dims() || next.dtype() != place.dtype())
      throw UnsupportedError("an iteration makes " + next.to_string() + " of a state " + place.to_string());
    pieces.push_back(piece(place, word));
    pieces.back().from = next.raw();
    pieces.back().to = place.raw_mutable();
  }
  move_pieces(pieces, LeaveStates{table, {}, ragged_, moves_}, queue);
  each_index(queue, 1, NextIteration{table, cancelled_.on_device(), handle, last});
}

// ---- A run ----

/// Lists that a run brings along, one behind the other, and the words that say where they are.
void RecordedLoop::fill_table(const LoopSlots& slots, std::int64_t run, const Queue& queue, Tensor& lists) {
  std::vector<std::int64_t> all, words(static_cast<std::size_t>(words_), 0);
  std::vector<std::pair<std::size_t, std::size_t>> begins;  // word, place in `all`
  const auto list = [&](std::size_t word) { begins.emplace_back(word, all.size()); };
  words[word_iterations] = slots.iterations;
  words[word_run] = run;
  if (ragged_) {
    list(word_rows);
    all.insert(all.end(), slots.rows.begin(), slots.rows.end());
    all.push_back(0);
    list(word_offsets);
    std::int64_t sum = 0;
    for (const std::int64_t rows : slots.rows) {
      all.push_back(sum);
      sum += rows;
    }
  }
  if (moves_) {
    list(word_kept_offsets);
    std::int64_t sum = 0;
    for (const auto& rows : slots.kept) {
      all.push_back(sum);
      sum += static_cast<std::int64_t>(rows.size());
    }
    list(word_kept);
    for (const auto& rows : slots.kept) all.insert(all.end(), rows.begin(), rows.end());
  }
  std::size_t word = words_fixed;
  for (const LoopSlots::Input& input : slots.inputs) {
    list(word++);
    for (const void* slot : input.slots) all.push_back(word_of(slot));
  }
  for (const Tensor& output : slots.outputs) words[word++] = word_of(output.raw_mutable());
  for (std::size_t i = 0; i < next_.size(); ++i, ++word)
    if (next_[i]) words[word] = word_of(slots.last[i].raw_mutable());
  lists = Tensor(DType::i64, DDim{static_cast<std::int64_t>(std::max<std::size_t>(1, all.size()))}, *queue.memory);
  for (const auto& [at, begin] : begins) words[at] = word_of(static_cast<const std::int64_t*>(lists.raw()) + begin);
  const auto upload = [&](const Tensor& to, const std::vector<std::int64_t>& from) {
    if (!from.empty())
      check(cudaMemcpyAsync(to.raw_mutable(), from.data(), from.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice, queue.stream),
            "cudaMemcpyAsync", queue.device);
  };
  upload(lists, all);
  upload(table_, words);
}

void RecordedLoop::launch(const LoopSlots& slots, std::int64_t run, KernelContext& context) {
  const Queue& queue = queue_of(context);
  Tensor lists;
  fill_table(slots, run, queue, lists);
  for (std::size_t i = 0; i < slots.states.size(); ++i) copy(slots.states[i], places_[inputs_ + i], context);
  for (std::size_t i = 0; i < slots.shared.size(); ++i) copy(slots.shared[i], places_[inputs_ + slots.states.size() + i], context);
  if (queue.launched != nullptr) queue.launched->add("F = graph of a loop");
  check(cudaGraphLaunch(exec_.get(), queue.stream), "cudaGraphLaunch", queue.device);
}

std::int64_t RecordedLoop::run(LoopSlots slots) {
  const StreamRef stream = recording_->home();
  const auto reads = [&](const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) detail::order_read(tensor, stream);
  };
  for (const LoopSlots::Input& input : slots.inputs) reads(input.held);
  reads(slots.states);
  reads(slots.shared);
  std::vector<Tensor> made = slots.outputs;
  for (std::size_t i = 0; i < slots.last.size(); ++i)
    if (next_[i]) made.push_back(slots.last[i]);
  for (const Tensor& tensor : made) detail::order_write(tensor, stream);
  const std::int64_t number = ++runs_;
  stream.enqueue(
      [self = shared_from_this(), slots = std::move(slots), number](KernelContext& context) { self->launch(slots, number, context); });
  const Point done = stream.position();
  for (const Tensor& tensor : made) {
    tensor.storage()->set_ready(done);
    tensor.storage()->mark_written();
  }
  return number;
}

}  // namespace

std::shared_ptr<LoopGraph> record_loop(const std::shared_ptr<RecordingDevice>& device, const LoopIteration& iteration) {
  return std::make_shared<RecordedLoop>(device, iteration);
}

}  // namespace millrace::cuda
