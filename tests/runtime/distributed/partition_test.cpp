// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/partition_run.h>

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/builder/array_var.h>
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/distributed/local.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/program/check.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>

#include "runtime/distributed/sim_ranks.h"
#include "runtime/loops/cpu_fused/fused_cells.h"
#include "support/built.h"
#include "support/listing.h"
#include "support/loop_over.h"
#include "support/random_lod.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

std::vector<RunResult> on_ranks(const Partition& partition, const Feeds& feeds, RunOptions options = {}) {
  return run_on_local_ranks(partition, std::vector<std::shared_ptr<Device>>(static_cast<std::size_t>(partition.ranks)), feeds, options);
}

std::size_t busy_ranks(const Partition& partition) {
  std::set<int> ranks;
  for (const Partition::Loop& loop : partition.loops) ranks.insert(loop.rank);
  return ranks.size();
}

/// Shared out, the program consists of valid ones and gives the bits of the whole, also iteration by iteration; gives how many ranks have loops.
std::size_t same_on(int ranks, const Program& program, const Feeds& feeds) {
  INFO(ranks, " ranks");
  const std::string wanted = bits(on_cpu(program, feeds));
  const Partition partition = partition_over_ranks(program, ranks);
  for (const Program& part : partition.parts) CHECK_NOTHROW(check(part));
  const std::vector<RunResult> fused = on_ranks(partition, feeds);
  CHECK(bits(fused[0]) == wanted);
  CHECK(bits(on_ranks(partition, feeds, interpreted())[0]) == wanted);
  for (const Partition::Loop& loop : partition.loops) CHECK(fused[static_cast<std::size_t>(loop.rank)].iterations > 0);
  return busy_ranks(partition);
}

Var rows_of(std::int64_t width) { return input("x", VarType(DType::f32, {DDim::unknown, width}, 1)); }

/// Two loops that work on one array, which grows by a slot an iteration.
void growing_array(const Var& n) {
  const build::TensorArray grows = build::TensorArray::growable("grows");
  loop_over(n, [&](const Var& step) { grows.append(cast(step, DType::f32)); });
  const build::ArrayVar out = build::ArrayVar::typed(n, VarType(DType::f32, {}), "out");
  loop_over(n, [&](const Var& step) { out.write(step, grows.read(step)); });
  output("y", out.stack());
}

std::vector<layers::LstmWeights> lstm_weights(Random& random, const std::vector<std::int64_t>& inputs, std::int64_t h) {
  std::vector<layers::LstmWeights> made;
  for (const std::int64_t c : inputs)
    made.push_back({random_tensor(random, {c, 4 * h}), random_tensor(random, {h, 4 * h}), random_tensor(random, {4 * h}), {}, {}});
  return made;
}

Var appended(const std::string& type, const std::vector<Var>& inputs) {
  Op op{type, {}, {}, {}, {}};
  for (const Var& input : inputs) op.inputs.push_back(input.id());
  const build::Guard& guard = build::Guard::current();
  return Var::of(guard.program().append(guard.block(), std::move(op))[0]);
}

/// One more than x, step by step, into an array of its own.
build::ArrayVar one_more(const build::ArrayVar& x, const std::string& name) {
  const Var n = x.size();
  const build::ArrayVar y = build::ArrayVar::typed(n, VarType(DType::f32, {2}), name);
  loop_over(n, [&](const Var& step) { y.write(step, x.read(step) + 1.0); });
  return y;
}

}  // namespace

TEST_CASE("stacks of layers over ragged sequences, in one direction and in both, have the bits of one rank on 2 and on 4") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const bool both = seed % 2 == 0;
    const std::int64_t layers = random.between(1, 4), h = random.between(1, 12);
    std::vector<std::int64_t> widths;
    for (std::int64_t layer = 0; layer < layers; ++layer)
      for (int way = 0; way < (both ? 2 : 1); ++way) widths.push_back(layer == 0 ? 5 : both ? 2 * h : h);
    const auto weights = lstm_weights(random, widths, h);
    const Program program = built_program([&] {
      layers::LstmOptions options;
      if (both) options.direction = layers::Direction::bidirectional;
      const layers::LstmResult made = layers::lstm({rows_of(5)}, weights, options);
      output("y", made.y);
      output("h", made.h.front());
      output("c", made.c.back());
    });
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = random.between(0, 6); i > 0; --i) lengths.push_back(random.between(0, 40));
    lengths.push_back(random.between(1, 60));
    const LoD lod = LoD::from_lengths({lengths});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 5}), lod)}};
    for (const int ranks : {2, 4}) CHECK(same_on(ranks, program, feeds) == std::min(static_cast<std::size_t>(ranks), widths.size()));
  }
}

