// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <millrace/runtime/program/check.h>
#include <millrace/runtime/program/text.h>

#include "support/program_runs.h"

using namespace millrace;

namespace {

using Ints = std::vector<std::int64_t>;

/// A program of one block that is being written.
struct Lists {
  Program program;
  VarId input(const std::string& name, const VarType& type) { return program.add_input(name, type); }
  VarId op(const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}) {
    return program.append(0, Op{type, std::move(inputs), {}, std::move(attributes), {}}).at(0);
  }
  VarId number(std::int64_t value) { return op("constant", {}, {{"value", Tensor::scalar(value).read_only()}}); }
  std::string type(VarId var) const { return program.var(var).type.to_string(); }
  /// The message of the E that appending throws.
  template <class E = ProgramError>
  std::string refused(const std::string& type, std::vector<VarId> inputs, Attributes attributes = {}) {
    try {
      op(type, std::move(inputs), std::move(attributes));
    } catch (const E& error) {
      return error.what();
    }
    return {};
  }
};

VarType f32(const DDim& dims, int levels = 0) { return {DType::f32, dims, levels}; }
VarType i64(const DDim& dims) { return {DType::i64, dims}; }
Tensor matrix(std::int64_t rows, float first = 1) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * 2; ++i) values.push_back(first + static_cast<float>(i));
  return Tensor::from(values, DDim{rows, 2});
}

template <class E>
std::string failure(const Program& program, const Feeds& feeds) {
  try {
    testing::on_cpu(program, feeds);
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Why an op on inputs of `types` does not run with an empty tensor as input `number`, whose shape nobody knows before.
std::string without_a_number(const std::string& type, const std::vector<Tensor>& inputs, std::size_t number, bool of_array = false) {
  Lists lists;
  std::vector<VarId> vars;
  Feeds feeds;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    vars.push_back(lists.input(name, VarType(inputs[i].dtype(), i == number ? DDim{DDim::unknown} : inputs[i].dims())));
    if (of_array && i == 1) vars.back() = lists.op("tensor_array_unstack", {vars.back()}, {{"axis", std::int64_t{0}}});
    feeds.emplace(name, inputs[i]);
  }
  lists.program.add_output("y", lists.op(type, vars));
  return failure<ShapeError>(lists.program, feeds);
}

/// Rows of x, one by one into a list, then joined; the list is also what the program gives.
constexpr const char* built_by_loop = R"(millrace 1 "rows"
input "x" = x: f32[?, 2]
input "n" = n: i64[]
block { idx: 0 parent_idx: -1
  zero: i64[] = constant() {value=i64[](0)}
  none: list<f32 empty> = list_of() {dtype=f32}
  last: i64[], rows: list<f32[2]> = while(Carried=[zero, none]) {sub_block=@1, parallel_iterations=4}
  y: f32[?, 2] = list_stack(List=rows) {axis=0}
  count: i64[] = list_length(List=rows)
}
block { idx: 1 parent_idx: 0
  params step: i64[], so_far: list<f32[2]>
  one: i64[] = constant() {value=i64[](1)}
  done: bool[] = equal(A=step, B=n)
  break_if(Condition=done, Carried=[step, so_far])
  row: f32[2] = gather(X=x, Index=step) {axis=0}
  doubled: f32[2] = add(A=row, B=row)
  longer: list<f32[2]> = list_insert(List=so_far, X=doubled)
  next: i64[] = add(A=step, B=one)
  results next, longer
}
output "y" = y
output "count" = count
)";

}  // namespace

TEST_CASE("lists are made, changed and read, and their elements keep their shapes") {
  Lists lists;
  const VarId x = lists.input("x", f32({DDim::unknown, 2}));
  const VarId y = lists.input("y", f32({3, 2}));
  const VarId list = lists.op("list_of", {x, y});
  CHECK(lists.type(list) == "list<f32[?, 2]>");
  const VarId longer = lists.op("list_insert", {list, y, lists.number(-2)});
  const VarId shorter = lists.op("list_erase", {longer, lists.number(1)});
  lists.program.add_output("first", lists.op("list_at", {longer, lists.number(0)}));
  lists.program.add_output("length", lists.op("list_length", {longer}));
  lists.program.add_output("rows", lists.op("list_concat", {shorter}, {{"axis", std::int64_t{0}}}));
  CHECK(lists.type(lists.program.outputs()[0].var) == "f32[?, 2]");
  const RunResult result = testing::everywhere(lists.program, {{"x", matrix(1)}, {"y", matrix(3, 10)}}, 20);
  CHECK(result["first"].tensor().to_vector<float>() == matrix(3, 10).to_vector<float>());
  CHECK(result["length"].tensor().item_int() == 3);
  CHECK(result["rows"].dims() == DDim{6, 2});
}

