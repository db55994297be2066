// SPDX-License-Identifier: Apache-2.0
// Results and refusals of the ops' inferences.
#include <doctest/doctest.h>

#include "support/built.h"
#include "support/straight_line.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr std::int64_t any = DDim::unknown;

VarType f32(const DDim& shape, int levels = 0) { return VarType(DType::f32, shape, levels); }
VarType i64(const DDim& shape) { return VarType(DType::i64, shape); }
VarType boolean(const DDim& shape) { return VarType(DType::boolean, shape); }

}  // namespace

TEST_CASE("elementwise ops broadcast what is known and leave open what is not") {
  CHECK(infer_op("add", {f32({4, 1}), f32({3})})[0] == f32({4, 3}));
  CHECK(infer_op("add", {f32({any, 3}), f32({3})})[0] == f32({any, 3}));
  CHECK(infer_op("add", {f32({any}), f32({1})})[0] == f32({any}));
  CHECK(infer_op("add", {f32({any}), f32({5})})[0] == f32({5}));
  CHECK(infer_op("add", {f32({}), f32({})})[0] == f32({}));
  CHECK(infer_op("mul", {VarType::unranked(DType::f32), f32({3})})[0] == VarType::unranked(DType::f32));
  CHECK(infer_op("less", {f32({2}), f32({2})})[0] == boolean({2}));
  CHECK(infer_op("where", {boolean({4, 1}), f32({3}), f32({})})[0] == f32({4, 3}));
}

TEST_CASE("elementwise ops name both sides when they refuse them") {
  CHECK(says(refusal("add", {f32({4}), f32({3})}), {"op add", "'in0' of f32[4]", "'in1' of f32[3]"}));
  CHECK(says(refusal("add", {f32({4}), i64({4})}), {"'in0' of f32[4]", "'in1' of i64[4]", "cast"}));
  CHECK(says(refusal("logical_and", {f32({4}), f32({4})}), {"op logical_and", "bool", "f32"}));
  CHECK(says(refusal("where", {f32({4}), f32({4}), f32({4})}), {"expected bool", "'in0' of f32[4]"}));
  CHECK(says(refusal("sigmoid", {i64({4})}), {"op sigmoid", "i64"}));
  CHECK(says(refusal("gelu", {f32({4})}, {{"approximate", std::string("much")}}), {"none or tanh", "much"}));
  CHECK(says(refusal("clip", {f32({4}), f32({2})}), {"expected a scalar as input Min", "'in1' of f32[2]"}));
  CHECK(says(refusal("prelu", {f32({4}), f32({2, 4})}), {"slope", "'in1' of f32[2, 4]"}));
}

TEST_CASE("products know the extents that are known, and name both operands when the middle ones differ") {
  CHECK(infer_op("matmul", {f32({any, 3}), f32({3, 5})})[0] == f32({any, 5}));
  CHECK(infer_op("matmul", {f32({3}), f32({3})})[0] == f32({}));
  CHECK(infer_op("matmul", {f32({2, 1, 4, 3}), f32({7, 3, 5})})[0] == f32({2, 7, 4, 5}));
  CHECK(infer_op("matmul", {f32({any, 4, 3}), f32({1, 3, 5})})[0] == f32({any, 4, 5}));
  CHECK(infer_op("matmul", {VarType::unranked(DType::f32), f32({3, 5})})[0] == VarType::unranked(DType::f32));
  CHECK(infer_op("gemm", {f32({3, any}), f32({5, 3}), f32({5})}, {{"trans_a", true}, {"trans_b", true}})[0] == f32({any, 5}));
  CHECK(says(refusal("matmul", {f32({2, 3}), f32({4, 5})}), {"'in0' of f32[2, 3]", "'in1' of f32[4, 5]"}));
  CHECK(says(refusal("matmul", {f32({2, 4, 3}), f32({3, 3, 5})}), {"'in0' of f32[2, 4, 3]", "'in1' of f32[3, 3, 5]"}));
  CHECK(says(refusal("matmul", {f32({}), f32({3})}), {"'in0' of f32[]"}));
  CHECK(says(refusal("matmul", {boolean({3}), boolean({3})}), {"expected numbers"}));
  CHECK(says(refusal("gemm", {f32({2, 3}), f32({3, 5}), f32({4})}), {"to broadcast to [2, 5]", "'in2' of f32[4]"}));
}

