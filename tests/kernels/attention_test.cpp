// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/attention.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <kernels/device_under_test.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/matmul.h>
#include <millrace/kernels/softmax.h>
#include <millrace/kernels/transpose.h>
#include <millrace/kernels/where.h>

namespace millrace::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor number(double value, const Tensor& like) {
  return like.dtype() == DType::f64 ? Tensor::scalar(value) : Tensor::scalar(static_cast<float>(value));
}

/// One kernel after another.
Tensor in_parts(const Attention& call, StreamRef stream) {
  Tensor k = call.k, v = call.v;
  if (call.shares_heads) {
    std::vector<std::int64_t> index;
    for (std::int64_t head = 0; head < call.q.dim(1); ++head) index.push_back(head / (call.q.dim(1) / k.dim(1)));
    const Tensor numbers = Tensor::from(index, DDim{call.q.dim(1)});
    k = gather(k, numbers, 1, stream);
    v = gather(v, numbers, 1, stream);
  }
  const Tensor q = call.scale == 1 ? call.q : binary(Binary::mul, call.q, number(call.scale, call.q), stream);
  Tensor scores = matmul(q, k.permute({0, 1, 3, 2}), stream);
  std::size_t next = 0;
  for (const ArithmeticStep step : call.steps) {
    std::vector<const Tensor*> operand;
    if (has_operand(step)) operand.push_back(&call.operands[next++]);
    scores = arithmetic({step}, scores, operand, stream);
  }
  if (call.offset) {
    std::vector<float> bias;
    const std::int64_t queries = call.bias_queries < 0 ? scores.dim(2) : call.bias_queries;
    const std::int64_t keys = call.bias_keys < 0 ? scores.dim(3) : call.bias_keys;
    for (std::int64_t s = 0; s < queries; ++s)
      for (std::int64_t t = 0; t < keys; ++t)
        bias.push_back(t <= s + call.offset->item_int() ? 0.0f : -std::numeric_limits<float>::infinity());
    scores = binary(Binary::add, scores, Tensor::from(bias, DDim{queries, keys}), stream);
  }
  const auto replaced = [&](const Tensor& x, const ScoreMask& mask) {
    return mask.keeps ? where(mask.condition, x, number(mask.value, x), stream) : where(mask.condition, number(mask.value, x), x, stream);
  };
  if (call.mask) scores = replaced(scores, *call.mask);
  Tensor weights = softmax(scores, -1, stream);
  if (call.hidden) weights = replaced(weights, *call.hidden);
  return transpose(matmul(weights, v, stream), call.out_axes, stream);
}

/// Equal to the bit, but for NaN, of which compilers choose one of two where both operands are NaN.
bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.dtype() == DType::f64) return same_bits(a, b);
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](float x, float y) {
    return (std::isnan(x) && std::isnan(y)) || std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

/// The result, which has the bits of the parts with one and two threads.
Tensor checked(const Attention& call) {
  CpuDevice one(1), two(2);
  const Tensor made = attention(call, one.stream(0)).copy_to(CpuPlace{}), parts = in_parts(call, one.stream(0)).copy_to(CpuPlace{});
  REQUIRE(made.dims() == parts.dims());
  CHECK(same_numbers(made, parts));
  CHECK(same_bits(attention(call, two.stream(0)).copy_to(CpuPlace{}), made));
  return made;
}

Tensor some_true(Random& random, const DDim& dims) {
  const Tensor numbers = random_tensor(random, DType::f32, dims);
  Tensor made(DType::boolean, dims);
  for (std::int64_t i = 0; i < numbers.elements(); ++i) made.mutable_data<bool>()[i] = numbers.data<float>()[i] > 0.2f;
  return made;
}

Attention random_call(Random& random, DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                      std::int64_t depth, std::int64_t width) {
  Attention call;
  call.q = random_tensor(random, dtype, DDim{batch, heads, queries, depth});
  call.k = random_tensor(random, dtype, DDim{batch, heads, keys, depth});
  call.v = random_tensor(random, dtype, DDim{batch, heads, keys, width});
  return call;
}

}  // namespace

TEST_CASE("attention has the bits of its parts, whatever the extents are, on every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    Random random(1);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t queries : {1, 2, 7, 61, 130})
        for (const std::int64_t keys : {1, 3, 64, 130, 700})
          for (const std::int64_t width : {1, 5, 32}) checked(random_call(random, dtype, 2, 3, queries, keys, width + 3, width));
  });
}

TEST_CASE("attention reads views, scales queries and turns its result") {
  Random random(2);
  for (const std::int64_t queries : {1, 5, 200}) {
    Attention call;
    const std::vector<int> turned{0, 2, 1, 3};
    call.q = random_tensor(random, DType::f32, DDim{2, queries, 3, 16}).permute(turned);
    call.k = random_tensor(random, DType::f32, DDim{2, 70, 3, 16}).permute(turned);
    call.v = random_tensor(random, DType::f32, DDim{2, 70, 3, 32}).permute(turned);
    call.scale = 0.3;
    call.out_axes = turned;
    checked(call);
    call.q = random_tensor(random, DType::f32, DDim{1, 3, 16, queries}).permute({0, 1, 3, 2});
    call.k = random_tensor(random, DType::f32, DDim{2, 3, 16, 70}).permute({0, 1, 3, 2});
    call.v = random_tensor(random, DType::f32, DDim{1, 3, 33, 70}).permute({0, 1, 3, 2});
    checked(call);
  }
}

