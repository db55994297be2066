// SPDX-License-Identifier: Apache-2.0
// Whole programs on the device give what they give on the CPU.
#include <millrace/runtime/executor/run_program.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/causal_conv.h>
#include <millrace/runtime/layers/linear_attention.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <support/built.h>
#include <support/listing.h>
#include <support/op_cases.h>
#include <support/program_runs.h>
#include <support/random.h>

namespace millrace::testing {
namespace {

using Role = OpCase::Input::Role;

RunResult run_on(const Program& program, const Feeds& feeds, std::shared_ptr<Device> device) {
  ThreadExecutor executor(2);
  return sync_wait(executor, run(Executable(program, std::move(device)), feeds, RunOptions()));
}

double allowed(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-12;
    case DType::f32: return 1e-5;
    case DType::f16: return 2e-3;
    case DType::bf16: return 2e-2;
    default: return 0;
  }
}

void compare(const Program& program, const Feeds& feeds, const std::shared_ptr<Device>& device) {
  const RunResult expected = run_on(program, feeds, make_cpu_device());
  const RunResult found = run_on(program, feeds, device);
  for (const auto& [name, value] : expected.outputs()) {
    const Tensor here = value.tensor().tensor().copy_to(CpuPlace{});
    const Tensor there = found.value(name).tensor().tensor().copy_to(CpuPlace{});
    CHECK(distance(there, here) <= allowed(here.dtype()));
    CHECK(found.value(name).tensor().lod() == value.tensor().lod());
  }
}

Tensor random_rows(Random& random, const DDim& dims) {
  std::vector<float> values(static_cast<std::size_t>(dims.elements()));
  for (float& value : values) value = static_cast<float>(random.real()) - 0.5f;
  return Tensor::from(values, dims);
}

}  // namespace

TEST_CASE("the canonical loop over ragged sequences runs on the device, whatever its streams") {
  constexpr std::int64_t input = 6;
  constexpr std::int64_t hidden = 5;
  Random random(7);
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, input}, 1));
    const build::Var boot = build::input("boot", VarType(DType::f32, {DDim::unknown, hidden}));
    build::output("y", listing(x, boot, build::parameter("U", random_rows(random, DDim{hidden, hidden})),
                               build::parameter("W", random_rows(random, DDim{input, hidden}))));
  }
  Feeds feeds;
  feeds.insert_or_assign("x", LoDTensor(random_rows(random, DDim{18, input}), LoD::from_lengths({{7, 0, 1, 10}})));
  feeds.insert_or_assign("boot", LoDTensor(random_rows(random, DDim{4, hidden})));
  for (const std::size_t streams : {1, 4}) {
    CudaOptions options;
    options.streams = streams;
    compare(program, feeds, make_cuda_device(options));
  }
}

TEST_CASE("a count that steers a loop on the host may be fed from the device") {
  const Program program = built_program([] {
    using namespace build;
    const Var n = input("n", VarType(DType::i64, {}));
    const Var x = input("x", VarType(DType::f32, {2}));
    build::TensorArray kept(n);
    Var step = constant(0);
    auto loop = while_loop({step});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, n));
      kept.write(step, x + cast(step, DType::f32));
      step.update(step + 1);
    }
    output("y", kept.stack());
  });
  const std::shared_ptr<Device> device = make_cuda_device();
  const Feeds feeds{{"n", LoDTensor(clone(Tensor::scalar<std::int64_t>(3), device->stream(0)))},
                    {"x", LoDTensor(Tensor::from<float>({1, 2}))}};
  const RunResult found = run_on(program, feeds, device);
  CHECK(found.value("y").tensor().tensor().copy_to(CpuPlace{}).to_vector<float>() == std::vector<float>{1, 2, 2, 3, 3, 4});
}

TEST_CASE("numbers that are computed from extents on the host meet the values of the device") {
  const Program program = built_program([] {
    using namespace build;
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}));
    const Var extents = call1("shape", {x});
    const Var rows = call1("shape", {x}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
    output("y", x * cast(rows, DType::f32) + call1("constant_of_shape", {extents}, {{"value", Tensor::scalar(2.0f)}}));
    output("twice", rows + rows);
    output("places", call1("argmax", {x}, {{"axis", std::int64_t{1}}}) + rows);
    output("all", call1("size", {x}) * 2);
    // A product of integers, whose right factor is packed for where the product runs.
    const Var bytes = cast(reshape(extents, {1, 2}), DType::i8);
    output("folded", call1("matmul_integer", {bytes, constant(Tensor::from<std::int8_t>({0}, DDim{1})),
                                              constant(Tensor::from<std::int8_t>({1, 2}, DDim{2, 1}))}));
  });
  Random random(3);
  const std::shared_ptr<Device> device = make_cuda_device();
  for (const std::int64_t rows : {5, 1, 0}) compare(program, {{"x", LoDTensor(random_rows(random, DDim{rows, 3}))}}, device);
}

