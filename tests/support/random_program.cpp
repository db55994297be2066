// SPDX-License-Identifier: Apache-2.0
#include "support/random_program.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

#include "support/straight_line.h"

namespace millrace::testing {
namespace {

namespace b = build;

constexpr DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean};

template <class Range>
auto& one_of(Random& random, const Range& range) {
  return range[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(std::size(range)) - 1))];
}

DDim random_dims(Random& random, bool open) {
  std::vector<std::int64_t> extents(static_cast<std::size_t>(random.between(0, 3)));
  for (std::int64_t& extent : extents) extent = open && random.between(0, 2) == 0 ? DDim::unknown : random.between(0, 3);
  return make_ddim(extents);
}

VarType random_type(Random& random) {
  const DType dtype = one_of(random, dtypes);
  if (random.between(0, 7) == 0) return VarType::unranked(dtype);
  VarType type(dtype, random_dims(random, true));
  if (type.rank() > 0) type.lod_depth = static_cast<int>(random.between(0, 3));
  return type;
}

double odd_double(Random& random) {
  using Limits = std::numeric_limits<double>;
  static constexpr double odd[] = {0.0,
                                   -0.0,
                                   1.0,
                                   -1.0,
                                   1e16,
                                   1e22,
                                   123456789012345680.0,
                                   0.1,
                                   Limits::infinity(),
                                   -Limits::infinity(),
                                   Limits::min(),
                                   Limits::denorm_min(),
                                   Limits::max(),
                                   Limits::lowest(),
                                   5e-310,
                                   Limits::epsilon()};
  if (random.coin()) return one_of(random, odd);
  const std::uint64_t bits = random.next();  // a NaN with a payload now and then, else anything
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::int64_t odd_integer(Random& random) {
  static constexpr std::int64_t odd[] = {0, -1, 1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  return random.coin() ? one_of(random, odd) : static_cast<std::int64_t>(random.next());
}

template <class T, class F>
std::vector<T> some(Random& random, F&& make) {
  std::vector<T> values;
  for (std::int64_t left = random.between(0, 4); left > 0; --left) values.push_back(make(random));
  return values;
}

Attribute random_attribute(Random& random) {
  switch (random.between(0, 9)) {
    case 0: return random.coin();
    case 1: return odd_integer(random);
    case 2: return odd_double(random);
    case 3: return random_text(random);
    case 4: return one_of(random, dtypes);
    case 5: return some<std::int64_t>(random, odd_integer);
    case 6: return some<double>(random, odd_double);
    case 7: return some<std::string>(random, random_text);
    default: return random_bits(random, one_of(random, dtypes), random_dims(random, false));
  }
}

void infer_any(InferContext& context) {
  const Attributes& attributes = context.attributes();
  const auto& shape = attributes.get<std::vector<std::int64_t>>("shape");
  for (std::int64_t left = attributes.get<std::int64_t>("outputs"); left > 0; --left)
    context.result(VarType(attributes.get<DType>("dtype"), make_ddim(shape)));
}

class Maker {
 public:
  explicit Maker(Random& random) : random_(random) {}

  Program make() {
    Program program(ops_and_any());
    program.set_title(random_text(random_));
    const b::Guard guard(program);
    count_ = b::input("count", VarType(DType::i64, {}));
    for (std::int64_t left = random_.between(0, 3); left > 0; --left) seen_.push_back(b::input(port_name(), random_type(random_)));
    for (std::int64_t left = random_.between(0, 3); left > 0; --left)
      seen_.push_back(b::parameter(name(), random_bits(random_, one_of(random_, dtypes), random_dims(random_, false))));
    seen_.push_back(count_);
    b::input("array" + port(),
             random_.coin() ? VarType::open_array(random_.coin()) : VarType::array_of(DType::f32, DDim{DDim::unknown, 2}, true));
    statements(3);
    for (std::int64_t left = random_.between(0, 3); left > 0; --left) b::output(port_name(), one_of(random_, seen_));
    return program;
  }

 private:
  std::string port() { return std::to_string(ports_++); }
  /// Any text without NUL, which names of inputs and outputs do not hold.
  std::string port_name() {
    std::string text = random_text(random_);
    std::erase(text, '\0');
    return text + port();
  }
  std::string name() {
    static const char* const odd[] = {"v",     "nan", "order", "array", "params", "results", "lod", "ordered", "_",  "true",
                                      "input", "f32", "ints",  "7up",   "a.b/c",  "ä b",     "",    "1e5",     "inf"};
    return one_of(random_, odd);
  }

  void statements(int depth) {
    const std::size_t before = seen_.size();
    for (std::int64_t left = random_.between(1, 5); left > 0; --left) statement(depth);
    if (depth < 3) seen_.resize(before);  // values of a block are not seen behind it
  }
  void statement(int depth) {
    switch (random_.between(0, depth > 0 ? 5 : 2)) {
      case 0: seen_.push_back(b::constant(random_bits(random_, one_of(random_, dtypes), random_dims(random_, false)))); break;
      case 1:
      case 2: any(); break;
      case 3: loop(depth); break;
      case 4: branch(depth); break;
      default: array(); break;
    }
  }

  void any() {
    Attributes attributes{{"outputs", random_.between(0, 3)}, {"dtype", one_of(random_, dtypes)}};
    const DDim shape = random_dims(random_, false);
    attributes.set("shape", std::vector<std::int64_t>(shape.begin(), shape.end()));
    for (std::int64_t left = random_.between(0, 4); left > 0; --left)
      attributes.set(random_.coin() ? name() : random_text(random_), random_attribute(random_));
    std::vector<b::Var> inputs{one_of(random_, seen_)};
    for (std::int64_t left = random_.between(0, 3); left > 0; --left) inputs.push_back(random_.coin() ? b::Var() : one_of(random_, seen_));
    Op op{"any", {}, {}, attributes, random_.coin() ? random_text(random_) : ""};
    for (const b::Var& input : inputs) op.inputs.push_back(input.defined() ? input.id() : no_var);
    const b::Guard& guard = b::Guard::current();
    for (const VarId made : guard.program().append(guard.block(), std::move(op), {name(), name(), name()}))
      seen_.push_back(b::Var::of(made));
  }

  void loop(int depth) {
    b::Var step = b::constant(0);
    b::Var more = b::constant(true);
    b::WhileLoop loop =
        random_.coin() ? b::while_loop({step, more}) : b::while_op(more, {step, more}, {.parallel_iterations = random_.between(1, 4)});
    {
      const auto frame = loop.frame();
      const std::size_t before = seen_.size();
      seen_.push_back(step);
      statements(depth - 1);
      seen_.resize(before);
      if (random_.coin()) loop.break_if(b::equal(step, count_));
      step.update(step + 1);
      more.update(b::less(step, count_));
      loop.break_if(b::logical_not(more));
    }
    seen_.push_back(step);
  }

  void branch(int depth) {
    const auto side = [&] {
      statements(depth - 1);
      return std::vector<b::Var>{b::identity(count_)};
    };
    seen_.push_back(b::if_else(b::less(count_, 3), side, side)[0]);
  }

  void array() {
    const b::TensorArray array = random_.coin() ? b::TensorArray::growable(random_.coin() ? "states" : "") : b::TensorArray(count_);
    array.append(one_of(random_, std::vector<b::Var>{count_}));
    seen_.push_back(random_.coin() ? array.stack() : array.read(count_));
  }

  Random& random_;
  b::Var count_;
  std::vector<b::Var> seen_;
  int ports_ = 0;
};

bool same_bits_of(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

bool same(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  if (const auto* tensor = std::get_if<Tensor>(&a)) return same_bits(*tensor, std::get<Tensor>(b));
  if (const auto* number = std::get_if<double>(&a)) return same_bits_of(*number, std::get<double>(b));
  if (const auto* list = std::get_if<std::vector<double>>(&a)) {
    const auto& other = std::get<std::vector<double>>(b);
    return std::equal(list->begin(), list->end(), other.begin(), other.end(), same_bits_of);
  }
  return std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_same_v<T, Tensor>)
          return false;
        else
          return value == std::get<T>(b);
      },
      a);
}

