// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/text.h>

namespace millrace {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' || c == '-' ||
         c == '+' || c == ':';
}

/// Words, quoted strings and single punctuation marks, with the line each began on.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) { next(); }

  const std::string& peek() const { return token_; }
  bool at_string() const { return is_string_; }
  bool at_end() const { return at_end_; }

  std::string take() {
    std::string taken = std::move(token_);
    next();
    return taken;
  }
  bool accept(std::string_view token) {
    if (at_end_ || is_string_ || token_ != token) return false;
    next();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("'{}'", token));
  }
  std::string word() {
    if (at_end_ || is_string_ || token_.empty() || !is_word(token_[0])) fail("a name");
    return take();
  }
  std::string string() {
    if (!is_string_) fail("a quoted string");
    return take();
  }
  std::int64_t integer() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(token_.data(), token_.data() + token_.size(), value);
    if (at_end_ || is_string_ || error != std::errc{} || end != token_.data() + token_.size()) fail("an integer");
    next();
    return value;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw ParseError(fmt::format("program text, line {}: expected {}, found {}", line_, expected,
                                 at_end_ ? "the end" : "'" + token_.substr(0, 60) + "'"));
  }
  int line() const { return line_; }

 private:
  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      line_ += text_[at_++] == '\n';
    token_.clear();
    is_string_ = false;
    at_end_ = at_ >= text_.size();
    if (at_end_) return;
    if (text_[at_] == '"') return read_string();
    if (!is_word(text_[at_]) || text_[at_] == ':') {
      token_ = text_[at_++];
      return;
    }
    // A colon belongs to a word only inside a number with bits ("nan:7fc00000").
    while (at_ < text_.size() && is_word(text_[at_]) && (text_[at_] != ':' || token_ == "nan" || token_ == "-nan")) token_ += text_[at_++];
  }
  void read_string() {
    is_string_ = true;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      char c = text_[at_];
      if (c == '\n') break;
      if (c == '\\') c = escaped();
      token_ += c;
    }
    if (at_ >= text_.size() || text_[at_] != '"')
      throw ParseError(fmt::format("program text, line {}: expected the end of a quoted string", line_));
    ++at_;
  }
  char escaped() {
    if (++at_ >= text_.size()) return '\0';
    if (text_[at_] == 'n') return '\n';
    if (text_[at_] != 'x') return text_[at_];
    unsigned value = 0;
    const std::size_t end = std::min(at_ + 3, text_.size());
    std::from_chars(text_.data() + at_ + 1, text_.data() + end, value, 16);
    at_ = end - 1;
    return static_cast<char>(value);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::string token_;
  bool is_string_ = false;
  bool at_end_ = false;
};