TEST_CASE("programs that decode and generate give on the device what they give on the CPU") {
  const auto device = make_cuda_device();
  Random random(11);
  constexpr std::int64_t classes = 5;
  constexpr std::int64_t hidden = 4;
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, classes}, 1));
    const build::Var ids = build::input("ids", VarType(DType::i64, {DDim::unknown, 1}, 1));
    const build::Var said = log_softmax(x);
    const build::CtcDecoded beam = build::ctc_beam_search_decode(said, 0, 3);
    build::output("labels", beam.labels);
    build::output("greedy", build::ctc_greedy_decode(said, 0).labels);
    build::output("aligned", build::ctc_align(ids, 0));
    build::output("loss", build::ctc_loss(said, build::ctc_align(ids, 0), 0, true));
    build::output("distance", build::edit_distance(beam.labels, ids));
    const build::Var moves = build::parameter("moves", random_rows(random, DDim{classes + 2, classes}));
    build::output("tags", build::crf_decoding(x, moves).path);
    build::output("likelihood", build::linear_chain_crf(x, moves, ids));
    const build::Var table = build::parameter("table", random_rows(random, DDim{classes, hidden}));
    const build::Var iteration = build::parameter("iteration", random_rows(random, DDim{hidden, hidden}));
    const build::Var out = build::parameter("out", random_rows(random, DDim{hidden, classes}));
    const build::Model model = [&](const build::Var& tokens, const std::vector<build::Var>& states, const build::Var&) {
      const build::Var h = tanh(matmul(states[0], iteration) + gather(table, reshape(tokens, {-1})));
      return build::ModelStep{log_softmax(matmul(h, out)), {h}};
    };
    build::GenerationOptions options;
    options.max_length = 5;
    const build::Var start = build::input("start", VarType(DType::i64, {DDim::unknown}));
    const build::Var state = build::input("state", VarType(DType::f32, {DDim::unknown, hidden}));
    build::output("generated", build::generate_beam(model, start, {state}, 3, options).tokens);
    build::output("drawn", build::generate_sampled(model, start, {state}, start, build::Sampling{7, 1.5, 0}, options).tokens);
  }
  Feeds feeds;
  const LoD lod = LoD::from_lengths({{6, 0, 3}});
  feeds.insert_or_assign("x", LoDTensor(random_rows(random, DDim{9, classes}), lod));
  feeds.insert_or_assign("ids", LoDTensor(Tensor::from<std::int64_t>({1, 1, 0, 2, 0, 3, 4, 0, 4}).reshape(DDim{9, 1}), lod));
  feeds.insert_or_assign("start", LoDTensor(Tensor::from<std::int64_t>({1, 3})));
  feeds.insert_or_assign("state", LoDTensor(random_rows(random, DDim{2, hidden})));
  compare(program, feeds, device);
}

TEST_CASE("every op gives on the device what it gives on the CPU") {
  const auto device = make_cuda_device();
  for (const std::uint64_t seed : seeds(3)) {
    Random random(seed);
    for (const OpCase& of : op_cases(random)) {
      INFO("seed ", seed, ", ", of.to_string());
      Program program;
      Feeds feeds;
      Op op{of.type, {}, {}, of.attributes, {}};
      for (const auto& input : of.inputs) {
        const std::string name = "in" + std::to_string(op.inputs.size());
        if (input.role == Role::absent) {
          op.inputs.push_back(no_var);
        } else if (input.role == Role::fixed) {
          op.inputs.push_back(program.add_parameter("w", input.value));
        } else {
          op.inputs.push_back(program.add_input(name, VarType(input.dtype, input.dims)));
          feeds.insert_or_assign(name, LoDTensor(input.make(random)));
        }
      }
      std::size_t count = 0;
      for (const VarId output : program.append(0, std::move(op))) program.add_output("out" + std::to_string(count++), output);
      compare(program, feeds, device);
    }
  }
}