/// Ids differ from one reading to the next, names do not.
std::vector<std::string> names(const Program& program, const std::vector<VarId>& ids) {
  std::vector<std::string> all;
  for (const VarId id : ids) all.push_back(id == no_var ? "" : program.var(id).name + ": " + program.var(id).type.to_string());
  while (!all.empty() && all.back().empty()) all.pop_back();  // absent inputs at the end need not be said
  return all;
}

std::string difference(const Program& a, const Op& x, const Program& b, const Op& y) {
  if (x.type != y.type || x.label != y.label) return "op " + x.type + " and " + y.type;
  if (names(a, x.inputs) != names(b, y.inputs) || names(a, x.outputs) != names(b, y.outputs)) return "vars of op " + x.type;
  if (x.attributes.size() != y.attributes.size()) return "number of attributes of op " + x.type;
  for (const auto& [name, value] : x.attributes)
    if (!y.attributes.has(name) || !same(value, *y.attributes.find(name))) return "attribute '" + name + "' of op " + x.type;
  return {};
}

std::string difference(const Program& a, const Block& x, const Program& b, const Block& y) {
  const std::string where = " of block " + std::to_string(x.idx);
  if (x.idx != y.idx || x.parent_idx != y.parent_idx) return "numbers" + where;
  if (names(a, x.params) != names(b, y.params) || names(a, x.results) != names(b, y.results)) return "parameters or results" + where;
  if (x.ops.size() != y.ops.size()) return "number of ops" + where;
  for (std::size_t i = 0; i < x.ops.size(); ++i) {
    const std::string found = difference(a, x.ops[i], b, y.ops[i]);
    if (!found.empty()) return found + where;
  }
  return {};
}

