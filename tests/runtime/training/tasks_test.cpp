// SPDX-License-Identifier: Apache-2.0
// Small tasks learned from their losses: labels of frames without alignment (CTC), and tags that depend on their neighbours (CRF).
#include <algorithm>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/training/initialiser.h>
#include <millrace/runtime/training/trainer.h>
#include <support/random.h>

using namespace millrace;
using namespace millrace::training;
using build::Var;
using millrace::testing::Random;

namespace {

struct Ragged {
  std::vector<float> rows;
  std::vector<std::int64_t> labels;
  LoD::Level frames, marks;

  LoDTensor x(std::int64_t width) const {
    const LoD lod = LoD::from_lengths({frames});
    return {Tensor::from(rows, DDim{lod.rows(), width}), lod};
  }
  LoDTensor targets() const {
    const LoD lod = LoD::from_lengths({marks});
    return {Tensor::from(labels, DDim{lod.rows()}), lod};
  }
};

Trainer trainer_of(const Program& program) {
  TrainerOptions options;
  options.optimizer.kind = OptimizerOptions::Kind::adam;
  options.schedule.base = 0.02;
  options.clipping.norm = 1;
  return Trainer(program, options);
}

Var recurrent(const Var& x, std::int64_t width, std::int64_t units, std::int64_t outputs) {
  const LayerInit init(1);
  const Var y = layers::gru({x}, {init.gru("gru", width, units)}).y;
  return layers::linear(y, init.linear("linear", units, outputs));
}

// ---- Marks without alignment ----

constexpr std::int64_t marks = 3;

/// Each mark 1 … 3 is said for one to three frames; silence, at times none, lies between different marks and always between equal ones.
Ragged spoken(std::uint64_t seed, std::int64_t count) {
  Random random(seed);
  Ragged made;
  const auto frame = [&](std::int64_t mark) {
    for (std::int64_t i = 0; i <= marks; ++i) made.rows.push_back((i == mark ? 1.0f : 0.0f) + 0.2f * random.real());
    ++made.frames.back();
  };
  for (std::int64_t n = 0; n < count; ++n) {
    made.frames.push_back(0);
    made.marks.push_back(random.between(0, 4));
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < made.marks.back(); ++i) {
      const std::int64_t mark = random.between(1, marks);
      for (std::int64_t silence = random.between(mark == before ? 1 : 0, 2); silence > 0; --silence) frame(0);
      for (std::int64_t said = random.between(1, 3); said > 0; --said) frame(mark);
      made.labels.push_back(before = mark);
    }
  }
  return made;
}

TEST_CASE("a GRU learns from the CTC loss to say the labels of frames that nobody aligned") {
  Program program;
  {
    const build::Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, marks + 1}, 1));
    const Var target = build::input("target", VarType(DType::i64, {DDim::unknown}, 1));
    const Var said = build::log_softmax(recurrent(x, marks + 1, 12, marks + 1), -1);
    build::output("labels", build::ctc_greedy_decode(said, 0).labels);
    build::output("loss", build::mean_ctc_loss(said, target, 0));
  }
  Trainer trainer = trainer_of(program);
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 120; ++step) {
    const Ragged batch = spoken(100 + step, 24);
    last = trainer.step({{"x", batch.x(marks + 1)}, {"target", batch.targets()}}).loss;
    if (step == 0) first = last;
  }
  INFO("loss ", first, " at first, ", last, " at last");
  CHECK(last < first / 10);
  const Ragged test = spoken(7, 200);
  const RunResult heard = trainer.evaluate({{"x", test.x(marks + 1)}, {"target", test.targets()}});
  const LoD::Level lengths = heard["labels"].lod().lengths(0);
  const std::vector<std::int64_t> labels = heard["labels"].tensor().to_vector<std::int64_t>();
  REQUIRE(lengths.size() == test.marks.size());
  std::int64_t right = 0;
  auto at = labels.begin();
  auto wanted = test.labels.begin();
  for (std::size_t i = 0; i < lengths.size(); at += lengths[i], wanted += test.marks[i], ++i)
    right += lengths[i] == test.marks[i] && std::equal(at, at + lengths[i], wanted) ? 1 : 0;
  CHECK(right >= 190);
}

// ---- Tags of neighbours ----

constexpr std::int64_t tags = 3;

/// Tags go round, and rest in one step of ten. Each frame shows its tag, or, in four of ten, another one.
Ragged walked(std::uint64_t seed, std::int64_t count) {
  Random random(seed);
  Ragged made;
  for (std::int64_t n = 0; n < count; ++n) {
    made.frames.push_back(random.between(1, 12));
    std::int64_t tag = random.between(0, tags - 1);
    for (std::int64_t i = 0; i < made.frames.back(); ++i) {
      if (i > 0 && random.between(0, 9) > 0) tag = (tag + 1) % tags;
      const std::int64_t shown = random.between(0, 9) < 6 ? tag : random.between(0, tags - 1);
      for (std::int64_t k = 0; k < tags; ++k) made.rows.push_back(k == shown ? 1.0f : 0.0f);
      made.labels.push_back(tag);
    }
  }
  made.marks = made.frames;
  return made;
}

TEST_CASE("transitions of a CRF are learned with its emissions, and tag better than frames alone") {
  Program program;
  {
    const build::Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, tags}, 1));
    const Var target = build::input("target", VarType(DType::i64, {DDim::unknown}, 1));
    const LayerInit init(2);
    const Var emission = layers::linear(x, init.linear("linear", tags, tags));  // of one frame: neighbours come from the transitions alone
    const Var transition = build::parameter("transition", Tensor::from(std::vector<float>((tags + 2) * tags, 0.0f), DDim{tags + 2, tags}));
    build::output("path", build::crf_decoding(emission, transition).path);
    build::output("loss", build::mean_crf_loss(emission, transition, target));
  }
  Trainer trainer = trainer_of(program);
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    const Ragged batch = walked(100 + step, 32);
    last = trainer.step({{"x", batch.x(tags)}, {"target", batch.targets()}}).loss;
    if (step == 0) first = last;
  }
  INFO("loss ", first, " at first, ", last, " at last");
  CHECK(last < first / 2);
  const Ragged test = walked(7, 300);
  const RunResult found = trainer.evaluate({{"x", test.x(tags)}, {"target", test.targets()}});
  const std::vector<std::int64_t> path = found["path"].tensor().to_vector<std::int64_t>();
  REQUIRE(path.size() == test.labels.size());
  std::int64_t right = 0, alone = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    right += path[i] == test.labels[i] ? 1 : 0;
    alone += test.rows[i * tags + static_cast<std::size_t>(test.labels[i])] == 1.0f ? 1 : 0;
  }
  INFO(right, " of ", path.size(), " right; ", alone, " of the frames alone");
  CHECK(right > alone + alone / 10);
}

}  // namespace