TEST_CASE("losses over classes and their gradients are on the device what they are on the CPU, and a label that is no class is refused") {
  const auto device = make_cuda_device();
  Random random(17);
  const auto programs = [](DType dtype, bool loss) {
    return built_program([&] {
      const build::Var x = cast(build::input("x", VarType(DType::f32, {DDim::unknown, 5})), dtype);
      const build::Var labels = build::input("labels", VarType(DType::i64, {DDim::unknown, 1}));
      const build::Var g = cast(build::input("g", VarType(DType::f32, {DDim::unknown, 1})), dtype);
      const Attributes ignoring{{"ignore_index", std::int64_t{-7}}};
      if (loss) build::output("loss", build::call1("softmax_cross_entropy", {x, labels}, ignoring));
      build::output("dx", build::call1("softmax_cross_entropy_gradient", {g, x, labels}, ignoring));
    });
  };
  const auto feeds = [&](std::vector<std::int64_t> labels) {
    const auto rows = static_cast<std::int64_t>(labels.size());
    return Feeds{{"x", LoDTensor(random_rows(random, DDim{rows, 5}))},
                 {"labels", LoDTensor(Tensor::from(labels, DDim{rows, 1}))},
                 {"g", LoDTensor(random_rows(random, DDim{rows, 1}))}};
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    INFO(name_of(dtype));
    for (const bool loss : {true, false}) {
      compare(programs(dtype, loss), feeds({0, 4, -7, 2}), device);
      compare(programs(dtype, loss), feeds({}), device);
      for (const std::int64_t wrong : {-1, 5, 6}) {
        CHECK_THROWS_AS(run_on(programs(dtype, loss), feeds({0, wrong, 1}), make_cpu_device()), IndexError);
        CHECK_THROWS_AS(run_on(programs(dtype, loss), feeds({0, wrong, 1}), make_cuda_device()), IndexError);
      }
    }
  }
}

TEST_CASE("loops that the CPU runs as one op have their iterations on the device, with the numbers of the CPU") {
  const auto device = make_cuda_device();
  Random random(19);
  constexpr std::int64_t steps = 6, sequences = 3, channels = 5, heads = 2, keys = 3, values = 4;
  const DDim rows{DDim::unknown, sequences, channels};
  const Program filtered = built_program([&] {
    const build::Var x = build::input("x", VarType(DType::f32, rows));
    const layers::Unrolled made = layers::causal_conv({x}, build::parameter("w", random_rows(random, DDim{channels, 4})),
                                                      build::parameter("b", random_rows(random, DDim{channels})), {}, 2);
    build::output("y", made.output);
    build::output("last", made.last[0]);
  });
  compare(filtered, {{"x", LoDTensor(random_rows(random, DDim{steps, sequences, channels}))}}, device);
  using layers::StateUpdate;
  for (const StateUpdate update : {StateUpdate::linear, StateUpdate::gated, StateUpdate::delta, StateUpdate::gated_delta}) {
    CAPTURE(static_cast<int>(update));
    std::vector<std::pair<std::string, std::int64_t>> inputs{{"q", heads * keys}, {"k", heads * keys}, {"v", heads * values}};
    if (layers::reads_decay(update)) inputs.emplace_back("g", heads);
    if (layers::reads_rate(update)) inputs.emplace_back("b", heads);
    const Program attends = built_program([&] {
      std::map<std::string, build::Var> in;
      for (const auto& [name, width] : inputs) in[name] = build::input(name, VarType(DType::f32, {DDim::unknown, sequences, width}));
      const layers::Unrolled made =
          layers::linear_attention({in["q"], in["k"], in["v"], in["g"], in["b"]}, {heads, heads, update, std::nullopt});
      build::output("y", made.output);
      build::output("last", made.last[0]);
    });
    Feeds feeds;
    for (const auto& [name, width] : inputs) feeds.insert_or_assign(name, LoDTensor(random_rows(random, DDim{steps, sequences, width})));
    compare(attends, feeds, device);
  }
}