TEST_CASE("reductions drop or keep their axes, and refuse what they cannot fold") {
  CHECK(infer_op("reduce", {f32({2, any, 4})}, {{"kind", std::string("sum")}, {"axes", Ints{-1, 0}}, {"keepdims", false}})[0] ==
        f32({any}));
  CHECK(infer_op("reduce", {f32({2, 3})}, {{"kind", std::string("sum")}, {"keepdims", true}})[0] == f32({1, 1}));
  CHECK(infer_op("reduce", {VarType::unranked(DType::f32)}, {{"kind", std::string("sum")}, {"keepdims", false}})[0] == f32({}));
  CHECK(infer_op("argmax", {f32({2, 3})}, {{"axis", std::int64_t{1}}, {"keepdims", false}})[0] == i64({2}));
  CHECK(says(refusal("reduce", {f32({2})}, {{"kind", std::string("median")}}), {"expected one of sum, mean", "median"}));
  CHECK(says(refusal("reduce", {f32({2})}, {{"kind", std::string("sum")}, {"axes", Ints{1}}}), {"rank 1", "found 1"}));
  CHECK(says(refusal("reduce", {f32({2, 3})}, {{"kind", std::string("sum")}, {"axes", Ints{1, -1}}}), {"once", "[1, -1]"}));
  CHECK(says(refusal("reduce", {i64({2})}, {{"kind", std::string("l2")}}), {"'l2'", "i64[2]"}));
  CHECK(says(refusal("softmax", {f32({2})}, {{"axis", std::int64_t{2}}}), {"rank 1", "found 2"}));
  CHECK(says(refusal("layer_norm", {f32({2, 3}), f32({4})}), {"broadcast to [3]", "'in1' of f32[4]"}));
}

TEST_CASE("reshapes follow copied, inferred and open extents") {
  const auto reshaped = [](const DDim& from, const Ints& to) { return infer_op("reshape", {f32(from)}, {{"shape", to}})[0]; };
  CHECK(reshaped({2, 3, 4}, {0, -1}) == f32({2, 12}));
  CHECK(reshaped({any, 3, 4}, {0, -1}) == f32({any, 12}));
  CHECK(reshaped({any, 64}, {-1, 1, 64}) == f32({any, 1, 64}));
  CHECK(reshaped({0, 3}, {0, -1}) == f32({0, 3}));
  CHECK(reshaped({1}, {}) == f32({}));
  CHECK(infer_op("flatten", {f32({2, any, 4})}, {{"axis", std::int64_t{2}}})[0] == f32({any, 4}));
  CHECK(infer_op("reshape_to", {f32({2, 3}), i64({3})})[0] == f32({any, any, any}));
  CHECK(infer_op("reshape_to", {f32({2, 3}), i64({any})})[0] == VarType::unranked(DType::f32));
  CHECK(says(refusal("reshape", {f32({2, 3})}, {{"shape", Ints{4, -1}}}), {"[2, 3]", "[4, -1]"}));
  CHECK(says(refusal("reshape", {f32({2, 3})}, {{"shape", Ints{-1, -1}}}), {"[2, 3]", "[-1, -1]"}));
  CHECK(says(refusal("reshape", {f32({2, 3})}, {{"shape", Ints{5}}}), {"[2, 3]", "[5]"}));
  CHECK(says(refusal("squeeze", {f32({2, 1})}, {{"axes", Ints{0}}}), {"expected 1 element along axis 0", "[2, 1]"}));
  CHECK(says(refusal("unsqueeze", {f32({2})}, {{"axes", Ints{3}}}), {"rank 2", "found 3"}));
  CHECK(says(refusal("transpose", {f32({2, 3})}, {{"perm", Ints{0}}}), {"2 axes", "[0]"}));
  CHECK(says(refusal("transpose", {f32({2, 3})}, {{"perm", Ints{0, 0}}}), {"once", "[0, 0]"}));
}

