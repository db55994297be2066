// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/attribute.h>

#include <doctest/doctest.h>

#include <millrace/runtime/program/errors.h>

using namespace millrace;

TEST_CASE("an attribute is found by its name, and setting it again replaces it in its place") {
  Attributes attributes{{"axis", std::int64_t{1}}, {"kind", std::string("sum")}};
  attributes.set("axis", std::int64_t{2});
  attributes.set("keepdims", true);
  CHECK(attributes.size() == 3);
  CHECK(attributes.get<std::int64_t>("axis") == 2);
  CHECK(attributes.get<std::string>("kind") == "sum");
  CHECK(attributes.get<bool>("keepdims"));
  CHECK(attributes.begin()->first == "axis");
  CHECK_FALSE(attributes.has("epsilon"));
  CHECK(attributes.find("epsilon") == nullptr);
}

TEST_CASE("an absent attribute has a default, or is an error that names it") {
  const Attributes attributes;
  CHECK(attributes.get_or("axis", std::int64_t{-1}) == -1);
  CHECK_THROWS_WITH_AS(attributes.get<std::int64_t>("axis"), "attribute 'axis': expected one, found none", ProgramError);
}

TEST_CASE("an attribute of another type is an error that names both types, with and without a default") {
  const Attributes attributes{{"axis", 1.0}, {"to", DType::f32}, {"body", BlockId{1}}};
  CHECK_THROWS_WITH_AS(attributes.get<std::int64_t>("axis"), "attribute 'axis': expected an integer, found a float", ProgramError);
  CHECK_THROWS_WITH_AS(attributes.get_or("axis", true), "attribute 'axis': expected true or false, found a float", ProgramError);
  CHECK_THROWS_WITH_AS(attributes.get<Tensor>("to"), "attribute 'to': expected a tensor, found a dtype", ProgramError);
  CHECK_THROWS_WITH_AS(attributes.get<std::vector<std::string>>("body"), "attribute 'body': expected strings, found a block", ProgramError);
}