TEST_CASE("an op that the CPU alone has is refused on the device, by its name and with a way out") {
  Random random(23);
  const auto f32 = [&](const DDim& dims) { return build::constant(random_rows(random, dims)); };
  const auto bytes = [](const DDim& dims) {
    return build::constant(Tensor::from(std::vector<std::int8_t>(static_cast<std::size_t>(dims.elements()), 3), dims));
  };
  const auto list = [](std::vector<std::int64_t> values) {
    return build::constant(Tensor::from(values, DDim{static_cast<std::int64_t>(values.size())}));
  };
  const auto weight = [&](const DDim& dims) {
    return build::parameter("w", Tensor::from(std::vector<std::int8_t>(static_cast<std::size_t>(dims.elements()), 2), dims));
  };
  const auto zero = [] { return build::constant(Tensor::from(std::vector<std::int8_t>{1}, DDim{})); };
  using Ints = std::vector<std::int64_t>;
  // Inputs are built from fed rows, so that no constant is folded.
  const std::map<std::string, std::function<build::Var(const build::Var& x, const build::Var& b)>> ops{
      {"causal_filter",
       [&](const build::Var& x, const build::Var&) {
         return build::call(
             "causal_filter", {x, f32({2, 3, 4}), f32({3, 4})},
             {{"sequences", std::int64_t{0}}, {"places", std::int64_t{1}}, {"channels", std::int64_t{2}}, {"delays", Ints{0, 1, 2}}},
             {"out", "last"})[0];
       }},
      {"matrix_recurrence",
       [&](const build::Var& x, const build::Var&) {
         return build::call("matrix_recurrence", {x, f32({2, 3, 2}), f32({2, 3, 4}), f32({3, 4})},
                            {{"heads", std::int64_t{2}}, {"steps", std::int64_t{0}}}, {"out", "last"})[0];
       }},
      {"gather_planes",
       [&](const build::Var& x, const build::Var&) { return build::call1("gather_planes", {x, list({0, 1}), list({3, 0})}); }},
      {"gather_sum",
       [&](const build::Var& x, const build::Var&) {
         return build::call1("gather_sum", {x, list({0, 1}), f32({2}), list({3, 0}), f32({2})}, {{"axis", std::int64_t{2}}});
       }},
      {"conv",
       [&](const build::Var& x, const build::Var&) {
         return build::call1("conv", {build::unsqueeze(x, {0}), f32({5, 2, 2, 2})},
                             {{"group", std::int64_t{1}}, {"strides", Ints{1, 1}}, {"dilations", Ints{1, 1}}, {"pads", Ints{0, 0, 0, 0}}});
       }},
      {"pool",
       [&](const build::Var& x, const build::Var&) {
         return build::call1(
             "pool", {x},
             {{"fold", std::string("maximum")}, {"kernels", Ints{2}}, {"strides", Ints{1}}, {"dilations", Ints{1}}, {"pads", Ints{0, 0}}});
       }},
      {"arithmetic",
       [&](const build::Var& x, const build::Var&) { return build::call1("arithmetic", {x}, {{"steps", std::string("square")}}); }},
      {"map_bytes", [&](const build::Var&, const build::Var& b) { return build::call1("byte_map", {b, bytes({256})}); }},
      {"sum_bytes",
       [&](const build::Var&, const build::Var& b) {
         return build::call1("byte_sums", {b}, {{"zero", std::int64_t{1}}, {"axes", std::int64_t{1}}, {"keepdims", false}});
       }},
      {"matmul_integer with steps",
       [&](const build::Var&, const build::Var& b) {
         return build::call1("integer_arithmetic", {b, zero(), weight({4, 3})}, {{"steps", std::string("square")}});
       }},
      {"conv_integer",
       [&](const build::Var&, const build::Var& b) {
         return build::call1("conv_integer", {b, zero(), weight({5, 3, 2})},
                             {{"group", std::int64_t{1}}, {"strides", Ints{1}}, {"dilations", Ints{1}}, {"pads", Ints{0, 0}}});
       }},
      {"dropout", [&](const build::Var& x, const build::Var&) { return build::call1("dropout", {x, list({1, 2})}, {{"rate", 0.5}}); }},
      {"random_numbers", [&](const build::Var& x, const build::Var&) { return build::call1("random", {build::call1("shape", {x})}); }}};
  for (const auto& [name, op] : ops) {
    CAPTURE(name);
    const Program program = built_program([&] {
      const build::Var x = build::input("x", VarType(DType::f32, {2, 3, 4}));
      build::output("y", op(x, cast(x, DType::i8)));
    });
    const Feeds feeds{{"x", LoDTensor(random_rows(random, DDim{2, 3, 4}))}};
    CHECK_NOTHROW(run_on(program, feeds, make_cpu_device()));
    const auto device = make_cuda_device();  // some are refused on a stream, which is lost with them
    try {
      run_on(program, feeds, device);
      FAIL_CHECK("not refused");
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK(text.find(name + ": expected ") != std::string::npos);
      CHECK(text.find("on cpu") != std::string::npos);
      CHECK((dynamic_cast<const PlaceError*>(&error) != nullptr || dynamic_cast<const UnsupportedError*>(&error) != nullptr));
    }
  }
}

TEST_CASE("a loop that is to spill what it keeps to files is refused on the device, by name") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
    const build::Var w = build::input("w", VarType(DType::f32, {4, 4}));
    build::DynamicRNN rnn;
    {
      const auto block = rnn.block();
      const build::Var row = rnn.step_input(x);
      const build::Var h = rnn.memory(DType::f32, {4});
      const build::Var next = build::tanh(build::matmul(h, w) + row);
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    build::output("loss", build::sum(build::drop_lod(rnn.outputs()[0])));
  }
  BackwardOptions options;
  options.with_respect_to = {program.find_var("w")};
  options.memory.kind = MemoryPolicy::Kind::spill;
  const VarId gradient = append_backward(program, program.outputs().at(0).var, options).at(0).gradient;
  program.add_output("dw", gradient);
  CHECK_THROWS_WITH_AS(Executable(program, make_cuda_device()), doctest::Contains("memory policy spill: expected a loop on the host"),
                       UnsupportedError);
}

}  // namespace millrace::testing
