// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/lstm_cell.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/activation.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/matmul.h>

namespace millrace::testing {
namespace {

struct Weights {
  Tensor w, r, bias, peepholes;

  Weights(Random& random, const LstmDesc& desc)
      : w(random_tensor(random, desc.dtype, DDim{desc.input, 4 * desc.hidden})),
        r(random_tensor(random, desc.dtype, DDim{desc.hidden, 4 * desc.hidden})),
        bias(random_tensor(random, desc.dtype, DDim{4 * desc.hidden})),
        peepholes(random_tensor(random, desc.dtype, DDim{3 * desc.hidden})) {}
};

struct State {
  Tensor h, c;
};

State step(const LstmDesc& desc, const Weights& weights, const Tensor& x, const State& state, StreamRef stream) {
  const LstmPlan plan = make_lstm_cell(desc, stream.place());
  const PackedLstm packed =
      pack(plan, weights.w, weights.r, desc.bias ? &weights.bias : nullptr, desc.peepholes ? &weights.peepholes : nullptr, stream);
  State next{Tensor(desc.dtype, state.h.dims(), stream.memory()), Tensor(desc.dtype, state.c.dims(), stream.memory())};
  run(plan, packed, x, state.h, state.c, next.h, next.c, stream);
  return next;
}

LstmDesc desc_of(std::int64_t input, std::int64_t hidden, DType dtype = DType::f32) {
  LstmDesc desc;
  desc.input = input;
  desc.hidden = hidden;
  desc.dtype = dtype;
  return desc;
}

LstmDesc any_desc(Random& random, DType dtype) {
  static constexpr Unary kinds[] = {Unary::sigmoid,         Unary::tanh, Unary::relu,     Unary::hard_sigmoid, Unary::softsign,
                                    Unary::leaky_relu,      Unary::elu,  Unary::softplus, Unary::affine,       Unary::scaled_tanh,
                                    Unary::thresholded_relu};
  const auto any = [&] {
    const Unary kind = kinds[random.between(0, 10)];
    return Activation{kind, default_params(kind)};
  };
  LstmDesc desc = desc_of(random.between(0, 9), random.between(1, 40), dtype);
  if (random.coin()) {
    desc.gate = any();
    desc.candidate = any();
    desc.output = any();
  }
  desc.bias = random.coin();
  desc.peepholes = random.coin();
  desc.couple_input_forget = random.coin();
  desc.clip = random.coin() ? 0.5 : 0;
  return desc;
}

}  // namespace

TEST_CASE("a step of any description agrees with the reference on every device and dtype") {
  each_product_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(20)) {
      INFO("seed ", seed);
      Random random(seed);
      for (const DType dtype : floats) {
        const LstmDesc desc = any_desc(random, dtype);
        const Weights host(random, desc);
        Weights weights = host;
        for (Tensor* tensor : {&weights.w, &weights.r, &weights.bias, &weights.peepholes}) *tensor = on.up(*tensor);
        const std::int64_t rows = random.between(0, 9);
        const Tensor x = random_tensor(random, dtype, DDim{rows, desc.input});
        const Tensor h = random_tensor(random, dtype, DDim{rows, desc.hidden}), c = random_tensor(random, dtype, DDim{rows, desc.hidden});
        const State next = step(desc, weights, on.up(x), {on.up(h), on.up(c)}, on.stream());
        const auto bias = reference::values(host.bias), peepholes = reference::values(host.peepholes);
        const auto expected =
            reference::lstm_cell(desc, reference::values(x), {reference::values(h), reference::values(c)}, reference::values(host.w),
                                 reference::values(host.r), desc.bias ? &bias : nullptr, desc.peepholes ? &peepholes : nullptr);
        // An activation with a step (thresholded_relu) may fall on either side of it.
        const bool steps = desc.gate.kind == Unary::thresholded_relu || desc.candidate.kind == Unary::thresholded_relu ||
                           desc.output.kind == Unary::thresholded_relu;
        if (steps && dtype != DType::f64) continue;
        CHECK(error_of(on.down(next.h), expected.h) <= 200 * on.rounding(dtype));
        CHECK(error_of(on.down(next.c), expected.c) <= 200 * on.rounding(dtype));
      }
    }
  });
}

