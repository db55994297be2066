// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/counted_loop.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <millrace/runtime/models/import/with_onnx/loop_body.h>

namespace millrace::importing {
namespace {

/// The one integer that a tensor holds, of any dtype.
std::optional<std::int64_t> integer_of(const Tensor* value) {
  if (value == nullptr || value->elements() != 1 || value->dtype() == DType::boolean) return std::nullopt;
  if (!is_floating(value->dtype())) return value->item_int();
  const double number = value->item();
  constexpr double exact = 1 << 24;
  return number == static_cast<double>(static_cast<std::int64_t>(std::clamp(number, -exact, exact)))
             ? std::optional(static_cast<std::int64_t>(number))
             : std::nullopt;
}

class CountedBody {
 public:
  CountedBody(Importer& to, const Node& node, const onnx::GraphProto& graph) : to_(to), node_(node), graph_(graph), body_(to, graph) {
    for (std::size_t i = 0; i < states(); ++i) {
      if (body_.source(handed_on(i)) == taken(i) && is_shared(i)) constants_.insert(i);
      if (counts(i)) counters_.insert(i);
    }
  }

  std::size_t states() const { return node_.inputs() > 2 ? node_.inputs() - 2 : 0; }
  const std::string& taken(std::size_t state) const { return body_.taken(state); }
  const std::string& handed_on(std::size_t state) const { return body_.handed_on(state); }
  const std::set<std::size_t>& constants() const { return constants_; }
  const std::set<std::size_t>& counters() const { return counters_; }

  /// The limits that the number of iterations meets first, as vars outside; none where the condition says something else.
  std::optional<std::vector<VarId>> limits() {
    std::vector<VarId> later, first;
    std::vector<VarId> weaker;
    if (!node_.has(1) || !inner_limits(graph_.output(0).name(), later, weaker, 0) || later.empty()) return std::nullopt;
    const auto among = [&](const std::vector<VarId>& all, VarId one) {
      return std::any_of(all.begin(), all.end(), [&](VarId other) { return equal(one, other); });
    };
    if (!std::all_of(weaker.begin(), weaker.end(), [&](VarId one) { return among(later, one); })) return std::nullopt;
    if (const Tensor* began = to_.known(node_, 1); began != nullptr) {
      // Limits that the file holds were compared already.
      if (began->dtype() != DType::boolean || began->elements() != 1 || began->item() == 0.0) return std::nullopt;
      const auto positive = [&](VarId limit) { return integer_of(to_.program().constant(to_.source(limit, true))).value_or(0) > 0; };
      return std::all_of(later.begin(), later.end(), positive) ? std::optional(later) : std::nullopt;
    }
    if (!outer_limits(to_.in(node_, 1), first, 0)) return std::nullopt;
    const bool same = std::all_of(first.begin(), first.end(), [&](VarId one) { return among(later, one); }) &&
                      std::all_of(later.begin(), later.end(), [&](VarId one) { return among(first, one); });
    return same ? std::optional(later) : std::nullopt;
  }

  bool equal(VarId a, VarId b) const {
    a = to_.source(a, true);
    b = to_.source(b, true);
    if (a == b) return true;
    const auto one = integer_of(to_.program().constant(a)), other = integer_of(to_.program().constant(b));
    if (one && other) return *one == *other;
    const auto left = to_.elements(a), right = to_.elements(b);
    return left && right && left->size() == 1 && right->size() == 1 && left->front().of != no_var && right->front().of != no_var &&
           to_.origin(left->front().of, left->front().axis) == to_.origin(right->front().of, right->front().axis);
  }

