// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/node_order.h>

#include <cstddef>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/models/import/with_onnx/node.h>
#include <millrace/runtime/program/program.h>

namespace millrace::importing {
namespace {

using internal::printable;
using Names = std::unordered_set<std::string>;

class Sorter {
 public:
  explicit Sorter(const std::string& source) : source_(source) {}

  /// Returns the names that the graph takes from the graphs around it.
  Names sort(onnx::GraphProto& graph) {
    const Names own = defined(graph);
    for (const std::string& name : own) ++around_[name];
    std::vector<Names> reads;
    for (onnx::NodeProto& node : *graph.mutable_node()) reads.push_back(read_by(node));
    for (const std::string& name : own)
      if (--around_[name] == 0) around_.erase(name);
    put_in_order(graph, reads);
    Names outside;
    for (const Names& names : reads) outside.insert(names.begin(), names.end());
    for (const onnx::ValueInfoProto& output : graph.output()) outside.insert(output.name());
    std::erase_if(outside, [&](const std::string& name) { return own.contains(name); });
    return outside;
  }

 private:
  static Names defined(const onnx::GraphProto& graph) {
    Names names;
    for (const onnx::ValueInfoProto& input : graph.input()) names.insert(input.name());
    for (const onnx::TensorProto& initializer : graph.initializer()) names.insert(initializer.name());
    for (const onnx::NodeProto& node : graph.node()) names.insert(node.output().begin(), node.output().end());
    names.erase("");
    return names;
  }

  /// The inputs of a node, and the names that its graphs take from around them.
  Names read_by(onnx::NodeProto& node) {
    Names names(node.input().begin(), node.input().end());
    for (onnx::AttributeProto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) names.merge(sort(*attribute.mutable_g()));
    names.erase("");
    return names;
  }

  void put_in_order(onnx::GraphProto& graph, const std::vector<Names>& reads) const {
    const auto count = static_cast<std::size_t>(graph.node_size());
    std::unordered_map<std::string_view, std::size_t> makers;
    for (const onnx::ValueInfoProto& input : graph.input()) makers.emplace(input.name(), count);
    for (const onnx::TensorProto& initializer : graph.initializer()) makers.emplace(initializer.name(), count);
    for (std::size_t i = 0; i < count; ++i)
      for (const std::string& output : graph.node(static_cast<int>(i)).output()) makers.emplace(output, i);
    // A name that a graph around this one defines is that graph's value up to the node that defines it again.
    const auto maker_of = [&](const std::string& name, std::size_t reader) {
      const auto found = makers.find(name);
      if (found == makers.end() || (found->second >= reader && around_.contains(name))) return count;
      return found->second;
    };
    bool sorted = true;
    std::vector<std::vector<std::size_t>> readers(count);
    std::vector<std::size_t> waits(count, 0);
    for (std::size_t i = 0; i < count; ++i)
      for (const std::string& name : reads[i]) {
        const std::size_t maker = maker_of(name, i);
        if (maker == count) continue;
        sorted = sorted && maker < i;
        readers[maker].push_back(i);
        ++waits[i];
      }
    if (!sorted) rearrange(graph, readers, waits);
  }

  void rearrange(onnx::GraphProto& graph, const std::vector<std::vector<std::size_t>>& readers, std::vector<std::size_t>& waits) const {
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t i = 0; i < waits.size(); ++i)
      if (waits[i] == 0) ready.push(i);
    google::protobuf::RepeatedPtrField<onnx::NodeProto> ordered;
    while (!ready.empty()) {
      const std::size_t next = ready.top();
      ready.pop();
      ordered.Add()->Swap(graph.mutable_node(static_cast<int>(next)));
      for (const std::size_t reader : readers[next])
        if (--waits[reader] == 0) ready.push(reader);
    }
    if (ordered.size() != graph.node_size()) refuse(graph, readers, waits);
    graph.mutable_node()->Swap(&ordered);
  }

  /// Throws for a cycle among the nodes that are left. Some of them only read values of a cycle: a walk from any node to one that it waits for, and so on,
  /// ends in the cycle.
  [[noreturn]] void refuse(const onnx::GraphProto& graph, const std::vector<std::vector<std::size_t>>& readers,
                           const std::vector<std::size_t>& waits) const {
    std::vector<std::size_t> behind(waits.size(), waits.size());  // a node that each node waits for
    for (std::size_t i = 0; i < waits.size(); ++i)
      if (waits[i] > 0)
        for (const std::size_t reader : readers[i]) behind[reader] = i;
    std::size_t at = 0;
    while (waits[at] == 0) ++at;
    for (std::size_t step = 0; step < waits.size(); ++step) at = behind[at];
    const Node node(graph.node(static_cast<int>(at)));
    const std::string op = printable(node.op());
    throw ProgramError(source_ + ": node " + printable(node.label()) + " (" + op.substr(1, op.size() - 2) +
                       "): expected nodes without a cycle, found one that reads what is computed of its own outputs");
  }

  const std::string& source_;
  std::unordered_map<std::string, std::size_t> around_;  // names that the graphs around the current one define, and how often
};

}  // namespace

void sort_nodes(onnx::GraphProto& graph, const std::string& source) { Sorter(source).sort(graph); }

}  // namespace millrace::importing