TEST_CASE("a step has the bits of the same step written with single kernels, on every instruction set") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  Random random(6);
  for (const std::int64_t hidden : {1, 16, 37, 100}) {
    const LstmDesc desc = desc_of(33, hidden);
    const Weights weights(random, desc);
    const Tensor x = random_tensor(random, DType::f32, DDim{7, 33});
    const State state{random_tensor(random, DType::f32, DDim{7, hidden}), random_tensor(random, DType::f32, DDim{7, hidden})};
    each_instruction_set([&](const std::string&) {
      const Tensor a = add(add(matmul(state.h, weights.r, stream), weights.bias, stream), matmul(x, weights.w, stream), stream);
      const auto gate = [&](std::int64_t index) { return a.slice(1, index * hidden, (index + 1) * hidden); };
      const Tensor i = sigmoid(gate(0), stream), f = sigmoid(gate(1), stream), g = tanh(gate(2), stream), o = sigmoid(gate(3), stream);
      const Tensor c = add(mul(f, state.c, stream), mul(i, g, stream), stream);
      const State next = step(desc, weights, x, state, stream);
      CHECK(same_bits(next.c, c));
      CHECK(same_bits(next.h, mul(o, tanh(c, stream), stream)));
    });
  }
}

TEST_CASE(
    "a row has the same bits alone, in any batch of 1 to 64, with 1 or 2 threads, and with its projection made "
    "before") {
  CpuDevice one(1), two(2);
  Random random(12);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
    const LstmDesc desc = desc_of(80, 130, dtype);
    const Weights weights(random, desc);
    const Tensor x = random_tensor(random, dtype, DDim{64, 80});
    const State state{random_tensor(random, dtype, DDim{64, 130}), random_tensor(random, dtype, DDim{64, 130})};
    const State whole = step(desc, weights, x, state, one.stream(0));
    const State both = step(desc, weights, x, state, two.stream(0));
    CHECK((same_bits(both.h, whole.h) && same_bits(both.c, whole.c)));
    for (const std::int64_t rows : {1, 2, 3, 4, 7, 8, 33, 63}) {
      INFO("rows ", rows);
      const State part = step(desc, weights, x.rows(1, rows + 1), {state.h.rows(1, rows + 1), state.c.rows(1, rows + 1)}, two.stream(0));
      CHECK(same_bits(part.h, whole.h.rows(1, rows + 1)));
      CHECK(same_bits(part.c, whole.c.rows(1, rows + 1)));
    }
    if (dtype == DType::f16) continue;  // a projection stored in f16 is rounded once more
    const LstmPlan plan = make_lstm_cell(desc);
    const PackedLstm packed = pack(plan, weights.w, weights.r, &weights.bias, nullptr, one.stream(0));
    State next{Tensor(dtype, state.h.dims()), Tensor(dtype, state.c.dims())};
    run_projected(plan, packed, matmul(x, weights.w, one.stream(0)), state.h, state.c, next.h, next.c, one.stream(0));
    CHECK((same_bits(next.h, whole.h) && same_bits(next.c, whole.c)));
  }
}

TEST_CASE("the cell state may be written in place, the hidden state may not") {
  CpuDevice device;
  Random random(2);
  const LstmDesc desc = desc_of(5, 20);
  const Weights weights(random, desc);
  const Tensor x = random_tensor(random, DType::f32, DDim{3, 5});
  State state{random_tensor(random, DType::f32, DDim{3, 20}), random_tensor(random, DType::f32, DDim{3, 20})};
  const State expected = step(desc, weights, x, state, device.stream(0));
  const LstmPlan plan = make_lstm_cell(desc);
  const PackedLstm packed = pack(plan, weights.w, weights.r, &weights.bias, nullptr, device.stream(0));
  Tensor h(DType::f32, DDim{3, 20});
  run(plan, packed, x, state.h, state.c, h, state.c, device.stream(0));
  CHECK((same_bits(h, expected.h) && same_bits(state.c, expected.c)));
  CHECK_THROWS_WITH_AS(run(plan, packed, x, state.h, state.c, state.h, state.c, device.stream(0)),
                       doctest::Contains("expected an h_out apart from h"), ArgumentError);
}

TEST_CASE("a cell takes rows whose elements lie apart, and gives the bits of their dense copies") {
  CpuDevice device;
  Random random(21);
  const LstmDesc desc = desc_of(5, 7);
  const Weights weights(random, desc);
  const Tensor x = random_tensor(random, desc.dtype, DDim{5, 3}), h = random_tensor(random, desc.dtype, DDim{7, 3}),
               c = random_tensor(random, desc.dtype, DDim{7, 3});
  const std::vector<int> swap{1, 0};
  const auto dense = [&](const Tensor& view) { return contiguous(view, device.stream(0)); };
  const State expected = step(desc, weights, dense(x.permute(swap)), {dense(h.permute(swap)), dense(c.permute(swap))}, device.stream(0));
  const State found = step(desc, weights, x.permute(swap), {h.permute(swap), c.permute(swap)}, device.stream(0));
  CHECK(same_bits(found.h, expected.h));
  CHECK(same_bits(found.c, expected.c));
}