TEST_CASE("a loop carries a list, and the text of such a program reads back") {
  const Program program = parse_program(built_by_loop, {});
  CHECK(print(parse_program(print(program), {})) == print(program));
  const RunResult result = testing::everywhere(program, {{"x", matrix(5)}, {"n", Tensor::scalar<std::int64_t>(4)}}, 100);
  CHECK(result["y"].tensor().to_vector<float>() == std::vector<float>{2, 4, 6, 8, 10, 12, 14, 16});
  CHECK(result["count"].tensor().item_int() == 4);
  CHECK(has(failure<ShapeError>(program, {{"x", matrix(5)}, {"n", Tensor::scalar<std::int64_t>(0)}}),
            "expected a list with elements to join, found an empty one (op list_stack of block 0)"));
}

TEST_CASE("types of lists and optionals are read as they are printed, and nothing else is") {
  const auto of = [](const std::string& type) {
    return print(parse_program("millrace 1 \"t\"\ninput \"x\" = x: " + type + "\nblock { idx: 0 parent_idx: -1\n}\n", {}));
  };
  for (const std::string type : {"list<f32[2, ?]>", "list<i64[*]>", "list<bool[]>", "list<f16 empty>", "optional<f32[2]>",
                                 "optional<f32 empty>", "optional<list<f32[?]>>", "optional<list<i8 empty>>"})
    CHECK(has(of(type), "x: " + type + "\n"));
  for (const std::string type :
       {"list", "list<>", "list<f32>", "list<f32[2] lod=1>", "list<f32[2]> ordered", "list<list<f32[2]>>", "list<?>", "list<order>",
        "optional<optional<f32[2]>>", "optional<array<f32[2]>>", "optional<f32[2]", "list<f32 empty[2]>"})
    CHECK_THROWS_AS(of(type), ParseError);
}

TEST_CASE("a list that is known to be empty fits any elements of its dtype") {
  const VarType empty = VarType::empty_list(DType::f32);
  const VarType rows = VarType::list_of(f32({2, 3}));
  CHECK(fits(empty, rows));
  CHECK_FALSE(fits(rows, empty));
  CHECK(fits(empty, empty));
  CHECK_FALSE(fits(VarType::empty_list(DType::f64), rows));
  CHECK(common(empty, rows) == rows);
  CHECK(common(rows, empty) == rows);
  CHECK(common(rows, VarType::list_of(f32({4, 3}))) == VarType::list_of(f32({DDim::unknown, 3})));
  CHECK_FALSE(fits(rows, f32({2, 3})));
  CHECK_FALSE(fits(VarType::optional_of(f32({2, 3})), f32({2, 3})));
  CHECK(VarType::optional_of(rows).held() == rows);
  CHECK(rows.element() == f32({2, 3}));
}

TEST_CASE("a tensor is split into equal parts, parts of given lengths, or its slices") {
  const auto parts = [](Attributes attributes, const std::vector<Tensor>& lengths = {}) {
    Lists lists;
    std::vector<VarId> inputs{lists.input("x", f32({DDim::unknown, 2}))};
    for (const Tensor& each : lengths) inputs.push_back(lists.input("lengths", VarType(each.dtype(), each.dims())));
    lists.program.add_output("list", lists.op("list_split", inputs, std::move(attributes)));
    Feeds feeds{{"x", matrix(5)}};
    if (!lengths.empty()) feeds.emplace("lengths", lengths[0]);
    std::vector<DDim> dims;
    const RunResult result = testing::on_cpu(lists.program, feeds);
    for (const Tensor& part : result.value("list").list().elements()) dims.push_back(part.dims());
    return dims;
  };
  CHECK(parts({{"axis", std::int64_t{-1}}}) == std::vector<DDim>{{5, 1}, {5, 1}});
  CHECK(parts({{"axis", std::int64_t{1}}, {"keepdims", false}}) == std::vector<DDim>{{5}, {5}});
  CHECK(parts({}, {Tensor::scalar<std::int64_t>(2)}) == std::vector<DDim>{{2, 2}, {2, 2}, {1, 2}});
  CHECK(parts({{"keepdims", false}}, {Tensor::from<std::int32_t>({4, 0, 1})}) == std::vector<DDim>{{4, 2}, {0, 2}, {1, 2}});
  // A scalar length of 1 gives single slices, too. Other lengths leave the axis.
  CHECK(parts({{"keepdims", false}}, {Tensor::scalar<std::int64_t>(1)}) == std::vector<DDim>(5, DDim{2}));
  CHECK(parts({{"keepdims", false}}, {Tensor::from<std::int64_t>({1, 1, 1, 1, 1})}) == std::vector<DDim>(5, DDim{1, 2}));
  CHECK(parts({{"keepdims", false}}, {Tensor::scalar<std::int64_t>(3)}) == std::vector<DDim>{{3, 2}, {2, 2}});
  CHECK_THROWS_WITH_AS(parts({}, {Tensor::scalar<std::int64_t>(0)}), doctest::Contains("expected parts of 1 or more, found 0"),
                       ArgumentError);
  CHECK_THROWS_AS(parts({}, {Tensor::from<std::int64_t>({4, 2})}), ShapeError);
  CHECK_THROWS_AS(parts({}, {Tensor::from<std::int64_t>({6, -1})}), ShapeError);
}