 private:
  /// The name of the value behind copies and casts.
  std::string behind_casts(const std::string& name) const { return body_.source(name, {"Identity", "Cast"}); }
  std::optional<std::int64_t> number(const std::string& name) const {
    const std::optional<Tensor> value = body_.constant(body_.source(name));
    return integer_of(value ? &*value : nullptr);
  }
  /// Whether a value that stays is the same for all rows, or one that iterations take steps of. One with an open extent may have a row for each sequence:
  /// such a value is a state, which loops know how to take apart.
  bool is_shared(std::size_t state) {
    if (to_.known(node_, 2 + state) != nullptr) return true;
    const VarType& type = to_.type(to_.in(node_, 2 + state));
    if (!type.is_tensor() || !type.shape) return false;
    if (std::none_of(type.shape->begin(), type.shape->end(), [](std::int64_t extent) { return extent == DDim::unknown; })) return true;
    return std::any_of(graph_.node().begin(), graph_.node().end(),
                       [&](const onnx::NodeProto& proto) { return is_node(&proto, "Gather") && proto.input(0) == taken(state); });
  }
  /// Whether a state counts from 0.
  bool counts(std::size_t state) const {
    if (graph_.input(0).type().tensor_type().shape().dim_size() != 0) return false;  // numbers its iterations by lists of one
    const onnx::NodeProto* sum = body_.maker(body_.source(handed_on(state)));
    if (!is_node(sum, "Add") || sum->input_size() != 2) return false;
    for (const int side : {0, 1})
      if (body_.source(sum->input(side)) == taken(state) && number(sum->input(1 - side)) == 1) {
        const Tensor* begin = to_.known(node_, 2 + state);
        return begin != nullptr && begin->rank() == 0 && (begin->dtype() == DType::i64 || begin->dtype() == DType::i32) &&
               begin->item_int() == 0;
      }
    return false;
  }

  /// Takes a condition of the body apart. A limit of the next iteration's number goes to `later`, one of this iteration's number to `weaker`. False: the
  /// condition compares something else.
  bool inner_limits(const std::string& given, std::vector<VarId>& later, std::vector<VarId>& weaker, int depth) {
    constexpr int deepest = 8;
    const onnx::NodeProto* proto = body_.maker(body_.source(given));
    if (depth > deepest || proto == nullptr || proto->input_size() != 2) return false;
    if (is_node(proto, "And"))
      return inner_limits(proto->input(0), later, weaker, depth + 1) && inner_limits(proto->input(1), later, weaker, depth + 1);
    const bool turned = is_node(proto, "Greater");
    if (!turned && !is_node(proto, "Less")) return false;
    const std::string count = behind_casts(proto->input(turned ? 1 : 0));
    const VarId limit = outside(proto->input(turned ? 0 : 1));
    if (limit == no_var) return false;
    for (const std::size_t i : counters_) {
      if (count == behind_casts(handed_on(i))) return later.push_back(limit), true;
      if (count == taken(i)) return weaker.push_back(limit), true;
    }
    if (count == body_.count()) return weaker.push_back(limit), true;
    return false;
  }
  /// The integer outside that a name of the body is; `no_var`: none.
  VarId outside(const std::string& given) {
    const std::string name = behind_casts(given);
    VarId found = no_var;
    if (const auto value = number(name)) {
      found = to_.literal(Tensor::scalar(*value));
    } else if (const auto input = body_.input(name)) {
      if (*input >= 2 && constants_.contains(*input - 2)) found = to_.in(node_, *input);
    } else if (!body_.has(name)) {
      found = to_.named(name);
    }
    if (found == no_var) return found;
    const VarType& type = to_.type(found);
    const bool counted =
        type.is_tensor() && (type.dtype == DType::i64 || type.dtype == DType::i32) && type.shape && type.shape->elements() == 1;
    return counted ? found : no_var;
  }
  /// The limits that a condition outside compares 0 with.
  bool outer_limits(VarId condition, std::vector<VarId>& limits, int depth) {
    constexpr int deepest = 8;
    const Op* op = to_.maker(to_.copied(condition));
    if (op == nullptr || depth > deepest) return false;
    const std::vector<VarId> inputs = op->inputs;  // a copy: ops may be appended
    if (op->type == "logical_and") return outer_limits(inputs[0], limits, depth + 1) && outer_limits(inputs[1], limits, depth + 1);
    if (op->type != "less" && op->type != "greater") return false;
    const bool turned = op->type == "greater";
    const VarId zero = inputs[turned ? 1 : 0], limit = inputs[turned ? 0 : 1];
    if (integer_of(to_.program().constant(to_.source(zero, true))) != 0) return false;
    limits.push_back(limit);
    return true;
  }

