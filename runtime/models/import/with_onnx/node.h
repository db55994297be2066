// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

using Ints = std::vector<std::int64_t>;

/// One node of a graph, read with defaults. The importer adds file and node to its errors. Remembers which attributes were
/// asked for: those that no rule reads are refused, since they would have no effect.
class Node {
 public:
  explicit Node(const onnx::NodeProto& proto);

  const onnx::NodeProto& proto() const noexcept { return proto_; }
  const std::string& op() const noexcept { return proto_.op_type(); }
  /// The op, behind the name of its domain where that is not ONNX's own: "com.microsoft.MatMulIntegerToFloat".
  std::string qualified_op() const;
  /// Its name, or the name of its first output where it has none.
  const std::string& label() const noexcept;

  /// Inputs up to the last that is there.
  std::size_t inputs() const noexcept { return inputs_; }
  bool has(std::size_t input) const noexcept { return input < inputs_ && !proto_.input(static_cast<int>(input)).empty(); }
  const std::string& input(std::size_t input) const { return proto_.input(static_cast<int>(input)); }
  std::size_t outputs() const noexcept { return static_cast<std::size_t>(proto_.output_size()); }
  /// Whether somebody may read that output.
  bool wants(std::size_t output) const noexcept { return output < outputs() && !proto_.output(static_cast<int>(output)).empty(); }
  const std::string& output(std::size_t output) const { return proto_.output(static_cast<int>(output)); }

  /// Attributes. ParseError when one is there with another type.
  bool has_attribute(const std::string& name) const { return find(name) != nullptr; }
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
  /// An integer that says no or yes. ParseError unless it is 0 or 1.
  bool flag(const std::string& name, bool otherwise) const;
  /// One of `words`. ParseError for another, naming them.
  std::string word(const std::string& name, const std::string& otherwise, std::initializer_list<const char*> words) const;
  double real(const std::string& name, double otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  std::optional<Ints> integers(const std::string& name) const;
  std::vector<float> reals(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  /// Null when absent.
  const onnx::TensorProto* tensor(const std::string& name) const;
  const onnx::TypeProto* type(const std::string& name) const;
  /// ParseError when absent.
  const onnx::GraphProto& graph(const std::string& name) const;

  /// UnsupportedError unless the attribute is absent or says `only`, the one value that a rule computes with.
  void expect_integer(const std::string& name, std::int64_t only) const;
  /// The attribute changes nothing here, whatever it says: it counts as read.
  void pass_over(const std::string& name) const { find(name); }
  /// Everything that was asked of `other`, a node made of this one, was asked of this one.
  void read_as(const Node& other) const { read_.insert(other.read_.begin(), other.read_.end()); }
  /// UnsupportedError names the attributes that nobody asked for.
  void expect_all_read() const;

 private:
  const onnx::AttributeProto* find(const std::string& name) const;
  const onnx::AttributeProto* find(const std::string& name, onnx::AttributeProto::AttributeType type, const char* type_name) const;

  const onnx::NodeProto& proto_;
  std::size_t inputs_;
  mutable std::set<std::string> read_;  // names of attributes
};

}  // namespace millrace::importing
