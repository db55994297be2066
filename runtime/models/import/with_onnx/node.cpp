// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/node.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/tensor/error.h>

namespace millrace::importing {

using onnx::AttributeProto;

Node::Node(const onnx::NodeProto& proto) : proto_(proto), inputs_(static_cast<std::size_t>(proto.input_size())) {
  while (inputs_ > 0 && input(inputs_ - 1).empty()) --inputs_;
}

std::string Node::qualified_op() const {
  const std::string& domain = proto_.domain();
  return domain.empty() || domain == "ai.onnx" ? proto_.op_type() : domain + "." + proto_.op_type();
}

const std::string& Node::label() const noexcept {
  return proto_.name().empty() && proto_.output_size() > 0 ? proto_.output(0) : proto_.name();
}

const AttributeProto* Node::find(const std::string& name) const {
  read_.insert(name);
  for (const AttributeProto& attribute : proto_.attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

const AttributeProto* Node::find(const std::string& name, AttributeProto::AttributeType type, const char* type_name) const {
  const AttributeProto* attribute = find(name);
  // Files of the first version leave the type out.
  if (attribute != nullptr && attribute->type() != type && attribute->type() != AttributeProto::UNDEFINED)
    throw ParseError("attribute " + name + ": expected " + type_name + ", found attribute type " + std::to_string(attribute->type()));
  return attribute;
}

std::int64_t Node::integer(const std::string& name, std::int64_t otherwise) const {
  const AttributeProto* attribute = find(name, AttributeProto::INT, "an integer");
  return attribute == nullptr ? otherwise : attribute->i();
}

bool Node::flag(const std::string& name, bool otherwise) const {
  const std::int64_t found = integer(name, otherwise ? 1 : 0);
  if (found != 0 && found != 1) throw ParseError("attribute " + name + ": expected 0 or 1, found " + std::to_string(found));
  return found == 1;
}

std::string Node::word(const std::string& name, const std::string& otherwise, std::initializer_list<const char*> words) const {
  std::string found = text(name, otherwise);
  std::string known;
  for (const char* word : words) {
    if (found == word) return found;
    known += (known.empty() ? "" : " or ") + std::string(word);
  }
  throw ParseError("attribute " + name + ": expected " + known + ", found " + internal::printable(found));
}

void Node::expect_integer(const std::string& name, std::int64_t only) const {
  const std::int64_t found = integer(name, only);
  if (found != only)
    throw UnsupportedError("attribute " + name + ": expected " + std::to_string(only) + ", found " + std::to_string(found));
}

void Node::expect_all_read() const {
  for (const AttributeProto& attribute : proto_.attribute())
    if (!read_.contains(attribute.name()))
      throw UnsupportedError("attribute " + internal::printable(attribute.name()) + ": " + op() +
                             " is imported without it: expected none of that name, found one");
}

double Node::real(const std::string& name, double otherwise) const {
  const AttributeProto* attribute = find(name, AttributeProto::FLOAT, "a float");
  return attribute == nullptr ? otherwise : static_cast<double>(attribute->f());
}

std::string Node::text(const std::string& name, const std::string& otherwise) const {
  const AttributeProto* attribute = find(name, AttributeProto::STRING, "a string");
  return attribute == nullptr ? otherwise : attribute->s();
}

std::optional<Ints> Node::integers(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::INTS, "integers");
  if (attribute == nullptr) return std::nullopt;
  return Ints(attribute->ints().begin(), attribute->ints().end());
}

std::vector<float> Node::reals(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::FLOATS, "floats");
  if (attribute == nullptr) return {};
  return {attribute->floats().begin(), attribute->floats().end()};
}

std::vector<std::string> Node::texts(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::STRINGS, "strings");
  if (attribute == nullptr) return {};
  return {attribute->strings().begin(), attribute->strings().end()};
}

const onnx::TensorProto* Node::tensor(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::TENSOR, "a tensor");
  return attribute == nullptr ? nullptr : &attribute->t();
}

const onnx::TypeProto* Node::type(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::TYPE_PROTO, "a type");
  return attribute == nullptr ? nullptr : &attribute->tp();
}

const onnx::GraphProto& Node::graph(const std::string& name) const {
  const AttributeProto* attribute = find(name, AttributeProto::GRAPH, "a graph");
  if (attribute == nullptr) throw ParseError("attribute " + name + ": expected a graph, found none");
  return attribute->g();
}

}  // namespace millrace::importing