TEST_CASE("dense layers with lengths, other cells, and layers that take states from outside") {
  Random random(3);
  const auto gru = [&](std::int64_t c) {
    return layers::gru_from_onnx(random_tensor(random, {1, 15, c}), random_tensor(random, {1, 15, 5}));
  };
  const std::vector<layers::GruWeights> weights{gru(4), gru(5), gru(5)};
  const Program program = built_program([&] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 4}));
    const Var lengths = input("lengths", VarType(DType::i64, {DDim::unknown}));
    std::vector<Var> states;
    for (int i = 0; i < 3; ++i) states.push_back(input("h" + std::to_string(i), VarType(DType::f32, {DDim::unknown, 5})));
    const layers::GruResult made = layers::gru({x, lengths}, weights, {}, states);
    output("y", made.y);
    output("last", concat(made.h, 1));
  });
  Feeds feeds{{"x", random_tensor(random, {9, 3, 4})}, {"lengths", Tensor::from<std::int64_t>({9, 0, 4})}};
  for (int i = 0; i < 3; ++i) feeds.emplace("h" + std::to_string(i), random_tensor(random, {3, 5}));
  for (const int ranks : {2, 3, 4}) CHECK(same_on(ranks, program, feeds) == static_cast<std::size_t>(std::min(ranks, 3)));
}

TEST_CASE("layers that hand on steps are neighbours on a rank, and those of a later stage go where least is") {
  Random random(1);
  const auto ranks_of = [&](const std::vector<std::int64_t>& inputs, bool both, int ranks) {
    const auto weights = lstm_weights(random, inputs, 4);
    const Program program = built_program([&] {
      layers::LstmOptions options;
      if (both) options.direction = layers::Direction::bidirectional;
      output("y", layers::lstm({rows_of(inputs[0])}, weights, options).y);
    });
    std::vector<int> found;
    for (const Partition::Loop& loop : partition_over_ranks(program, ranks).loops) found.push_back(loop.rank);
    return found;
  };
  CHECK(ranks_of({4, 4, 4, 4}, false, 2) == std::vector<int>{0, 0, 1, 1});
  CHECK(ranks_of({4, 4, 4, 4}, false, 4) == std::vector<int>{0, 1, 2, 3});
  CHECK(ranks_of({4, 4, 8, 8}, true, 2) == std::vector<int>{0, 1, 0, 1});
  CHECK(ranks_of({4, 4, 8, 8}, true, 4) == std::vector<int>{0, 1, 2, 3});
  CHECK(ranks_of({4, 4, 8, 8}, true, 1) == std::vector<int>{0, 0, 0, 0});
  // By weight, not by number.
  CHECK(ranks_of({400, 4, 4, 4}, false, 2) == std::vector<int>{0, 1, 1, 1});
}

TEST_CASE(
    "values of every kind cross: levels, orders, arrays, lists, optionals, and tensors that a loop needs before its first iteration") {
  Random random(9);
  const Program program = built_program([&] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, 3}, 2));
    const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, 3}));
    const auto weight = [&](const std::string& name) { return parameter(name, random_tensor(random, {3, 3})); };
    // Inner sequences, and what they give as the boots of another loop over the same rows.
    const auto [steps, order] = unpack(x, 1, true);
    const Var n = steps.size();
    const build::TensorArray first(n, order, "first"), second(n, order, "second");
    const Var u = weight("u");
    loop_over(n, [&](const Var& step) {
      const Var in = steps.read(step);
      first.write(step, tanh(matmul(shrink(first.read(step - 1, boot), in), u) + in));
    });
    const Var v = weight("v");
    loop_over(n, [&](const Var& step) {
      const Var in = first.read(step);
      second.write(step, tanh(matmul(shrink(second.read(step - 1, boot * 2.0), in), v) - in));
    });
    output("y", pack(second, 1, order));
    output("size", n);
    // The other way round, from the same steps, and the rows of both ends as a list.
    const build::TensorArray third(n, order, "third");
    loop_over(n, [&](const Var& step) { third.write(step, steps.read(step) * 3.0); });
    output("z", pack(third, 1, order));
    output("read", second.read(0));
    // A value that the second and third loop both need is made once, and crosses.
    const Var list = appended("list_of", {boot + 1.0, boot + 2.0}), held = appended("optional_of", {boot - 1.0});
    for (const char* name : {"fourth", "fifth"}) {
      const build::ArrayVar out = build::ArrayVar::typed(constant(2), VarType(DType::f32, {DDim::unknown, 3}), name);
      loop_over(constant(2),
                [&](const Var& step) { out.write(step, appended("list_at", {list, step}) * appended("optional_get", {held})); });
      output(name, out.concat());
    }
  });
  const LoD lod = LoD::from_lengths({{2, 0, 1}, {3, 0, 4}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {7, 3}), lod)}, {"boot", random_tensor(random, {3, 3})}};
  for (const int ranks : {2, 3, 5, 6}) CHECK(same_on(ranks, program, feeds) == static_cast<std::size_t>(std::min(ranks, 5)));
  std::set<std::string> transfer;
  for (const Partition::Transfer& each : partition_over_ranks(program, 5).transfers) transfer.insert(each.name);
  for (const char* name : {"list_of of rank 0", "optional_of of rank 0", "order of rank 0", "first of rank 0"})
    CHECK(transfer.contains(name));
}