TEST_CASE("what does not fit together is refused when the program is built") {
  Lists lists;
  const VarId x = lists.input("x", f32({2}));
  const VarId ragged = lists.input("ragged", f32({DDim::unknown, 2}, 1));
  const VarId n = lists.input("n", i64({}));
  const VarId list = lists.op("list_of", {x});
  CHECK(has(lists.refused("list_of", {x, n}), "op list_of: expected one dtype, found 'x' of f32[2] and 'n' of i64[]"));
  CHECK(has(lists.refused("list_of", {}), "attribute 'dtype'"));
  CHECK(has(lists.refused("list_of", {list}), "expected a tensor as input Xs[0], found 'list_of' of list<f32[2]>"));
  CHECK(has(lists.refused("list_insert", {list, n}), "expected an element of the list's dtype"));
  CHECK(has(lists.refused("list_insert", {list, ragged}), "would silently lose the LoD of 'ragged'"));
  CHECK(has(lists.refused("list_insert", {x, x}), "expected a list as input List, found 'x' of f32[2]"));
  CHECK(has(lists.refused("list_at", {list, x}), "expected i64 or i32 as input Position"));
  CHECK(has(lists.refused("add", {list, x}), "expected a tensor as input A"));
  CHECK(has(lists.refused("list_concat", {list}, {{"axis", std::int64_t{1}}}), "expected an axis of rank 1, found 1"));
  CHECK(has(lists.refused("list_stack", {list}, {{"axis", std::int64_t{5}}}), "expected an axis of rank 2, found 5"));
  CHECK(has(lists.refused("list_concat", {lists.op("list_of", {n})}, {{"axis", std::int64_t{0}}}), "use list_stack"));
  CHECK(has(lists.refused("optional_get", {x}), "expected an optional as input X"));
  CHECK(has(lists.refused("optional_of", {lists.op("optional_of", {x})}), "expected a tensor as input X"));
}

TEST_CASE("positions and elements that are not there are errors of the run that name op and values") {
  Lists lists;
  const VarId list = lists.input("list", VarType::list_of(VarType::unranked(DType::f32)));
  const VarId at = lists.input("at", i64({}));
  const VarId found = lists.op("list_at", {list, at});
  lists.program.add_output("y", found);
  const auto feeds = [](std::vector<Tensor> elements, std::int64_t position) {
    return Feeds{{"list", TensorList(std::move(elements))}, {"at", Tensor::scalar(position)}};
  };
  CHECK(testing::on_cpu(lists.program, feeds({matrix(1), matrix(2)}, -1))["y"].dims() == DDim{2, 2});
  CHECK(has(failure<IndexError>(lists.program, feeds({matrix(1)}, 1)),
            "list: expected a position from -1 to 0, found 1 (op list_at of block 0)"));
  CHECK(has(failure<IndexError>(lists.program, feeds({}, 0)), "expected a list with elements, found position 0 of an empty one"));
  CHECK(has(failure<DTypeError>(lists.program, feeds({matrix(1), Tensor::scalar<double>(1)}, 0)),
            "run: input 'list[1]': expected f32[*], found f64[]"));
  CHECK(has(failure<ArgumentError>(lists.program, {{"list", matrix(1)}, {"at", Tensor::scalar<std::int64_t>(0)}}),
            "run: input 'list': expected list<f32[*]>, found f32[1, 2]"));
  CHECK(
      has(failure<ArgumentError>(lists.program, {{"list", TensorList()}, {"at", TensorList()}}), "expected i64[], found list<f32 empty>"));
  Lists stacked;
  const VarId mixed = stacked.input("list", VarType::list_of(VarType::unranked(DType::f32)));
  stacked.program.add_output("y", stacked.op("list_stack", {mixed}, {{"axis", std::int64_t{1} << 32}}));
  CHECK_THROWS_AS(testing::on_cpu(stacked.program, {{"list", TensorList({matrix(1)})}}), ProgramError);
  Lists joined;
  const VarId rows = joined.input("list", VarType::list_of(VarType::unranked(DType::f32)));
  joined.program.add_output("y", joined.op("list_stack", {rows}, {{"axis", std::int64_t{-1}}}));
  CHECK(testing::on_cpu(joined.program, {{"list", TensorList({matrix(3), matrix(3, 7)})}})["y"].dims() == DDim{3, 2, 2});
  CHECK(has(failure<ShapeError>(joined.program, {{"list", TensorList({matrix(1), matrix(2)})}}),
            "expected elements of one shape to stack, found f32[1, 2] on cpu and f32[2, 2] on cpu"));
}

