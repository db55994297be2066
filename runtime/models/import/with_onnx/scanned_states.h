// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// States of a Loop that only gather a piece of each iteration: a list that grows by `append`, a tensor that grows by `cat`, one that is written at the count of the
/// iterations, `out[:, t] = y`. As states they keep their loop from being one of rows; as outputs that the loop scans they do not.
class ScannedStates {
 public:
  /// `node` is the Loop, `body` its graph.
  ScannedStates(Importer& to, const Node& node, const onnx::GraphProto& body);

  /// The Loop with these states as outputs that it scans; null where it has none.
  const onnx::NodeProto* form() const noexcept { return form_; }
  /// Imports the form by `import`, and binds the states. Where they cannot be made of the pieces, the model is imported again without them.
  template <class F>
  void apply(F&& import) {
    try {
      import();
    } catch (const Error&) {
      refuse(states_);
      throw;
    }
    bind();
  }

 private:
  enum class Kind { list, joined, placed };
  struct State {
    std::size_t at = 0;
    Kind kind = Kind::list;
    const onnx::NodeProto* op = nullptr;  ///< takes the piece in
    std::int64_t axis = 0;                ///< along which pieces have one element, and are joined
    bool new_axis = false;                ///< or which they do not have
    std::string piece() const { return op->input(op->input_size() - 1); }
  };

  bool is_list(State& state) const;
  bool is_joined(State& state) const;
  bool is_placed(State& state) const;
  bool is_handed_on_alone(const State& state) const;
  void bind();
  void refuse(const std::vector<State>& states);
  VarId piece_of(VarId pieces) const;
  bool makes(const State& state, VarId pieces) const;
  std::string word(const State& state) const { return "state " + std::to_string(state.at) + " stays"; }
  std::string name_of(const State& state) const;
  std::string squeezed(onnx::GraphProto& graph, const State& state) const;
  void make_form();

  Importer& to_;
  const Node& node_;
  const onnx::GraphProto& body_;
  std::vector<State> states_;  ///< the last first
  const onnx::NodeProto* form_ = nullptr;
};

/// The first axis of `x` as axis `axis`, behind those that stand before it.
VarId first_axis_at(Importer& to, VarId x, int axis, const std::string& name = "");

}  // namespace millrace::importing