TEST_CASE("pieces and spreads know their extents") {
  CHECK(infer_op("concat", {f32({2, any}), f32({2, 3})}, {{"axis", std::int64_t{-1}}})[0] == f32({2, any}));
  CHECK(infer_op("concat", {f32({any, 2}), f32({5, 3})}, {{"axis", std::int64_t{1}}})[0] == f32({5, 5}));
  CHECK(infer_op("split", {f32({any, 5})}, {{"axis", std::int64_t{1}}, {"sizes", Ints{2, 3}}})[1] == f32({any, 3}));
  CHECK(infer_op("slice", {f32({7, any})}, {{"starts", Ints{-1}}, {"ends", Ints{-100}}, {"axes", Ints{0}}, {"steps", Ints{-2}}})[0] ==
        f32({4, any}));
  CHECK(infer_op("slice", {f32({7})}, {{"starts", Ints{1}}, {"ends", Ints{100}}, {"steps", Ints{3}}})[0] == f32({2}));
  CHECK(infer_op("pad", {f32({2, any})}, {{"pads", Ints{1, 0, 2, 4}}})[0] == f32({5, any}));
  CHECK(infer_op("pad_by", {f32({2, any}), i64({4})})[0] == f32({any, any}));
  CHECK(infer_op("tile", {f32({2}), i64({1})})[0] == f32({any}));
  CHECK(infer_op("expand", {f32({1, 3}), i64({3})})[0] == f32({any, any, 3}));
  CHECK(says(refusal("concat", {f32({2, 3}), f32({4, 3})}, {{"axis", std::int64_t{1}}}), {"along axis 0", "2 and 4"}));
  CHECK(says(refusal("concat", {f32({2, 3}), f32({4})}, {{"axis", std::int64_t{1}}}), {"rank 2", "'in1' of f32[4]"}));
  CHECK(says(refusal("split", {f32({5})}, {{"axis", std::int64_t{0}}, {"sizes", Ints{2, 4}}}), {"'in0' of f32[5]", "[2, 4]"}));
  CHECK(says(refusal("slice", {f32({5})}, {{"starts", Ints{1}}, {"ends", Ints{2}}, {"steps", Ints{0}}}), {"other than 0", "[0]"}));
  CHECK(says(refusal("slice", {f32({5})}, {{"starts", Ints{1}}, {"ends", Ints{2, 3}}}), {"one length", "[2, 3]"}));
  CHECK(says(refusal("pad", {f32({2, 3})}, {{"pads", Ints{1, 0}}}), {"4 pads", "[1, 0]"}));
  CHECK(says(refusal("pad", {f32({2})}, {{"pads", Ints{-2, -1}}}), {"negative", "f32[2]"}));
  CHECK(says(refusal("pad", {f32({2})}, {{"pads", Ints{1, 1}}, {"mode", std::string("mirror")}}), {"constant, reflect, edge", "mirror"}));
}