template <class Float, class Bits>
std::optional<Float> float_of(std::string_view text) {
  if (text.starts_with("nan:")) {
    Bits bits{};
    const auto [end, error] = std::from_chars(text.data() + 4, text.data() + text.size(), bits, 16);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    Float value{};
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  Float value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
std::optional<T> element_of(std::string_view text) {
  if constexpr (std::is_same_v<T, double>)
    return float_of<double, std::uint64_t>(text);
  else if constexpr (std::is_same_v<T, float>)
    return float_of<float, std::uint32_t>(text);
  else if constexpr (std::is_same_v<T, bool>)
    return text == "true" ? std::optional(true) : text == "false" ? std::optional(false) : std::nullopt;
  else if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    std::uint16_t bits = 0;
    if (!text.starts_with("0x")) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return T::from_bits(bits);
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, Tensor>& weights, std::shared_ptr<const OpRegistry> registry)
      : tokens_(text), weights_(weights), program_(std::move(registry)) {}

  Program run() {
    tokens_.expect("millrace");
    if (tokens_.peek() != "1") tokens_.fail("format 1");
    tokens_.take();
    program_.set_title(tokens_.string());
    bool first_block = true;
    while (!tokens_.at_end()) {
      if (tokens_.accept("input"))
        parse_input();
      else if (tokens_.accept("weight"))
        parse_weight();
      else if (tokens_.accept("block"))
        parse_block(std::exchange(first_block, false));
      else if (tokens_.accept("output"))
        parse_output();
      else
        tokens_.fail("input, weight, block or output");
    }
    resolve();
    return std::move(program_);
  }

 private:
  struct Declared {
    std::string name;
    VarType type;
  };
  /// Ops may name vars of blocks that are printed later (a loop's captured results), so names are resolved at the end.
  struct Pending {
    Op op;
    std::vector<std::string> inputs;
    int line;
  };

  VarType parse_type() {
    if (tokens_.accept("order")) return VarType::order();
    const bool array = tokens_.accept("array");
    if (array) tokens_.expect("<");
    VarType type;
    if (array && tokens_.accept("?")) {
      tokens_.expect(">");
      return VarType::open_array(tokens_.accept("ordered"));
    }
    type.dtype = dtype_named(tokens_.word());
    tokens_.expect("[");
    if (tokens_.accept("*")) {
      tokens_.expect("]");
    } else {
      type.shape = DDim(std::span<const std::int64_t>(extents()));
    }
    if (tokens_.accept("lod")) {
      tokens_.expect("=");
      type.lod_depth = static_cast<int>(tokens_.integer());
    }
    if (array) {
      tokens_.expect(">");
      type.kind = VarKind::array;
    }
    type.ordered = tokens_.accept("ordered");
    return type;
  }
  std::vector<std::int64_t> extents() {
    std::vector<std::int64_t> found;
    while (!tokens_.accept("]")) {
      if (!found.empty()) tokens_.expect(",");
      found.push_back(tokens_.accept("?") ? DDim::unknown : tokens_.integer());
    }
    return found;
  }
  Declared declared() {
    std::string name = tokens_.word();
    tokens_.expect(":");
    return {std::move(name), parse_type()};
  }
  VarId declare(const Declared& var, int block) {
    if (program_.find_var(var.name) != no_var) tokens_.fail("a name that is not taken, not a second '" + var.name + "', before");
    return program_.add_var(var.name, var.type, block);
  }

  void parse_input() {
    const std::string port = tokens_.string();
    tokens_.expect("=");
    const Declared var = declared();
    const VarId id = program_.add_input(port, var.type);
    program_.rename(id, var.name);
  }
  void parse_weight() {
    const Declared var = declared();
    const auto found = weights_.find(var.name);
    if (found == weights_.end()) throw ParseError("program text: expected values of weight '" + var.name + "', found none");
    const VarType type(found->second.dtype(), found->second.dims());
    if (!(type == var.type))
      throw ParseError("program text: weight '" + var.name + "': expected " + var.type.to_string() + ", found " + type.to_string());
    program_.rename(program_.add_parameter(var.name, found->second), var.name);
  }
  void parse_output() {
    const std::string port = tokens_.string();
    tokens_.expect("=");
    outputs_.emplace_back(port, tokens_.word());
  }

  void parse_block(bool first) {
    tokens_.expect("{");
    tokens_.expect("idx");
    tokens_.expect(":");
    const std::int64_t idx = tokens_.integer();
    tokens_.expect("parent_idx");
    tokens_.expect(":");
    const std::int64_t parent = tokens_.integer();
    const auto count = static_cast<std::int64_t>(program_.blocks().size());
    if (idx != (first ? 0 : count) || parent >= idx || parent < -1) tokens_.fail("blocks in order, each after its parent, before");
    const int block = first ? 0 : program_.add_block(static_cast<int>(parent));
    while (!tokens_.accept("}")) {
      if (tokens_.accept("params")) {
        do program_.block(block).params.push_back(declare(declared(), block));
        while (tokens_.accept(","));
      } else if (tokens_.accept("results")) {
        std::vector<std::string> names;
        do names.push_back(tokens_.word());
        while (tokens_.accept(","));
        results_.emplace_back(block, std::move(names));
      } else {
        parse_op(block);
      }
    }
  }

  void parse_op(int block) {
    Pending pending{{}, {}, tokens_.line()};
    std::string first = tokens_.word();
    if (tokens_.peek() == "(") {
      pending.op.type = std::move(first);
    } else {
      tokens_.expect(":");
      Declared var{std::move(first), parse_type()};
      pending.op.outputs.push_back(declare(var, block));
      while (tokens_.accept(",")) pending.op.outputs.push_back(declare(declared(), block));
      tokens_.expect("=");
      pending.op.type = tokens_.word();
    }
    if (program_.registry().find(pending.op.type) == nullptr) tokens_.fail("a registered op, not '" + pending.op.type + "', before");
    parse_inputs(pending);
    if (tokens_.accept("{")) parse_attributes(pending.op.attributes);
    if (tokens_.at_string()) pending.op.label = tokens_.take();
    program_.append_raw(block, pending.op);
    pending_.push_back({block, program_.block(block).ops.size() - 1, std::move(pending.inputs), pending.line});
  }

  void parse_inputs(Pending& pending) {
    const OpDef& def = program_.registry().at(pending.op.type);
    tokens_.expect("(");
    while (!tokens_.accept(")")) {
      if (!pending.inputs.empty()) tokens_.expect(",");
      const std::string slot = tokens_.word();
      const auto at = std::find_if(def.inputs.begin(), def.inputs.end(),
                                   [&](const std::string& name) { return name == slot || name == slot + "?" || name == slot + "..."; });
      const auto index = static_cast<std::size_t>(at - def.inputs.begin());
      if (at == def.inputs.end() || index < pending.inputs.size())
        tokens_.fail("an input of " + pending.op.type + ", not '" + slot + "', before");
      pending.inputs.resize(index, "_");
      tokens_.expect("=");
      if (!at->ends_with("...")) {
        pending.inputs.push_back(tokens_.word());
        continue;
      }
      tokens_.expect("[");
      while (!tokens_.accept("]")) {
        if (pending.inputs.size() > index) tokens_.expect(",");
        pending.inputs.push_back(tokens_.word());
      }
    }
  }

  void parse_attributes(Attributes& attributes) {
    bool more = !tokens_.accept("}");
    while (more) {
      const std::string name = tokens_.word();
      tokens_.expect("=");
      attributes.set(name, parse_attribute());
      more = !tokens_.accept("}");
      if (more) tokens_.expect(",");
    }
  }

  Attribute parse_attribute() {
    if (tokens_.at_string()) return tokens_.take();
    if (tokens_.accept("@")) return BlockId{static_cast<int>(tokens_.integer())};
    const std::string word = tokens_.word();
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "ints") return list<std::int64_t>();
    if (word == "floats") return list<double>();
    if (word == "strings") return strings();
    if (const auto integer = element_of<std::int64_t>(word)) return *integer;
    if (const auto number = element_of<double>(word)) return *number;
    const DType dtype = dtype_named(word);
    if (tokens_.accept("[")) return literal(dtype);
    return dtype;
  }

  template <class T>
  T element() {
    const std::optional<T> value = tokens_.at_string() ? std::nullopt : element_of<T>(tokens_.peek());
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
    const DDim dims{std::span<const std::int64_t>(extents())};
    tokens_.expect("(");
    return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      std::vector<T> values;
      while (!tokens_.accept(")")) {
        if (!values.empty()) tokens_.expect(",");
        values.push_back(element<T>());
      }
      return Tensor::from(values, dims).read_only();
    });
  }

  VarId resolved(const std::string& name, int line) const {
    if (name == "_") return no_var;
    const VarId id = program_.find_var(name);
    if (id == no_var) throw ParseError(fmt::format("program text, line {}: expected a var that is declared, found '{}'", line, name));
    return id;
  }

  void resolve() {
    for (const Unresolved& at : pending_) {
      Op& op = program_.block(at.block).ops[at.op];
      for (const std::string& name : at.inputs) op.inputs.push_back(resolved(name, at.line));
    }
    for (const auto& [block, names] : results_)
      for (const std::string& name : names) program_.block(block).results.push_back(resolved(name, tokens_.line()));
    for (const auto& [port, name] : outputs_) program_.add_output(port, resolved(name, tokens_.line()));
    check(program_);
  }

  struct Unresolved {
    int block;
    std::size_t op;
    std::vector<std::string> inputs;
    int line;
  };
  Tokens tokens_;
  const std::map<std::string, Tensor>& weights_;
  Program program_;
  std::vector<Unresolved> pending_;
  std::vector<std::pair<int, std::vector<std::string>>> results_;
  std::vector<std::pair<std::string, std::string>> outputs_;
};

}  // namespace

Program parse_program(std::string_view text, const std::map<std::string, Tensor>& weights, std::shared_ptr<const OpRegistry> registry) {
  return Parser(text, weights, std::move(registry)).run();
}

}  // namespace millrace