  Importer& to_;
  const Node& node_;
  const onnx::GraphProto& graph_;
  LoopBody body_;
  std::set<std::size_t> constants_, counters_;
};

/// One number of i64: the least of the limits, and of `most`, where that is one.
VarId least(Importer& to, const CountedBody& body, const std::vector<VarId>& limits, VarId most) {
  const auto number = [&](VarId x) {
    if (to.type(x).rank() != 0) x = to.emit1("reshape", {x}, {{"shape", Ints{}}});
    return to.type(x).dtype == DType::i64 ? x : to.emit1("cast", {x}, {{"to", DType::i64}});
  };
  std::vector<VarId> apart;
  for (const VarId limit : limits)
    if (std::none_of(apart.begin(), apart.end(), [&](VarId one) { return body.equal(one, limit); })) apart.push_back(limit);
  if (most != no_var && std::none_of(apart.begin(), apart.end(), [&](VarId one) { return body.equal(one, most); })) apart.push_back(most);
  VarId made = number(apart[0]);
  for (std::size_t i = 1; i < apart.size(); ++i) made = to.emit1("minimum", {made, number(apart[i])});
  return made;
}

onnx::NodeProto renamed(const std::string& op, const std::string& from, const std::string& to) {
  onnx::NodeProto made;
  made.set_op_type(op);
  made.set_name(to);
  made.add_input(from);
  made.add_output(to);
  return made;
}

}  // namespace

const onnx::NodeProto* counted_loop(Importer& to, const Node& node, const onnx::GraphProto& graph) {
  CountedBody body(to, node, graph);
  const std::optional<std::vector<VarId>> limits = body.limits();
  std::vector<std::size_t> left_out;
  std::vector<onnx::NodeProto> values;  // of the states that are left out
  for (std::size_t i = body.states(); i-- > 0;) {
    if (body.constants().contains(i)) {
      // The value of outside gets a name of its own: its name there may be that of another state in the body.
      const std::string outside = name_beside(node, graph.output(1 + static_cast<int>(i)).name() + " outside");
      to.bind(Node(renamed("Identity", "", outside)), 0, to.in(node, 2 + i));
      values.push_back(renamed("Identity", outside, body.taken(i)));
    } else if (body.counters().contains(i) && (limits || !node.wants(i))) {
      values.push_back(renamed("Cast", graph.input(0).name(), body.taken(i)));
      onnx::AttributeProto& type = *values.back().add_attribute();
      type.set_name("to");
      type.set_type(onnx::AttributeProto::INT);
      type.set_i(to.known(node, 2 + i)->dtype() == DType::i64 ? onnx::TensorProto::INT64 : onnx::TensorProto::INT32);
    } else {
      continue;
    }
    left_out.push_back(i);
  }
  if (left_out.empty() && !limits) return nullptr;
  const std::string trips = name_beside(node, "trips");
  VarId count = no_var;
  if (limits) {
    const std::optional<Ints> known = node.has(0) ? to.known_integers(node, 0) : std::nullopt;
    const bool endless = !node.has(0) || (known && known->size() == 1 && known->front() >= std::numeric_limits<std::int32_t>::max());
    count = least(to, body, *limits, endless ? no_var : to.in(node, 0));
    const onnx::NodeProto named = renamed("Identity", "", trips);
    to.bind(Node(named), 0, count);
  }
  for (const std::size_t i : left_out) {
    if (!node.wants(i)) continue;
    const VarId first = to.in(node, 2 + i);
    if (body.constants().contains(i)) {
      to.bind(node, i, first);
      continue;
    }
    const VarId last = to.emit1("maximum", {count, to.literal(Tensor::scalar<std::int64_t>(0))});
    to.bind(node, i, to.type(first).dtype == DType::i64 ? last : to.emit1("cast", {last}, {{"to", to.type(first).dtype}}));
  }
  // A body within a body is imported again where extents of the outer one grow, and other states may stay then.
  std::string kind = limits ? "counted" : "";
  for (const std::size_t state : left_out) kind += " " + std::to_string(state);
  std::unique_ptr<onnx::NodeProto>& form = to.other_form(graph, kind);
  if (form != nullptr) return form.get();
  form = std::make_unique<onnx::NodeProto>(node.proto());
  for (const std::size_t state : left_out) erase_state(*form, state);
  onnx::GraphProto* made = &body_of(*form);
  auto& nodes = *made->mutable_node();
  for (onnx::NodeProto& value : values) *nodes.Add() = std::move(value);
  std::rotate(nodes.begin(), nodes.end() - std::ssize(values), nodes.end());
  if (limits) {
    form->set_input(0, trips);
    form->set_input(1, "");
    made->mutable_output(0)->set_name(made->input(1).name());
  }
  return form.get();
}

}  // namespace millrace::importing