TEST_CASE("picks, convolutions and cells name what does not fit") {
  CHECK(infer_op("gather", {f32({4, 5}), i64({2, any})}, {{"axis", std::int64_t{1}}})[0] == f32({4, 2, any}));
  CHECK(infer_op("conv1d", {f32({any, 3, 8}), f32({6, 3, 3})}, {{"stride", std::int64_t{2}}, {"pads", Ints{1, 1}}})[0] == f32({any, 6, 4}));
  CHECK(infer_op("lstm_cell", {f32({any, 3}), f32({2, 4}), f32({2, any}), f32({3, 16}), f32({4, 16}), f32({16})})[0] == f32({2, 4}));
  CHECK(infer_op("one_hot", {i64({3}), i64({}), f32({2})})[0] == f32({3, any}));
  CHECK(infer_op("range", {i64({}), i64({}), i64({})})[0] == i64({any}));
  CHECK(infer_op("cast", {f32({any})}, {{"to", DType::i32}})[0] == VarType(DType::i32, {any}));
  CHECK(infer_op("shape", {f32({any, 2, 3})}, {{"start", std::int64_t{-2}}})[0] == i64({2}));
  CHECK(says(refusal("gather", {f32({4}), f32({2})}), {"i64 or i32 as input Index", "'in1' of f32[2]"}));
  CHECK(says(refusal("gather_elements", {f32({4}), i64({2, 2})}), {"rank 1", "'in1' of i64[2, 2]"}));
  CHECK(says(refusal("conv1d", {f32({1, 4, 8}), f32({6, 3, 3})}), {"expected 3 along axis 1", "'in0' of f32[1, 4, 8]"}));
  CHECK(says(refusal("conv1d", {f32({1, 3, 8}), f32({6, 3, 3})}, {{"pads", Ints{1}}}), {"2 numbers", "[1]"}));
  CHECK(says(refusal("conv1d", {f32({1, 6, 8}), f32({5, 3, 3})}, {{"group", std::int64_t{2}}}), {"2 groups", "f32[5, 3, 3]"}));
  CHECK(says(refusal("lstm_cell", {f32({2, 3}), f32({2, 4}), f32({2, 4}), f32({3, 12}), f32({4, 16})}),
             {"expected 16 along axis 1", "'in3' of f32[3, 12]"}));
  CHECK(says(refusal("lstm_cell", {f32({2, 3}), f32({5, 4}), f32({2, 4}), f32({3, 16}), f32({4, 16})}), {"rows of X and H", "2 and 5"}));
  CHECK(says(refusal("lstm_cell", {f32({2, 3}), f32({2, 4}), f32({2, 4}), f32({3, 16}), f32({4, 16})},
                     {{"activations", std::vector<std::string>{"sigmoid", "tanh", "cosh"}}}),
             {"activations", "cosh"}));
}

TEST_CASE("an absent input and a wrong attribute are named") {
  CHECK(says(refusal("add", {f32({2})}), {"expected input B, found none"}));
  CHECK(says(refusal("reduce", {f32({2})}), {"attribute 'kind'", "found none"}));
  CHECK(says(refusal("reduce", {f32({2})}, {{"kind", std::string("sum")}, {"axes", std::int64_t{0}}}),
             {"attribute 'axes'", "expected integers, found an integer"}));
  CHECK(says(refusal("concat", {}, {{"axis", std::int64_t{0}}}), {"at least one input"}));
}

TEST_CASE("LoD goes with the rows, and an op that would lose it is refused") {
  CHECK(infer_op("sigmoid", {f32({any, 3}, 2)})[0] == f32({any, 3}, 2));
  CHECK(infer_op("matmul", {f32({any, 3}, 1), f32({3, 5})})[0] == f32({any, 5}, 1));
  CHECK(infer_op("embedding", {f32({9, 5}), VarType(DType::i64, {any}, 1)})[0] == f32({any, 5}, 1));
  CHECK(infer_op("drop_lod", {f32({any, 3}, 1)})[0] == f32({any, 3}));
  CHECK(infer_op("reduce", {f32({any, 3}, 1)}, {{"kind", std::string("sum")}, {"axes", Ints{1}}})[0] == f32({any, 1}, 1));
  CHECK(says(refusal("reduce", {f32({any, 3}, 1)}, {{"kind", std::string("sum")}, {"axes", Ints{0}}}),
             {"lose the LoD of 'in0'", "drop_lod", "reduces over the rows"}));
  CHECK(says(refusal("softmax", {f32({any, 3}, 1)}, {{"axis", std::int64_t{0}}}), {"normalises over the rows"}));
  CHECK(says(refusal("transpose", {f32({any, 3}, 1)}), {"lose the LoD"}));
  CHECK(says(refusal("concat", {f32({any, 3}, 1), f32({any, 3}, 1)}, {{"axis", std::int64_t{0}}}), {"one behind the other"}));
  CHECK(says(refusal("reverse", {f32({any, 3}, 1)}, {{"axis", std::int64_t{0}}}), {"reverses the rows"}));
  CHECK(says(refusal("shape", {f32({any, 3}, 1)}), {"how many rows"}));
  CHECK(says(refusal("add", {f32({any, 3}, 1), f32({any, 3}, 2)}), {"'in0' of f32[?, 3] lod=1", "'in1' of f32[?, 3] lod=2"}));
  CHECK(says(refusal("add", {f32({any, 3}, 1), f32({4, 3})}), {"lies along the rows", "'in1' of f32[4, 3]"}));
}