TEST_CASE("what cannot be shared out stays together, on rank 0 where it is fed, and says why") {
  const auto kept_of = [](int ranks, const std::function<void()>& building) {
    const Partition partition = partition_over_ranks(built_program(building), ranks);
    return std::pair(busy_ranks(partition), partition.kept());
  };
  using Lines = std::vector<std::string>;
  const auto none = kept_of(3, [] { output("y", input("x", VarType(DType::f32, {2})) + 1.0); });
  CHECK(none.second == Lines{"all of 'program' is on rank 0: it has no loop to share out"});
  CHECK(kept_of(1, [] { output("y", input("x", VarType(DType::f32, {2})) + 1.0); }).second.empty());

  const auto fed = kept_of(2, [] {
    const build::ArrayVar x = build::ArrayVar::of(input("x", VarType::array_of(DType::f32, DDim{2}, false)));
    output("y", one_more(one_more(x, "a"), "b").stack());
  });
  CHECK(fed.first == 2);
  CHECK(fed.second == Lines{"while 1 (constant_4) is on rank 0: it works on array 'x', which is fed on rank 0"});

  const auto growing = kept_of(2, [] { growing_array(input("n", VarType(DType::i64, {}))); });
  CHECK(growing.first == 1);
  REQUIRE(growing.second.size() == 2);
  CHECK(growing.second[0].find("array 'grows' has no fixed size, and stays where it is made") != std::string::npos);
  CHECK(growing.second[1] == "no loop is left for rank 1");

  // Two loops that read what the other writes, and two that write halves of one array.
  const auto each_other = kept_of(2, [] {
    const Var n = constant(4);
    const build::ArrayVar a = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "a");
    const build::ArrayVar b = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "b");
    loop_over(n, [&](const Var& step) { a.write(step, b.read(step) + 1.0); });
    loop_over(n, [&](const Var& step) { b.write(step, constant(Tensor::from<float>({1, 2}))); });
    output("y", a.stack());
  });
  CHECK(each_other.first == 1);
  REQUIRE(each_other.second.size() == 2);
  CHECK(each_other.second[0].find("they work on array 'a' together") != std::string::npos);
  CHECK_THROWS_AS(static_cast<void>(partition_over_ranks(built_program([] {}), 0)), ArgumentError);
}

TEST_CASE("loops that must stay together run together, and the others elsewhere") {
  const Program program = built_program([] {
    const Var n = input("n", VarType(DType::i64, {}));
    growing_array(n);
    const build::ArrayVar other = build::ArrayVar::typed(n, VarType(DType::f32, {}), "other");
    loop_over(n, [&](const Var& step) {
      const Var doubled = step + step;
      other.write(step, cast(doubled, DType::f32));
    });
    output("z", other.stack());
  });
  for (const int ranks : {2, 4}) CHECK(same_on(ranks, program, {{"n", Tensor::scalar<std::int64_t>(5)}}) == 2);
}