TEST_CASE("weights and states that do not fit are errors that name what was expected") {
  CpuDevice device;
  Random random(1);
  LstmDesc desc = desc_of(5, 20);
  const Weights weights(random, desc);
  const LstmPlan plan = make_lstm_cell(desc);
  CHECK_THROWS_WITH_AS(pack(plan, weights.r, weights.r, &weights.bias, nullptr, device.stream(0)),
                       "lstm pack: expected [5, 80] for W, found [20, 80]", ShapeError);
  CHECK_THROWS_WITH_AS(pack(plan, weights.w, weights.r, nullptr, nullptr, device.stream(0)),
                       "lstm pack: expected bias as the description says, found none", ArgumentError);
  const PackedLstm packed = pack(plan, weights.w, weights.r, &weights.bias, nullptr, device.stream(0));
  const Tensor x = random_tensor(random, DType::f32, DDim{3, 5}), h = random_tensor(random, DType::f32, DDim{3, 20});
  Tensor short_h(DType::f32, DDim{2, 20}), c(DType::f32, DDim{3, 20});
  CHECK_THROWS_WITH_AS(run(plan, packed, x, h, h, short_h, c, device.stream(0)), "lstm cell: expected [3, 20] for h_out, found [2, 20]",
                       ShapeError);
  desc.gate.kind = Unary::mish;
  CHECK_THROWS_AS(make_lstm_cell(desc), ArgumentError);
  desc = desc_of(5, 20, DType::i32);
  CHECK_THROWS_AS(make_lstm_cell(desc), DTypeError);
}

TEST_CASE("a cell with weights of bf16 has the bits of one with the same weights widened, on every instruction set") {
  CpuDevice device(2);
  const StreamRef stream = device.stream(0);
  each_instruction_set([&](const std::string&) {
    for (const std::uint64_t seed : seeds(6)) {
      INFO("seed ", seed);
      Random random(seed);
      LstmDesc desc = any_desc(random, DType::f32);
      desc.input = random.between(0, 9);
      const Weights whole(random, desc);
      const Tensor w = cast(whole.w, DType::bf16, stream), r = cast(whole.r, DType::bf16, stream);
      Weights widened = whole;
      widened.w = cast(w, DType::f32, stream);
      widened.r = cast(r, DType::f32, stream);
      const std::int64_t rows = random.between(1, 15);
      const Tensor x = random_tensor(random, DType::f32, DDim{rows, desc.input});
      const State state{random_tensor(random, DType::f32, DDim{rows, desc.hidden}),
                        random_tensor(random, DType::f32, DDim{rows, desc.hidden})};
      const State expected = step(desc, widened, x, state, stream);
      desc.weights = DType::bf16;
      Weights narrow = whole;
      narrow.w = w;
      narrow.r = r;
      const State found = step(desc, narrow, x, state, stream);
      CHECK(same_bits(found.h, expected.h));
      CHECK(same_bits(found.c, expected.c));
    }
  });
  LstmDesc desc = desc_of(3, 4, DType::f64);
  desc.weights = DType::bf16;
  CHECK_THROWS_AS(make_lstm_cell(desc), DTypeError);
}

TEST_CASE("the gates behind two products that were made before have the bits of the whole cell") {
  CpuDevice device(2);
  const StreamRef stream = device.stream(0);
  each_instruction_set([&](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const std::uint64_t seed : seeds(6)) {
        INFO("seed ", seed);
        Random random(seed);
        LstmDesc desc = any_desc(random, dtype);
        const Weights weights(random, desc);
        const std::int64_t rows = random.between(1, 15);
        const Tensor x = random_tensor(random, dtype, DDim{rows, desc.input});
        const State state{random_tensor(random, dtype, DDim{rows, desc.hidden}), random_tensor(random, dtype, DDim{rows, desc.hidden})};
        const State expected = step(desc, weights, x, state, stream);
        const LstmPlan plan = make_lstm_cell(desc);
        const PackedLstm packed =
            pack_gates(plan, desc.bias ? &weights.bias : nullptr, desc.peepholes ? &weights.peepholes : nullptr, stream);
        State found{Tensor(dtype, state.h.dims()), Tensor(dtype, state.c.dims())};
        run_gates(plan, packed, matmul(x, weights.w, stream), matmul(state.h, weights.r, stream), state.c, found.h, found.c, stream);
        CHECK(same_bits(found.h, expected.h));
        CHECK(same_bits(found.c, expected.c));
      }
    }
  });
}

}  // namespace millrace::testing
