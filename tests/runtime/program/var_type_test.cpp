// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/var_type.h>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

VarType f32(const DDim& dims, int levels = 0) { return {DType::f32, dims, levels}; }

}  // namespace

TEST_CASE("a type prints what is known of it") {
  CHECK(f32({DDim::unknown, 64}, 1).to_string() == "f32[?, 64] lod=1");
  CHECK(f32({}).to_string() == "f32[]");
  CHECK(VarType(DType::boolean, {0}).to_string() == "bool[0]");
  CHECK(VarType::unranked(DType::i64).to_string() == "i64[*]");
  CHECK(VarType::array_of(DType::f32, DDim{DDim::unknown, 64}, true).to_string() == "array<f32[?, 64]> ordered");
  CHECK(VarType::array_of(DType::f16, std::nullopt, false).to_string() == "array<f16[*]>");
  CHECK(VarType::open_array(false).to_string() == "array<?>");
  CHECK(VarType::open_array(true).to_string() == "array<?> ordered");
  CHECK(VarType::order().to_string() == "order");
}

TEST_CASE("a type knows its rank, whether it is one element, and whether all extents are known") {
  CHECK(f32({2, 3}).rank() == 2);
  CHECK(VarType::unranked(DType::f32).rank() == -1);
  CHECK(f32({}).is_scalar());
  CHECK(f32({1}).is_scalar());
  CHECK_FALSE(f32({1, 1}).is_scalar());
  CHECK_FALSE(VarType::unranked(DType::f32).is_scalar());
  CHECK(f32({0, 3}).is_static());
  CHECK_FALSE(f32({DDim::unknown}).is_static());
  CHECK_FALSE(VarType::unranked(DType::f32).is_static());
}

TEST_CASE("a type fits where everything that both sides know is equal") {
  CHECK(fits(f32({2, 3}), f32({2, 3})));
  CHECK(fits(f32({2, 3}), f32({DDim::unknown, 3})));
  CHECK(fits(f32({DDim::unknown, 3}), f32({2, 3})));
  CHECK(fits(f32({2, 3}), VarType::unranked(DType::f32)));
  CHECK_FALSE(fits(f32({2, 3}), f32({2, 4})));
  CHECK_FALSE(fits(f32({2, 3}), f32({2})));
  CHECK_FALSE(fits(f32({2}), VarType(DType::f64, {2})));
  CHECK_FALSE(fits(f32({2}, 1), f32({2})));
  CHECK_FALSE(fits(f32({2}), VarType::array_of(DType::f32, DDim{2}, false)));
  CHECK_FALSE(fits(VarType::order(), VarType(DType::i32, {2})));
  CHECK(fits(VarType::open_array(false), VarType::array_of(DType::f64, DDim{2}, true)));
  CHECK_FALSE(fits(VarType::array_of(DType::f64, DDim{2}, true), VarType::array_of(DType::f32, DDim{2}, true)));
}

TEST_CASE("what two types have in common keeps the extents that agree") {
  CHECK(common(f32({2, 3}), f32({2, 3})) == f32({2, 3}));
  CHECK(common(f32({2, 3}), f32({4, 3})) == f32({DDim::unknown, 3}));
  CHECK(common(f32({2, 3}), f32({DDim::unknown, 3})) == f32({DDim::unknown, 3}));
  CHECK(common(f32({2, 3}), f32({2})) == VarType::unranked(DType::f32));
  CHECK(common(f32({2, 3}), VarType::unranked(DType::f32)) == VarType::unranked(DType::f32));
  const VarType ordered = VarType::array_of(DType::f32, DDim{2}, true);
  CHECK(common(ordered, ordered).ordered);
  CHECK_FALSE(common(ordered, VarType::array_of(DType::f32, DDim{2}, false)).ordered);
}