TEST_CASE("no iterations and no rows: what crosses has the extents of the whole") {
  Random random(4);
  const auto weights = lstm_weights(random, {3, 4}, 4);
  const Program ragged = built_program([&] { output("y", layers::lstm({rows_of(3)}, weights).y); });
  const Program dense =
      built_program([&] { output("y", layers::lstm({input("x", VarType(DType::f32, {DDim::unknown, DDim::unknown, 3}))}, weights).y); });
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {0, 0}, {0}, {1, 0}}) {
    const LoD lod = LoD::from_lengths({lengths});
    const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}};
    const Partition partition = partition_over_ranks(ragged, 2);
    CHECK(bits(on_ranks(partition, feeds)[0]) == bits(on_cpu(ragged, feeds)));
  }
  const Feeds none{{"x", Tensor::from(std::vector<float>{}, {0, 2, 3})}};
  CHECK(bits(on_ranks(partition_over_ranks(dense, 2), none)[0]) == bits(on_cpu(dense, none)));
}

TEST_CASE(
    "on devices that complete in any order, ranks give the bits of one, iterations of two layers overlap, and a fault on one ends all") {
  Random random(6);
  const auto weights = lstm_weights(random, {3, 4, 4}, 4);
  const Program program = built_program([&] { output("y", layers::lstm({rows_of(3)}, weights).y); });
  const LoD lod = LoD::from_lengths({{6, 2, 0, 23}});
  const Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), 3}), lod)}};
  const std::string wanted = bits(on_cpu(program, feeds));
  const Partition partition = partition_over_ranks(program, 3);
  std::size_t failed = 0, overlapping = 0;
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Tracer tracer;
    CHECK(on_sim_ranks(partition, feeds, seed, {}, -1, &tracer) == wanted);
    overlapping += arrives_before_the_end(tracer, 2, 1);
    SimDevice::Options broken;
    (seed % 2 == 0 ? broken.fail_work : broken.fail_allocation) = static_cast<std::size_t>(random.between(1, 90));
    const int rank = static_cast<int>(seed % 3);
    const std::string said = on_sim_ranks(partition, feeds, seed, broken, rank);
    const bool ended_well = said == wanted;
    failed += !ended_well;
    INFO(said);
    if (!ended_well) CHECK(said.find("on sim:" + std::to_string(rank)) != std::string::npos);
  }
  CHECK(4 * failed >= seeds(20).size());
  CHECK(4 * overlapping >= seeds(20).size());
}

TEST_CASE("slots that are never written are no error where nobody reads them") {
  const Program program = built_program([] {
    const Var n = input("n", VarType(DType::i64, {}));
    const build::ArrayVar a = build::ArrayVar::typed(n + 2, VarType(DType::f32, {2}), "a");
    loop_over(n, [&](const Var& step) { a.write(step, constant(Tensor::from<float>({1, 2}))); });
    const build::ArrayVar b = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "b");
    loop_over(n, [&](const Var& step) { b.write(step, a.read(step) + 1.0); });
    output("y", b.stack());
  });
  CHECK(same_on(2, program, {{"n", Tensor::scalar<std::int64_t>(6)}}) == 2);
}

TEST_CASE("an error of a loop on another rank keeps its type and says where, and feeds are checked once") {
  const Program program = built_program([] {
    const Var n = input("n", VarType(DType::i64, {}));
    const build::ArrayVar a = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "a");
    loop_over(n, [&](const Var& step) { a.write(step, constant(Tensor::from<float>({1, 2}))); });
    const build::ArrayVar b = build::ArrayVar::typed(n, VarType(DType::f32, {2}), "b");
    loop_over(n, [&](const Var& step) { b.write(step, a.read(step + 1)); });
    output("y", b.stack());
  });
  const Partition partition = partition_over_ranks(program, 2);
  REQUIRE(busy_ranks(partition) == 2);
  const auto error_of = [&](const Feeds& feeds) {
    try {
      static_cast<void>(on_ranks(partition, feeds));
    } catch (const IndexError& error) {
      return "IndexError: " + std::string(error.what());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::string said = error_of({{"n", Tensor::scalar<std::int64_t>(3)}});
  CHECK(said.starts_with("IndexError: "));
  CHECK(said.find("array 'a'") != std::string::npos);
  CHECK(said.ends_with(" (on rank 1)"));
  CHECK(error_of({}) == "run: input 'n': expected i64[], found nothing (on rank 0)");
  CHECK(error_of({{"m", Tensor::scalar<std::int64_t>(3)}}).starts_with("run: the program 'program, rank 0' has no input 'm'"));
  CHECK_THROWS_AS(static_cast<void>(run_on_local_ranks(partition, {nullptr}, {})), ArgumentError);
  CHECK_THROWS_AS(static_cast<void>(PartitionPart(partition, 2)), ArgumentError);
}
