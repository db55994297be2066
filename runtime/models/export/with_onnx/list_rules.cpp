// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/rules.h>

/// Lists are ONNX sequences, optionals are ONNX optionals.
namespace millrace::exporting {
namespace {

std::string position(Exporter& to, const Op& op, std::size_t input) {
  return Exporter::has(op, input) ? to.scalar(op.inputs[input]) : std::string();
}

void of(Exporter& to, const Op& op, const char* onnx) {
  if (!op.inputs.empty()) return to.give(op, onnx, to.all_in(op));
  to.give(op, "SequenceEmpty", {}, {{"dtype", std::int64_t{onnx_type(to.type(op.outputs[0]).dtype)}}});
}

void insert(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, {to.in(op, 0), to.in(op, 1), position(to, op, 2)}); }
void at(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, {to.in(op, 0), position(to, op, 1)}); }
void same(Exporter& to, const Op& op, const char* onnx) { to.give(op, onnx, to.all_in(op)); }

void split(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op),
          {{"axis", op.attributes.get_or("axis", std::int64_t{0})},
           {"keepdims", std::int64_t{op.attributes.get_or("keepdims", true) ? 1 : 0}}});
}

void join(Exporter& to, const Op& op, const char* onnx) {
  to.give(op, onnx, to.all_in(op),
          {{"axis", op.attributes.get<std::int64_t>("axis")}, {"new_axis", std::int64_t{op.type == "list_stack" ? 1 : 0}}});
}

void optional_of(Exporter& to, const Op& op, const char* onnx) {
  if (Exporter::has(op, 0)) return to.give(op, onnx, to.all_in(op));
  to.give_typed(op, onnx, to.type(op.outputs[0]).held());
}

constexpr Rule list_table[] = {
    {"list_of", of, "SequenceConstruct"},         {"list_insert", insert, "SequenceInsert"},
    {"list_erase", at, "SequenceErase"},          {"list_at", at, "SequenceAt"},
    {"list_length", same, "SequenceLength"},      {"list_split", split, "SplitToSequence"},
    {"list_concat", join, "ConcatFromSequence"},  {"list_stack", join, "ConcatFromSequence"},
    {"optional_of", optional_of, "Optional"},     {"optional_get", same, "OptionalGetElement"},
    {"optional_has", same, "OptionalHasElement"},
};

}  // namespace

std::span<const Rule> list_rules() { return list_table; }

}  // namespace millrace::exporting