TEST_CASE("unpack lists the levels that are present") {
  const std::vector<VarType> steps = infer_op("unpack", {f32({any, 3}, 2)}, {{"level", std::int64_t{0}}});
  CHECK(steps[0].to_string() == "array<f32[?, 3] lod=1> ordered");
  CHECK(steps[1] == VarType::order());
  CHECK(says(refusal("unpack", {f32({any, 3}, 2)}, {{"level", std::int64_t{2}}}), {"(0, 1)", "found 2"}));
  CHECK(says(refusal("unpack", {f32({any, 3})}), {"there is none", "'in0' of f32[?, 3]"}));
}

TEST_CASE("array ops know the type of a slot") {
  const VarType open = VarType::open_array(false);
  const VarType rows = VarType::array_of(DType::f32, DDim{any, 3}, true);
  const VarType index = i64({});
  CHECK(infer_op("tensor_array", {index})[0].open);
  CHECK(infer_op("tensor_array", {}, {{"growable", true}, {"dtype", DType::f32}, {"shape", Ints{2}}})[0] ==
        VarType::array_of(DType::f32, DDim{2}, false));
  VarType read = f32({any, 3});
  read.ordered = true;
  CHECK(infer_op("tensor_array_read", {rows, index})[0] == read);
  CHECK(infer_op("tensor_array_read", {VarType::open_array(true), index, f32({4, 3})})[0] == read);
  CHECK(infer_op("tensor_array_stack", {VarType::array_of(DType::f32, DDim{2}, false)}, {{"axis", std::int64_t{-1}}})[0] == f32({2, any}));
  CHECK(infer_op("tensor_array_concat", {rows})[0] == f32({any, 3}));
  CHECK(infer_op("tensor_array_unstack", {f32({5, 3})}, {{"axis", std::int64_t{1}}})[0] == VarType::array_of(DType::f32, DDim{5}, false));
  CHECK(infer_op("pack", {rows, VarType::order()})[0] == f32({any, 3}, 1));
  CHECK(infer_op("tensor_array_write", {rows, index, f32({7, 3})}).empty());
  CHECK(says(refusal("tensor_array_read", {open, index}), {"whose slots have a type", "write to it first"}));
  CHECK(says(refusal("tensor_array_read", {rows, index, f32({2, 4, 3})}), {"a boot like the slots", "f32[2, 4, 3]"}));
  CHECK(says(refusal("tensor_array_read", {f32({2}), index}), {"expected an array", "f32[2]"}));
  CHECK(says(refusal("tensor_array_write", {rows, index, f32({7, 4})}), {"f32[?, 3]", "f32[7, 4]"}));
  CHECK(says(refusal("tensor_array_write", {rows, f32({}), f32({7, 3})}), {"i64 or i32", "f32[]"}));
  CHECK(says(refusal("tensor_array", {}), {"a size, or growable, or a window"}));
  CHECK(says(refusal("tensor_array_unstack", {f32({any, 3}, 1)}), {"without LoD", "unpack"}));
  CHECK(says(refusal("shrink", {f32({any, 3}), f32({any, 3})}), {"made with an order", "'in1' of f32[?, 3]", "'in0' of f32[?, 3]"}));
}
