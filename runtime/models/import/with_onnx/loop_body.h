// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// The body of a Loop that is not imported yet: its values by name. The graph outlives it.
class LoopBody {
 public:
  LoopBody(Importer& to, const onnx::GraphProto& graph);

  const onnx::GraphProto& graph() const noexcept { return graph_; }
  const std::string& count() const { return graph_.input(0).name(); }
  const std::string& taken(std::size_t state) const { return graph_.input(2 + static_cast<int>(state)).name(); }
  const std::string& handed_on(std::size_t state) const { return graph_.output(1 + static_cast<int>(state)).name(); }
  /// The node that makes a value, or null.
  const onnx::NodeProto* maker(const std::string& name) const;
  /// The place of an input of the body; none where the value is no input.
  std::optional<std::size_t> input(const std::string& name) const;
  /// Whether the body takes, makes or holds the value. Others are values of outside.
  bool has(const std::string& name) const { return input(name) || maker(name) != nullptr || weights_.contains(name); }
  /// The name of the value that `name` is, behind ops that hand it on.
  std::string source(std::string name, std::initializer_list<std::string_view> through = {"Identity"}) const;

  /// A number or a list that the body holds, or that is known outside.
  std::optional<Tensor> constant(const std::string& name) const;
  /// The integers of a constant, through changes of rank.
  std::optional<Ints> integers(const std::string& name) const;
  /// The condition of the next iteration, where it is the same in all of them.
  struct Condition {
    bool handed_on = false;                    ///< the condition of the iteration before is handed on
    std::optional<bool> known = std::nullopt;  ///< known now
    VarId outside = no_var;                    ///< a value of outside
  };
  Condition condition() const;

 private:
  Importer& to_;
  const onnx::GraphProto& graph_;
  std::unordered_map<std::string, const onnx::NodeProto*> makers_;
  std::unordered_map<std::string, const onnx::TensorProto*> weights_;
  std::unordered_map<std::string, std::size_t> inputs_;
};

/// Whether a node is of this op of the default domain; false for null.
bool is_node(const onnx::NodeProto* proto, std::string_view op);
/// A name beside a Loop for a value that a form of it reads: bodies of several loops may have the same names inside.
std::string name_beside(const Node& loop, const std::string& what);
/// The body of a Loop that is being rewritten.
onnx::GraphProto& body_of(onnx::NodeProto& loop);
/// Takes a state out of a Loop and of its body, which may go on reading it.
void erase_state(onnx::NodeProto& loop, std::size_t state);

}  // namespace millrace::importing
