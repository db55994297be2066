// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/loop_body.h>

#include <algorithm>

#include <millrace/runtime/program/ops/internal/inference.h>

namespace millrace::importing {
namespace {

/// Numbers and short lists of types that hold counts, bounds and conditions. Others are weights, and are not copied to be looked at.
bool is_small(const onnx::TensorProto& proto) {
  const int type = proto.data_type();
  const bool number = type == onnx::TensorProto::INT64 || type == onnx::TensorProto::INT32 || type == onnx::TensorProto::FLOAT;
  return (number || type == onnx::TensorProto::BOOL) && proto.dims_size() <= 1;
}

}  // namespace

LoopBody::LoopBody(Importer& to, const onnx::GraphProto& graph) : to_(to), graph_(graph) {
  for (const onnx::NodeProto& proto : graph.node())
    for (const std::string& output : proto.output()) makers_.emplace(output, &proto);
  for (const onnx::TensorProto& weight : graph.initializer()) weights_.emplace(weight.name(), &weight);
  for (const onnx::ValueInfoProto& input : graph.input()) inputs_.emplace(input.name(), inputs_.size());
}

const onnx::NodeProto* LoopBody::maker(const std::string& name) const {
  const auto found = makers_.find(name);
  return found == makers_.end() ? nullptr : found->second;
}

std::optional<std::size_t> LoopBody::input(const std::string& name) const {
  const auto found = inputs_.find(name);
  return found == inputs_.end() ? std::nullopt : std::optional(found->second);
}

std::string LoopBody::source(std::string name, std::initializer_list<std::string_view> through) const {
  for (int left = graph_.node_size(); left > 0; --left) {  // a graph whose nodes read one another in a circle is refused elsewhere
    const onnx::NodeProto* proto = maker(name);
    if (std::none_of(through.begin(), through.end(), [&](std::string_view op) { return is_node(proto, op); }) || proto->input_size() < 1)
      break;
    name = proto->input(0);
  }
  return name;
}

std::optional<Tensor> LoopBody::constant(const std::string& name) const {
  const onnx::TensorProto* held = nullptr;
  const onnx::NodeProto* proto = maker(name);
  if (const auto weight = weights_.find(name); weight != weights_.end()) held = weight->second;
  if (is_node(proto, "Constant")) held = Node(*proto).tensor("value");
  if (held != nullptr) return is_small(*held) ? std::optional(to_.tensor_of(*held, name)) : std::nullopt;
  const Tensor* known = has(name) ? nullptr : to_.known(name);
  return known == nullptr ? std::nullopt : std::optional(*known);
}

std::optional<Ints> LoopBody::integers(const std::string& name) const {
  const std::optional<Tensor> value = constant(source(name, {"Identity", "Squeeze", "Unsqueeze"}));
  const bool whole = value && (value->dtype() == DType::i64 || value->dtype() == DType::i32);
  return whole ? std::optional(ops::integers_of(*value)) : std::nullopt;
}

LoopBody::Condition LoopBody::condition() const {
  const std::string name = source(graph_.output(0).name(), {"Identity", "Cast"});
  if (name == graph_.input(1).name()) return {.handed_on = true};
  if (const auto value = constant(name); value && value->dtype() == DType::boolean && value->elements() == 1)
    return {.known = value->item() != 0.0};
  return has(name) ? Condition{} : Condition{.outside = to_.named(name)};
}

bool is_node(const onnx::NodeProto* proto, std::string_view op) { return proto != nullptr && Node(*proto).qualified_op() == op; }

std::string name_beside(const Node& loop, const std::string& what) {
  std::size_t wanted = 0;
  while (wanted < loop.outputs() && !loop.wants(wanted)) ++wanted;
  return (wanted < loop.outputs() ? loop.output(wanted) : "") + " " + what;
}

onnx::GraphProto& body_of(onnx::NodeProto& loop) {
  auto& attributes = *loop.mutable_attribute();
  return *std::find_if(attributes.begin(), attributes.end(), [](const auto& attribute) { return attribute.has_g(); })->mutable_g();
}

void erase_state(onnx::NodeProto& loop, std::size_t state) {
  const auto erase = [](auto* list, std::size_t at) {
    if (std::cmp_less(at, list->size())) list->erase(list->begin() + static_cast<int>(at));
  };
  onnx::GraphProto& body = body_of(loop);
  erase(loop.mutable_input(), 2 + state);
  erase(loop.mutable_output(), state);
  erase(body.mutable_input(), 2 + state);
  erase(body.mutable_output(), 1 + state);
}

}  // namespace millrace::importing
