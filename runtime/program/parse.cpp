// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/internal/check_at.h>
#include <millrace/runtime/program/internal/tokens.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class Bits>
std::optional<Bits> hexadecimal(std::string_view text) {
  Bits bits{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return bits;
}

template <class T>
std::optional<T> element_of(std::string_view text) {
  if constexpr (std::is_same_v<T, bool>) {
    return text == "true" ? std::optional(true) : text == "false" ? std::optional(false) : std::nullopt;
  } else if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    const auto bits = text.starts_with("0x") ? hexadecimal<std::uint16_t>(text.substr(2)) : std::nullopt;
    return bits ? std::optional(T::from_bits(*bits)) : std::nullopt;
  } else {
    return number_of<T>(text);
  }
}

/// A NaN by its bits.
template <class Float>
std::optional<Float> nan_of(std::string_view text) {
  const auto bits = hexadecimal<std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>>(text);
  Float value{};
  if (bits) std::memcpy(&value, &*bits, sizeof value);
  return std::isnan(value) ? std::optional(value) : std::nullopt;
}

/// The most levels of LoD that may be declared: far beyond any data.
constexpr std::int64_t most_levels = 64;

class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, Tensor>& weights, std::shared_ptr<const OpRegistry> registry)
      : tokens_(text), weights_(weights), program_(std::move(registry)) {}

  Program run() {
    try {
      parse();
      check_known();
      resolve();
    } catch (const ProgramError& error) {
      throw ProgramError(located(error));
    } catch (const UnsupportedError&) {
      throw;
    } catch (const Error& error) {
      throw ParseError(located(error));
    }
    return std::move(program_);
  }

 private:
  struct Declared {
    std::string name;
    VarType type;
  };
  /// Ops may name vars of blocks that are printed later (a loop's captured results), so names are resolved at the end.
  struct Unresolved {
    int block = 0;
    std::size_t op = 0;
    std::vector<std::string> inputs;
    int line = 0;
  };
  /// The results of a block, or the line that it begins on.
  struct Results {
    std::vector<std::string> names;
    int line = 0;
  };
  struct Output {
    std::string port;
    std::string name;
    int line = 0;
  };

  /// Errors of tokens say their line themselves; those of the program get the line of the statement that they are about.
  std::string located(const Error& error) const {
    const std::string what = error.what();
    return what.starts_with("program text, line ") ? what : fmt::format("program text, line {}: {}", line_, what);
  }

  void parse() {
    tokens_.expect("millrace");
    if (tokens_.peek() != "1") tokens_.fail("format 1");
    tokens_.take();
    program_.set_title(tokens_.string());
    bool first_block = true;
    while (!tokens_.at_end()) {
      line_ = tokens_.line();
      if (tokens_.accept("input"))
        parse_input();
      else if (tokens_.accept("weight"))
        parse_weight();
      else if (tokens_.accept("block"))
        parse_block(std::exchange(first_block, false));
      else if (tokens_.accept("output"))
        parse_output();
      else if (tokens_.accept("weights"))  // the hash of the weights: storage.h compares it
        tokens_.string();
      else
        tokens_.fail("input, weight, block or output");
    }
  }

  VarType parse_type() {
    if (tokens_.accept("order")) return VarType::order();
    if (tokens_.accept("list")) return parse_list();
    if (tokens_.accept("optional")) {
      tokens_.expect("<");
      const VarType held = tokens_.accept("list") ? parse_list() : parse_element();
      tokens_.expect(">");
      return VarType::optional_of(held);
    }
    const bool array = tokens_.accept("array");
    if (array) tokens_.expect("<");
    VarType type;
    if (array && tokens_.accept("?")) {
      tokens_.expect(">");
      return VarType::open_array(tokens_.accept("ordered"));
    }
    type.dtype = parse_dtype();
    tokens_.expect("[");
    if (tokens_.accept("*"))
      tokens_.expect("]");
    else
      type.shape = extents();
    if (tokens_.accept("lod")) {
      tokens_.expect("=");
      type.lod_depth = static_cast<int>(tokens_.integer(0, most_levels));
    }
    if (array) {
      tokens_.expect(">");
      type.kind = VarKind::array;
    }
    type.ordered = tokens_.accept("ordered");
    return type;
  }
  VarType parse_list() {
    tokens_.expect("<");
    const VarType element = parse_element();
    tokens_.expect(">");
    return VarType::list_of(element);
  }
  /// The element type of a list or an optional: "f32[2, ?]", "f32[*]", or "f32 empty" when that is nothing.
  VarType parse_element() {
    VarType type = VarType::unranked(parse_dtype());
    type.empty = tokens_.accept("empty");
    if (type.empty) return type;
    tokens_.expect("[");
    if (!tokens_.accept("*"))
      type.shape = extents();
    else
      tokens_.expect("]");
    return type;
  }
  DType parse_dtype() {
    if (!tokens_.at_word()) tokens_.fail("a dtype");
    return dtype_named(tokens_.take());
  }
  DDim extents() {
    std::vector<std::int64_t> found;
    while (!tokens_.accept("]")) {
      if (!found.empty()) tokens_.expect(",");
      found.push_back(tokens_.accept("?") ? DDim::unknown : tokens_.integer(0, std::numeric_limits<std::int64_t>::max()));
      if (found.size() > max_rank) tokens_.fail("at most 9 axes");
    }
    return DDim(std::span<const std::int64_t>(found));
  }
  Declared declared() {
    if (!tokens_.at_word() || !Program::is_name(tokens_.peek())) tokens_.fail("a name of letters, digits and _ . / that is no keyword");
    std::string name = tokens_.take();
    tokens_.expect(":");
    return {std::move(name), parse_type()};
  }
  VarId declare(const Declared& var, int block) {
    check_fresh(var.name);
    return program_.add_var(var.name, var.type, block);
  }
  void check_fresh(const std::string& name) const {
    if (program_.find_var(name) != no_var) throw ProgramError("var '" + name + "': expected one declaration, found a second");
  }

  void parse_input() {
    const std::string port = tokens_.string();
    tokens_.expect("=");
    const Declared var = declared();
    check_fresh(var.name);
    std::vector<std::string> extents;
    if (tokens_.accept("{")) {
      for (const char* token : {"extents", "=", "strings"}) tokens_.expect(token);
      extents = strings();
      tokens_.expect("}");
    }
    program_.rename(program_.add_input(port, var.type, std::move(extents)), var.name);
  }
  void parse_weight() {
    const Declared var = declared();
    check_fresh(var.name);
    const auto found = weights_.find(var.name);
    if (found == weights_.end()) throw ParseError("weight '" + var.name + "': expected values of " + var.type.to_string() + ", found none");
    const VarType type(found->second.dtype(), found->second.dims());
    if (!(type == var.type))
      throw ParseError("weight '" + var.name + "': expected " + var.type.to_string() + ", found " + type.to_string());
    program_.rename(program_.add_parameter(var.name, found->second), var.name);
  }
  void parse_output() {
    std::string port = tokens_.string();
    tokens_.expect("=");
    outputs_.push_back({std::move(port), tokens_.word(), line_});
  }

  void parse_block(bool first) {
    tokens_.expect("{");
    tokens_.expect("idx");
    tokens_.expect(":");
    const auto next = first ? 0 : static_cast<int>(program_.blocks().size());
    tokens_.integer(next, next);
    tokens_.expect("parent_idx");
    tokens_.expect(":");
    const auto parent = static_cast<int>(tokens_.integer(first ? -1 : 0, next - 1));
    const int block = first ? 0 : program_.add_block(parent);
    lines_.emplace_back();
    results_.push_back({{}, line_});
    while (!tokens_.accept("}")) {
      line_ = tokens_.line();
      if (tokens_.accept("params"))
        parse_params(block);
      else if (tokens_.accept("results"))
        parse_results(block);
      else
        parse_op(block);
    }
  }
  void parse_params(int block) {
    if (!program_.block(block).params.empty()) tokens_.fail("one list of parameters, not a second, before");
    do {
      const VarId param = declare(declared(), block);
      program_.block(block).params.push_back(param);
    } while (tokens_.accept(","));
  }
  void parse_results(int block) {
    Results& results = results_[static_cast<std::size_t>(block)];
    if (!results.names.empty()) tokens_.fail("one list of results, not a second, before");
    results.line = line_;
    do results.names.push_back(tokens_.word());
    while (tokens_.accept(","));
  }

  void parse_op(int block) {
    Op op;
    std::string first = tokens_.word();
    if (!tokens_.at_string() && tokens_.peek() == "(") {
      op.type = std::move(first);
    } else {
      if (!Program::is_name(first)) tokens_.fail("a name of letters, digits and _ . / that is no keyword, not '" + first + "', before");
      tokens_.expect(":");
      op.outputs.push_back(declare({std::move(first), parse_type()}, block));
      while (tokens_.accept(",")) op.outputs.push_back(declare(declared(), block));
      tokens_.expect("=");
      op.type = tokens_.word();
    }
    const OpDef* def = program_.registry().find(op.type);
    if (def == nullptr) unknown_[op.type].push_back(line_);
    std::vector<std::string> inputs = parse_inputs(op.type, def);
    if (tokens_.accept("{")) op.attributes = parse_attributes();
    if (tokens_.at_string()) op.label = tokens_.take();
    lines_[static_cast<std::size_t>(block)].push_back(line_);
    if (def == nullptr) return;
    program_.append_raw(block, std::move(op));
    unresolved_.push_back({block, program_.block(block).ops.size() - 1, std::move(inputs), line_});
  }

  std::vector<std::string> parse_inputs(const std::string& op, const OpDef* def) {
    std::vector<std::string> inputs;
    tokens_.expect("(");
    for (bool first = true; !tokens_.accept(")"); first = false) {
      if (!first) tokens_.expect(",");
      const std::string slot = tokens_.word();
      const std::size_t index = def == nullptr ? inputs.size() : place_of(op, *def, slot, inputs.size());
      inputs.resize(index, "_");
      tokens_.expect("=");
      if (def == nullptr ? tokens_.peek() != "[" : !def->inputs[index].ends_with("...")) {
        inputs.push_back(tokens_.word());
        continue;
      }
      tokens_.expect("[");
      while (!tokens_.accept("]")) {
        if (inputs.size() > index) tokens_.expect(",");
        inputs.push_back(tokens_.word());
      }
    }
    return inputs;
  }
  /// Where `slot` stands among the op's inputs; they are written in their order.
  std::size_t place_of(const std::string& op, const OpDef& def, const std::string& slot, std::size_t least) const {
    for (std::size_t i = least; i < def.inputs.size(); ++i) {
      const std::string& name = def.inputs[i];
      if (name == slot || name == slot + "?" || name == slot + "...") return i;
    }
    std::string names;
    for (const std::string& name : def.inputs) names += (names.empty() ? "" : ", ") + name;
    tokens_.fail(fmt::format("the inputs of {} in their order ({}), not '{}', before", op, names, slot));
  }

  Attributes parse_attributes() {
    std::vector<std::pair<std::string, Attribute>> entries;
    std::set<std::string> names;
    while (!tokens_.accept("}")) {
      if (!entries.empty()) tokens_.expect(",");
      std::string name = tokens_.at_string() ? tokens_.take() : tokens_.word();
      if (!names.insert(name).second) tokens_.fail("each attribute once, not " + internal::printable(name) + " again, before");
      tokens_.expect("=");
      entries.emplace_back(std::move(name), parse_attribute());
    }
    return Attributes(std::move(entries));
  }

  Attribute parse_attribute() {
    if (tokens_.at_string()) return tokens_.take();
    if (tokens_.accept("@")) return BlockId{static_cast<int>(tokens_.integer(0, std::numeric_limits<int>::max()))};
    if (!tokens_.at_word()) tokens_.fail("a value");
    const std::string& word = tokens_.peek();
    if (tokens_.accept("true")) return true;
    if (tokens_.accept("false")) return false;
    if (tokens_.accept("ints")) return list<std::int64_t>();
    if (tokens_.accept("floats")) return list<double>();
    if (tokens_.accept("strings")) return strings();
    if (word.find_first_not_of("0123456789", word[0] == '-' ? 1 : 0) == std::string::npos) return element<std::int64_t>();
    if (word == "nan" || element_of<double>(word)) return element<double>();
    const DType dtype = parse_dtype();
    if (tokens_.accept("[")) return literal(dtype);
    return dtype;
  }

  template <class T>
  T element() {
    std::optional<T> value = tokens_.at_string() ? std::nullopt : element_of<T>(tokens_.peek());
    if constexpr (std::is_floating_point_v<T>) {
      if (tokens_.accept("nan")) {
        tokens_.expect(":");
        value = tokens_.at_string() ? std::nullopt : nan_of<T>(tokens_.peek());
      }
    }
    if (!value) tokens_.fail("a value of " + std::string(name_of(dtype_of<T>)));
    tokens_.take();
    return *value;
  }
  template <class T>
  std::vector<T> list() {
    tokens_.expect("[");
    std::vector<T> values;
    while (!tokens_.accept("]")) {
      if (!values.empty()) tokens_.expect(",");
      values.push_back(element<T>());
    }
    return values;
  }
  std::vector<std::string> strings() {
    tokens_.expect("[");
    std::vector<std::string> values;
    while (!tokens_.accept("]")) {
      if (!values.empty()) tokens_.expect(",");
      values.push_back(tokens_.string());
    }
    return values;
  }
  Tensor literal(DType dtype) {
    const DDim dims = extents();
    const std::int64_t count = dims.elements();
    tokens_.expect("(");
    return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      std::vector<T> values;
      while (!tokens_.accept(")")) {
        if (!values.empty()) tokens_.expect(",");
        values.push_back(element<T>());
      }
      // Before a tensor of that size is made: the text may declare any.
      if (std::cmp_not_equal(values.size(), count))
        throw ParseError(
            fmt::format("literal of {}{}: expected {} values, found {}", name_of(dtype), dims.to_string(), count, values.size()));
      return Tensor::from(values, dims).read_only();
    });
  }

  /// All unknown ops at once, with the lines they are used on.
  void check_known() const {
    if (unknown_.empty()) return;
    std::string text;
    for (const auto& [op, lines] : unknown_) {
      text += (text.empty() ? "" : "; ") + internal::printable(op) + (lines.size() == 1 ? " (line " : " (lines ");
      for (std::size_t i = 0; i < std::min<std::size_t>(lines.size(), 8); ++i) text += (i == 0 ? "" : ", ") + std::to_string(lines[i]);
      text += lines.size() > 8 ? ", …)" : ")";
    }
    throw UnsupportedError(fmt::format("program text, line {}: expected registered ops, found {} that {} not: {}",
                                       unknown_.begin()->second.front(), unknown_.size(), unknown_.size() == 1 ? "is" : "are", text));
  }

  VarId resolved(const std::string& name) const {
    const VarId id = program_.find_var(name);
    if (id == no_var) throw ParseError("expected a var that is declared, found " + internal::printable(name));
    return id;
  }

  void resolve() {
    for (const Unresolved& at : unresolved_) {
      line_ = at.line;
      Op& op = program_.block(at.block).ops[at.op];
      for (const std::string& name : at.inputs) op.inputs.push_back(name == "_" ? no_var : resolved(name));
    }
    for (std::size_t block = 0; block < results_.size(); ++block) {
      line_ = results_[block].line;
      for (const std::string& name : results_[block].names) program_.block(static_cast<int>(block)).results.push_back(resolved(name));
      lines_[block].push_back(line_);
    }
    for (const Output& output : outputs_) {
      line_ = output.line;
      program_.add_output(output.port, resolved(output.name));
    }
    internal::check_at(program_, [this](int block, std::size_t op) {
      if (std::cmp_less(block, lines_.size())) line_ = lines_[static_cast<std::size_t>(block)][op];
    });
  }

  internal::Tokens tokens_;
  const std::map<std::string, Tensor>& weights_;
  Program program_;
  std::vector<Unresolved> unresolved_;
  std::vector<Results> results_;         ///< of each block
  std::vector<std::vector<int>> lines_;  ///< of each block: those of its ops, and of what it hands back
  std::vector<Output> outputs_;
  std::map<std::string, std::vector<int>> unknown_;
  int line_ = 1;  ///< of the statement at hand
};

}  // namespace

Program parse_program(std::string_view text, const std::map<std::string, Tensor>& weights, std::shared_ptr<const OpRegistry> registry) {
  return Parser(text, weights, std::move(registry)).run();
}

}  // namespace millrace