bool same_ports(const Program& a, const std::vector<Program::Port>& x, const Program& b, const std::vector<Program::Port>& y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [&](const Program::Port& p, const Program::Port& q) {
    return p.name == q.name && names(a, {p.var}) == names(b, {q.var});
  });
}

}  // namespace

std::shared_ptr<const OpRegistry> ops_and_any() {
  auto ops = std::make_shared<OpRegistry>(*standard_ops());
  OpDef any;
  any.name = "any";
  any.inputs = {"X", "B?", "Xs..."};
  any.outputs = {"Out..."};
  any.infer = infer_any;
  any.passes_lod = false;
  ops->add(std::move(any));
  return ops;
}

Program random_program(Random& random) { return Maker(random).make(); }

std::string random_text(Random& random) {
  static const char* const parts[] = {"a", "\"", "\\", "\n", "\t", "\r",  "\x01", "\x7f", "ä",  "日本",
                                      "=", "{",  "}",  ",",  " ",  "\\n", "@1",   "x41",  "\\x"};
  std::string text;
  for (std::int64_t left = random.between(0, 5); left > 0; --left) text += one_of(random, parts);
  if (random.between(0, 7) == 0) text += '\0';
  return text;
}

Tensor random_bits(Random& random, DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  auto* to = static_cast<unsigned char*>(made.raw_mutable());
  for (std::size_t i = 0; i < made.bytes(); ++i)
    to[i] = static_cast<unsigned char>(dtype == DType::boolean ? random.next() % 2 : random.next());
  made.storage()->mark_written();
  return made;
}

std::string difference(const Program& a, const Program& b) {
  if (a.title() != b.title()) return "title";
  if (a.vars().size() != b.vars().size()) return "number of vars";
  if (a.blocks().size() != b.blocks().size()) return "number of blocks";
  if (!same_ports(a, a.inputs(), b, b.inputs()) || !same_ports(a, a.outputs(), b, b.outputs())) return "ports";
  for (std::size_t i = 0; i < a.blocks().size(); ++i) {
    const std::string found = difference(a, a.blocks()[i], b, b.blocks()[i]);
    if (!found.empty()) return found;
  }
  if (a.parameters().size() != b.parameters().size()) return "number of weights";
  for (const auto& [var, value] : a.parameters()) {
    const Tensor* other = b.parameter(b.find_var(a.var(var).name));
    if (other == nullptr || !same_bits(value, *other)) return "weight " + a.var(var).name;
  }
  return {};
}

}  // namespace millrace::testing
