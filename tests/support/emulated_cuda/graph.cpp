// SPDX-License-Identifier: Apache-2.0
// Graphs: what was enqueued on a stream while it was captured, in that order, with conditional nodes. Written from CUDA's documentation.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

/// The value of a condition, which kernels set, and what it is when a launch begins.
struct Condition {
  unsigned value = 0;
  unsigned initial = 0;
};

struct EmulatedNode {
  std::function<void()> work;  // or
  std::shared_ptr<Condition> condition;
  std::shared_ptr<EmulatedGraph> body;
  bool again = false;
};

struct EmulatedGraph {
  std::list<EmulatedNode> nodes;
  std::vector<cudaGraph_t> bodies;
  std::vector<std::shared_ptr<Condition>> conditions;
  std::weak_ptr<const EmulatedGraph> instance;
};

struct EmulatedExec {
  std::shared_ptr<const EmulatedGraph> graph;  // a copy: what becomes of the original does not matter
};

namespace {

std::atomic<int> capturing{0};
std::atomic<std::size_t> execs{0}, nodes{0};
std::atomic<cudaError_t> launches_give{cudaSuccess}, grid_launches_give{cudaSuccess};
std::mutex captured_mutex;
std::map<cudaStream_t, cudaGraph_t> captured;

void run(const EmulatedGraph& graph) {
  for (const auto& condition : graph.conditions) condition->value = condition->initial;
  for (const EmulatedNode& node : graph.nodes) {
    ++nodes;
    if (node.work) {
      node.work();
    } else {
      while (node.condition->value != 0 && cudaGetLastError() == cudaSuccess) {  // after a trap nothing runs
        run(*node.body);
        if (!node.again) break;
      }
    }
  }
}

}  // namespace

namespace emulated {

cudaGraph_t captured_by(cudaStream_t stream) {
  if (capturing.load() == 0) return nullptr;
  const std::lock_guard lock(captured_mutex);
  const auto found = captured.find(stream);
  return found == captured.end() ? nullptr : found->second;
}
void add_node(cudaGraph_t graph, std::function<void()> work) { graph->nodes.push_back({std::move(work), nullptr, nullptr, false}); }
std::size_t instantiated() { return execs.load(); }
std::size_t nodes_run() { return nodes.load(); }
void fail_launches(cudaError_t code) { launches_give.store(code); }
void refuse_grids(cudaError_t code) { grid_launches_give.store(code); }
cudaError_t grids_give() { return grid_launches_give.load(); }

}  // namespace emulated

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = new EmulatedGraph;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph, unsigned value, unsigned flags) {
  graph->conditions.push_back(std::make_shared<Condition>());
  graph->conditions.back()->initial = (flags & cudaGraphCondAssignDefault) != 0 ? value : 0;
  *handle = reinterpret_cast<cudaGraphConditionalHandle>(graph->conditions.back().get());
  return cudaSuccess;
}
void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) { reinterpret_cast<Condition*>(handle)->value = value; }

cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, const cudaGraphEdgeData*, std::size_t,
                             cudaGraphNodeParams* params) {
  if (params->type != cudaGraphNodeTypeConditional || params->conditional.size != 1) return cudaErrorInvalidValue;
  EmulatedNode made;
  for (const auto& condition : graph->conditions)
    if (reinterpret_cast<cudaGraphConditionalHandle>(condition.get()) == params->conditional.handle) made.condition = condition;
  if (made.condition == nullptr) return cudaErrorInvalidValue;
  made.body = std::make_shared<EmulatedGraph>();
  made.again = params->conditional.type == cudaGraphCondTypeWhile;
  graph->bodies.assign(1, made.body.get());
  params->conditional.phGraph_out = graph->bodies.data();
  graph->nodes.push_back(std::move(made));
  *node = &graph->nodes.back();
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* found, std::size_t* count) {
  if (found != nullptr) return cudaErrorInvalidValue;
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  // A graph with a condition has one instance at a time, and each condition has a node.
  if (!graph->conditions.empty() && !graph->instance.expired()) return cudaErrorNotSupported;
  for (const auto& condition : graph->conditions)
    if (std::none_of(graph->nodes.begin(), graph->nodes.end(), [&](const EmulatedNode& node) { return node.condition == condition; }))
      return cudaErrorInvalidValue;
  auto made = std::make_shared<const EmulatedGraph>(*graph);
  graph->instance = made;
  *exec = new EmulatedExec{std::move(made)};
  ++execs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;  // a launch under way goes on
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t code = launches_give.load(); code != cudaSuccess) return code;
  emulated::enqueue(stream, [graph = exec->graph] { run(*graph); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*, const cudaGraphEdgeData*,
                                          std::size_t, cudaStreamCaptureMode) {
  const std::lock_guard lock(captured_mutex);
  if (!captured.emplace(stream, graph).second) return cudaErrorInvalidValue;
  ++capturing;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(captured_mutex);
  const auto found = captured.find(stream);
  if (found == captured.end()) return cudaErrorInvalidValue;
  *graph = found->second;
  captured.erase(found);
  --capturing;
  return cudaSuccess;
}