TEST_CASE("a list that a loop would make longer for ever ends with an error") {
  std::string text = built_by_loop;
  const std::string test = "done: bool[] = equal(A=step, B=n)";
  text.replace(text.find(test), test.size(), "done: bool[] = less(A=step, B=n)");
  const std::string row = "row: f32[2] = gather(X=x, Index=step) {axis=0}";
  text.replace(text.find(row), row.size(), "row: f32[2] = gather(X=x, Index=n) {axis=0}");
  // Nearly full from the start: a million iterations say no more than four.
  const std::string none = "  none: list<f32 empty> = list_of() {dtype=f32}\n";
  text.replace(text.find(none), none.size(), "");
  const std::string n = "input \"n\" = n: i64[]\n";
  text.replace(text.find(n), n.size(), n + "input \"start\" = none: list<f32[2]>\n");
  const TensorList start(std::vector<Tensor>((1 << 20) - 3, Tensor::from<float>({1, 2}, {2})));
  CHECK(has(failure<ArgumentError>(parse_program(text, {}), {{"x", matrix(1)}, {"n", Tensor::scalar<std::int64_t>(0)}, {"start", start}}),
            "list: expected at most 1048576 elements, found 1048577 (op list_insert of block 1, iteration 3)"));
}

TEST_CASE("an optional holds a tensor, a list or nothing") {
  Lists lists;
  const VarId x = lists.input("x", VarType::optional_of(f32({DDim::unknown, 2})));
  const VarId rows = lists.input("rows", VarType::optional_of(VarType::list_of(f32({DDim::unknown, 2}))));
  CHECK(lists.type(rows) == "optional<list<f32[?, 2]>>");
  lists.program.add_output("has x", lists.op("optional_has", {x}));
  lists.program.add_output("has rows", lists.op("optional_has", {rows}));
  lists.program.add_output("rows", lists.op("identity", {rows}));
  const VarId none = lists.op("optional_of", {}, {{"dtype", DType::f32}, {"list", true}});
  CHECK(lists.type(none) == "optional<list<f32 empty>>");
  lists.program.add_output("none", none);
  RunResult result = testing::on_cpu(lists.program, {{"x", matrix(2)}});
  CHECK(result["has x"].tensor().item() == 1);
  CHECK(result["has rows"].tensor().item() == 0);
  CHECK(result.value("rows").empty());
  CHECK(result.value("none").empty());
  result = testing::on_cpu(lists.program, {{"x", Value()}, {"rows", TensorList({matrix(1), matrix(2)})}});
  CHECK(result["has x"].tensor().item() == 0);
  CHECK(result.value("rows").list().size() == 2);
  CHECK(has(failure<ShapeError>(lists.program, {{"x", Tensor::from<float>({1, 2})}}), "run: input 'x': expected f32[?, 2], found f32[2]"));
  lists.program.add_output("x", lists.op("optional_get", {x}));
  CHECK(has(failure<ArgumentError>(lists.program, {}),
            "expected an optional that holds something, found one that holds nothing (op optional_get of block 0)"));
  check(lists.program);
  CHECK(print(parse_program(print(lists.program), {})) == print(lists.program));
}

TEST_CASE("an op that takes a number refuses an empty tensor, whose shape nobody knew before the run") {
  const Tensor none(DType::i64, DDim{0});
  const Tensor ids = Tensor::from<std::int64_t>({0, 1});
  const std::vector<std::string> said{
      without_a_number("top_k", {matrix(2), none}, 1),
      without_a_number("one_hot", {ids, none, Tensor::from<float>({0, 1})}, 1),
      without_a_number("sequence_mask", {ids, none}, 1),
      without_a_number("boot_gradient", {matrix(2), matrix(2), none, matrix(2)}, 2, true),
  };
  for (const std::string& why : said) CHECK_MESSAGE(has(why, "expected one element, found i64[0]"), why);
}