TEST_CASE("heads of q share heads of keys and values") {
  Random random(3);
  for (const std::int64_t queries : {1, 3, 90}) {
    Attention call = random_call(random, DType::f32, 2, 2, queries, 100, 20, 16);
    call.q = random_tensor(random, DType::f32, DDim{2, 6, queries, 20});
    call.shares_heads = true;
    call.steps = {ArithmeticStep::add};
    call.operands = {random_tensor(random, DType::f32, DDim{6, queries, 1})};
    checked(call);
  }
}

TEST_CASE("steps and masks of scores broadcast, and weights are hidden") {
  Random random(4);
  for (const std::int64_t queries : {1, 4, 100})
    for (const std::int64_t keys : {1, 33, 300}) {
      Attention call = random_call(random, DType::f32, 2, 3, queries, keys, 8, 16);
      call.steps = {ArithmeticStep::div, ArithmeticStep::from, ArithmeticStep::add};
      call.operands = {Tensor::scalar(3.0f), random_tensor(random, DType::f32, DDim{2, 1, queries, keys}),
                       random_tensor(random, DType::f32, DDim{3, 1, keys})};
      for (const bool keeps : {false, true}) {
        call.mask = ScoreMask{some_true(random, DDim{2, 1, 1, keys}), -10000, keeps};
        call.hidden = ScoreMask{some_true(random, DDim{queries, 1}), 0, keeps};
        checked(call);
        call.mask->value = -infinity;
        call.hidden = ScoreMask{some_true(random, DDim{queries, keys}), 0, keeps};
        checked(call);
      }
    }
}

TEST_CASE("keys behind a query weigh nothing, and spoil nothing that their weight of zero would not") {
  Random random(5);
  for (const std::int64_t offset : {-500, -3, 0, 9, 1000})
    for (const std::int64_t queries : {1, 2, 200}) {
      Attention call = random_call(random, DType::f32, 1, 2, queries, 300, 8, 16);
      call.offset = Tensor::scalar(offset);
      checked(call);
      call.v.mutable_data<float>()[call.v.elements() - 1] = std::nanf("");
      checked(call);
      call.v.mutable_data<float>()[call.v.elements() - 1] = 0;
      call.k.mutable_data<float>()[call.k.elements() - 1] = std::numeric_limits<float>::infinity();
      checked(call);
      call.k.mutable_data<float>()[call.k.elements() - 1] = 3e38f;
      call.q.mutable_data<float>()[7] = 3e38f;
      checked(call);
    }
}

TEST_CASE("a causal bias of one query or one key stretches over the scores") {
  Random random(9);
  for (const auto& [queries, keys] : {std::pair{1, -1}, {-1, 1}, {1, 1}, {7, 12}}) {
    Attention call = random_call(random, DType::f32, 1, 2, 7, 12, 8, 16);
    call.offset = Tensor::scalar(std::int64_t{2});
    call.bias_queries = queries;
    call.bias_keys = keys;
    checked(call);
  }
}

TEST_CASE("a query has the same bits alone and among others") {
  CpuDevice device;
  Random random(6);
  const Attention call = random_call(random, DType::f32, 2, 3, 77, 600, 24, 24);
  const Tensor whole = attention(call, device.stream(0)).copy_to(CpuPlace{});
  for (std::int64_t query = 0; query < 77; query += 4) {
    Attention one = call;
    one.q = call.q.slice(2, query, query + 1);
    CHECK(same_bits(attention(one, device.stream(0)).copy_to(CpuPlace{}), whole.slice(2, query, query + 1).copy_to(CpuPlace{})));
  }
}

TEST_CASE("no keys give zeros, no queries nothing, and operands may stretch the scores") {
  Random random(7);
  checked(random_call(random, DType::f32, 2, 3, 4, 0, 8, 8));
  checked(random_call(random, DType::f32, 2, 3, 0, 5, 8, 8));
  checked(random_call(random, DType::f32, 2, 3, 4, 5, 0, 8));
  checked(random_call(random, DType::f32, 2, 3, 4, 5, 8, 0));
  Attention call = random_call(random, DType::f32, 1, 3, 1, 5, 8, 8);
  call.steps = {ArithmeticStep::add};
  call.operands = {random_tensor(random, DType::f32, DDim{2, 3, 4, 5})};
  CHECK(checked(call).dims() == DDim{2, 3, 4, 8});
  call = random_call(random, DType::f32, 1, 1, 3, 5, 8, 8);
  call.k = random_tensor(random, DType::f32, DDim{2, 4, 5, 8});
  CHECK(checked(call).dims() == DDim{2, 4, 3, 8});
}

TEST_CASE("operands of attention that do not multiply are refused") {
  CpuDevice device;
  Random random(8);
  Attention call = random_call(random, DType::f32, 1, 1, 3, 5, 8, 8);
  call.k = random_tensor(random, DType::f32, DDim{1, 1, 5, 9});
  CHECK_THROWS_AS(attention(call, device.stream(0)), ShapeError);
  call.k = random_tensor(random, DType::f64, DDim{1, 1, 5, 8});
  CHECK_THROWS_AS(attention(call, device.stream(0)), DTypeError);
}

}  // namespace millrace::testing
