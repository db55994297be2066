// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/files/utf8.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

/// Characters that a terminal or an editor obeys or hides: controls, marks of direction, separators of lines, marks without width.
bool is_hidden(std::string_view letter) {
  const auto first = static_cast<unsigned char>(letter[0]);
  if (first < 0x20 || first == 0x7f || (letter >= "\xc2\x80" && letter < "\xc2\xa0")) return true;
  constexpr std::pair<std::string_view, std::string_view> hidden[] = {{"\xd8\x9c", "\xd8\x9c"},           // U+061C
                                                                      {"\xe2\x80\x8b", "\xe2\x80\x8f"},   // U+200B to U+200F
                                                                      {"\xe2\x80\xa8", "\xe2\x80\xae"},   // U+2028 to U+202E
                                                                      {"\xe2\x81\xa0", "\xe2\x81\xaf"},   // U+2060 to U+206F
                                                                      {"\xef\xbb\xbf", "\xef\xbb\xbf"}};  // U+FEFF
  return std::any_of(std::begin(hidden), std::end(hidden), [&](const auto& range) {
    return letter.size() == range.first.size() && letter >= range.first && letter <= range.second;
  });
}

/// Bytes that are no UTF-8 are escaped, too.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(std::string_view(text).substr(at));
    const std::string_view letter = std::string_view(text).substr(at, std::max<std::size_t>(1, length));
    at += letter.size();
    if (letter == "\n") {
      out += "\\n";
    } else if (length == 0 || is_hidden(letter)) {
      for (const char c : letter) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      if (letter == "\"" || letter == "\\") out += '\\';
      out += letter;
    }
  }
  return out + "\"";
}

/// Shortest text that reads back to the same value, always recognisable as a float. A NaN keeps its bits.
template <class Float, class Bits>
std::string float_text(Float value) {
  if (std::isnan(value)) {
    Bits bits{};
    std::memcpy(&bits, &value, sizeof bits);
    return fmt::format("nan:{:x}", bits);
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".ein") == std::string::npos) text += ".0";
  return text;
}

template <class T>
std::string element_text(T value) {
  if constexpr (std::is_same_v<T, double>)
    return float_text<double, std::uint64_t>(value);
  else if constexpr (std::is_same_v<T, float>)
    return float_text<float, std::uint32_t>(value);
  else if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
    return fmt::format("0x{:04x}", value.bits);
  else if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else
    return fmt::format("{}", static_cast<std::int64_t>(value));
}

template <class Range, class F>
std::string joined(const Range& range, F&& text) {
  std::string out;
  for (const auto& item : range) out += (out.empty() ? "" : ", ") + text(item);
  return out;
}

std::string tensor_text(const Tensor& tensor) {
  const std::string values = visit_dtype(tensor.dtype(), [&]<class T>(std::type_identity<T>) {
    std::string out;
    for (const T value : tensor.to_vector<T>()) out += (out.empty() ? "" : ", ") + element_text(value);
    return out;
  });
  return fmt::format("{}{}({})", name_of(tensor.dtype()), tensor.dims().to_string(), values);
}

struct AttributeText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return element_text(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(DType value) const { return std::string(name_of(value)); }
  std::string operator()(BlockId value) const { return "@" + std::to_string(value.index); }
  std::string operator()(const std::vector<std::int64_t>& values) const {
    return "ints[" + joined(values, [](std::int64_t v) { return std::to_string(v); }) + "]";
  }
  std::string operator()(const std::vector<double>& values) const { return "floats[" + joined(values, element_text<double>) + "]"; }
  std::string operator()(const std::vector<std::string>& values) const { return "strings[" + joined(values, quoted) + "]"; }
  std::string operator()(const Tensor& value) const { return tensor_text(value); }
};

std::string attribute_name(const std::string& name) { return Program::is_name(name) ? name : quoted(name); }

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string run() {
    out_ = fmt::format("millrace 1 {}\n", quoted(program_.title()));
    for (const Program::Port& port : program_.inputs())
      out_ += fmt::format("input {} = {}{}\n", quoted(port.name), declared(port.var), extents(port.extents));
    for (const auto& [var, value] : program_.parameters()) out_ += fmt::format("weight {}\n", declared(var));
    for (const Block& block : program_.blocks()) print_block(block);
    for (const Program::Port& port : program_.outputs()) out_ += fmt::format("output {} = {}\n", quoted(port.name), name(port.var));
    return std::move(out_);
  }

 private:
  std::string name(VarId id) const { return id == no_var ? "_" : program_.var(id).name; }
  std::string declared(VarId id) const { return name(id) + ": " + program_.var(id).type.to_string(); }
  static std::string extents(const std::vector<std::string>& names) {
    return names.empty() ? "" : fmt::format(" {{extents={}}}", AttributeText()(names));
  }
  std::string list(std::span<const VarId> ids) const {
    return joined(ids, [&](VarId id) { return name(id); });
  }

  void print_block(const Block& block) {
    out_ += fmt::format("block {{ idx: {} parent_idx: {}\n", block.idx, block.parent_idx);
    if (!block.params.empty()) out_ += fmt::format("  params {}\n", joined(block.params, [&](VarId id) { return declared(id); }));
    for (const Op& op : block.ops) print_op(op);
    if (!block.results.empty()) out_ += fmt::format("  results {}\n", list(block.results));
    out_ += "}\n";
  }

  void print_op(const Op& op) {
    const OpDef& def = program_.registry().at(op.type);
    std::string inputs;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const bool open = i + 1 >= def.inputs.size() && !def.inputs.empty() && def.inputs.back().ends_with("...");
      if (!open && i >= def.inputs.size())
        throw ProgramError(fmt::format("op {}: expected at most {} inputs, found {}", op.type, def.inputs.size(), op.inputs.size()));
      if (!open && op.inputs[i] == no_var) continue;
      if (!inputs.empty()) inputs += ", ";
      if (!open) {
        inputs += fmt::format("{}={}", trimmed(def.inputs[i]), name(op.inputs[i]));
        continue;
      }
      inputs += fmt::format("{}=[{}]", trimmed(def.inputs.back()), list(std::span(op.inputs).subspan(i)));
      break;
    }
    out_ += "  ";
    if (!op.outputs.empty()) out_ += joined(op.outputs, [&](VarId id) { return declared(id); }) + " = ";
    out_ += fmt::format("{}({})", op.type, inputs);
    if (op.attributes.size() > 0)
      out_ += " {" +
              joined(op.attributes,
                     [](const auto& entry) { return attribute_name(entry.first) + "=" + std::visit(AttributeText{}, entry.second); }) +
              "}";
    if (!op.label.empty()) out_ += " " + quoted(op.label);
    out_ += "\n";
  }

  static std::string trimmed(std::string slot) {
    while (!slot.empty() && (slot.back() == '.' || slot.back() == '?')) slot.pop_back();
    return slot;
  }

  const Program& program_;
  std::string out_;
};

}  // namespace

std::string print(const Program& program) {
  static_cast<void>(program.registry());  // ProgramError: a program that was moved from has none
  return Printer(program).run();
}
std::string Program::to_string() const { return print(*this); }

}  // namespace millrace
