// SPDX-License-Identifier: Apache-2.0 The C++ and pseudocode listings of the designs 000, 001 and 003, each beside the form that runs; and,
// where the original cannot run when it is taken literally, the error it gets. The listings are quoted from the documents "Design for
// TensorArray" (000, 001) and "Implementation Doc: Dynamic RNN" (003).
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <millrace/kernels/activation.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/matmul.h>
#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/shrink.h>
#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/scope.h>
#include <support/drive.h>

namespace millrace {
namespace {

using testing::run_fifo;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class T>
std::string message_of(task<T> work) {
  try {
    run_fifo(std::move(work), "loop");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The values that the listings leave open: parameters, and one stream of the CPU.
struct Model {
  CpuDevice cpu;
  Tensor W = Tensor::from<float>({-.3f}).reshape({1, 1});
  Tensor U = Tensor::from<float>({.7f}).reshape({1, 1});
  StreamRef stream() { return cpu.stream(0); }
};

Tensor twelve_steps() {
  std::vector<float> values;
  for (int i = 0; i < 12; ++i) values.push_back(static_cast<float>(i) * 0.5f);
  return Tensor::from(values, {12, 1, 1});
}

/// h = sigmoid(x·W + h·U), computed here in double.
std::vector<double> reference(const std::vector<float>& inputs, double h) {
  std::vector<double> outputs;
  for (const float x : inputs) outputs.push_back(h = 1.0 / (1.0 + std::exp(-(-.3 * x + .7 * h))));
  return outputs;
}

void check_close(const std::vector<float>& found, const std::vector<double>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
}

// ---- 000: the class ----
//
//     class TensorArray {
//       explicit TensorArray(const LoDTensor&);
//       explicit TensorArray(size_t size);
//
//       vector<LoDTensor> values_;

task<std::vector<SlotValue>> values_of(TensorArray array) {
  std::vector<SlotValue> values = co_await array.values();
  co_return values;
}

TEST_CASE("000: an array is made from a LoDTensor or a size and holds LoDTensors") {
  const LoDTensor x(twelve_steps());
  const TensorArray from_tensor(x);
  const TensorArray from_size(std::size_t{12});
  CHECK(from_tensor.size() == 12);
  CHECK(from_size.size() == 12);
  CHECK(run_fifo(values_of(from_tensor)).size() == 12);
}

// ---- 000: an RNN based on dynamic operators ----
//
//     input =
//     num_steps = Var(12)
//     TensorArray states(size=num_steps)
//     TensorArray step_inputs(unstack_from=input)
//     TensorArray step_outputs(size=num_steps)
//     W = Tensor(...)
//     U = Tensor(...)
//     default_state = some_op()
//     step = Var(1)
//     wloop = paddle.create_whileloop(loop_vars=[step])
//     with wloop.frame():
//         wloop.break_if(pd.equal(step, num_steps)
//         pre_state =, default_state)
//         step_input =
//         state = pd.sigmoid(pd.matmul(U, pre_state) + pd.matmul(W, step_input))
//         states.write(step, state)
//         step_outputs.write(step, state) # output state
//     output = step_outputs.stack()

task<Tensor> dynamic_rnn(Tensor input, Tensor default_state, std::int64_t first_step, Model* model) {
  const StreamRef stream = model->stream();
  const Tensor num_steps = Tensor::scalar<std::int64_t>(12);
  const TensorArray states = TensorArray(num_steps).named("states");
  const TensorArray step_inputs = TensorArray::unstack(input);
  const TensorArray step_outputs = TensorArray(num_steps).named("step_outputs");
  for (std::int64_t step = first_step; step != num_steps.item_int(); ++step) {
    SlotValue pre_state = co_await states.read(step - 1, default_state, stream);
    SlotValue step_input = co_await step_inputs.read(step);
    const Tensor from_state = matmul(pre_state.tensor(), model->U, stream);
    const Tensor from_input = matmul(step_input.tensor(), model->W, stream);
    const Tensor state = sigmoid(add(from_state, from_input, stream), stream);
    states.write(step, state);
    step_outputs.write(step, state);
  }
  states.close();
  step_outputs.close();
  Tensor output = co_await step_outputs.stack(stream);
  co_return output;
}

TEST_CASE("000: the RNN of dynamic operators, by hand") {
  Model model;
  const Tensor output = run_fifo(dynamic_rnn(twelve_steps(), Tensor::from<float>({.1f}).reshape({1, 1}), 0, &model));
  CHECK(output.dims() == DDim{12, 1, 1});
  check_close(output.to_vector<float>(), reference(twelve_steps().to_vector<float>(), .1));
}

TEST_CASE("000: taken literally it starts at step 1, where the state of step 0 is missing") {
  Model model;
  const std::string what = message_of(dynamic_rnn(twelve_steps(), Tensor::from<float>({.1f}).reshape({1, 1}), 1, &model));
  INFO(what);
  CHECK(contains(what, "slot 0 of array 'states'"));
}

task<Tensor> outputs_from_step_1(Tensor value, Model* model) {
  const TensorArray step_outputs = TensorArray(12).named("step_outputs");
  for (int step = 1; step != 12; ++step) step_outputs.write(step, value);
  Tensor output = co_await step_outputs.stack(model->stream());
  co_return output;
}

TEST_CASE("000: outputs written from step 1 on leave slot 0 unwritten, and stack fails naming it") {
  Model model;
  const std::string what = message_of(outputs_from_step_1(Tensor::scalar(1.0f), &model));
  INFO(what);
  CHECK(contains(what, "slot 0 of array 'step_outputs' of 12 slots"));
}

// ---- 000: the pseudocode ----
//
//     Array states;
//     Array input_segments;
//     Array output_segments;
//     Parameter W, U;
//
//     step = 1
//     seq_len = 12
//     while_loop {
//        if (step == seq_len) break;
//         states[step] = sigmoid(W * states[step-1] + U * input_segments[step]);
//         output_segments[step] = states[step] // take state as output

task<std::vector<float>> pseudocode(Tensor input, bool boot, Model* model) {
  const StreamRef stream = model->stream();
  TensorArray states = TensorArray::growable().named("states");
  TensorArray input_segments = TensorArray::unstack(input);
  TensorArray output_segments;
  if (boot) states[0] = Tensor::from<float>({.1f}).reshape({1, 1});
  std::int64_t step = 1;
  const std::int64_t seq_len = 12;
  for (;;) {
    if (step == seq_len) break;
    SlotValue last = co_await states[step - 1];
    SlotValue segment = co_await input_segments[step];
    const Tensor from_state = matmul(last.tensor(), model->U, stream);
    const Tensor from_input = matmul(segment.tensor(), model->W, stream);
    states[step] = sigmoid(add(from_state, from_input, stream), stream);
    SlotValue state = co_await states[step];
    output_segments[step - 1] = state;
    ++step;
  }
  output_segments.close();
  LoDTensor all = co_await output_segments.concat(stream);
  co_return all.tensor().to_vector<float>();
}

TEST_CASE("000: the pseudocode runs once slot 0 has a state") {
  Model model;
  const std::vector<float> inputs = twelve_steps().to_vector<float>();
  check_close(run_fifo(pseudocode(twelve_steps(), true, &model)), reference(std::vector<float>(inputs.begin() + 1, inputs.end()), .1));
}

TEST_CASE("000: taken literally the pseudocode reads states[0], which nobody writes, a named deadlock") {
  Model model;
  const std::string what = message_of(pseudocode(twelve_steps(), false, &model));
  INFO(what);
  CHECK(contains(what, "slot 0"));
  CHECK(contains(what, "'states'"));
  CHECK(contains(what, "'loop'"));
}

// ---- 000 and 001: unpack and pack ----
//
//     // input is the varient-length data
//     LodTensor sentence_input(xxx);
//     TensorArray ta;
//     Tensor indice_map;
//     Tensor boot_state = xxx; // to initialize rnn's first state
//     TensorArray::unpack(input, 1/*level*/, true/*sort_by_length*/, &ta, &indice_map);
//     TessorArray step_outputs;
//     TensorArray states;
//
//     for (int step = 0; step = ta.size(); step++) {
//       auto state = states.read(step);
//       // rnnstep is a function which acts like a step of RNN
//       auto step_input = ta.read(step);
//       auto step_output = rnnstep(step_input, state);
//       step_outputs.write(step_output, true/*data_shared*/);
//     }
//     // rnn_output is the final output of an rnn
//     LoDTensor rnn_output = ta.pack(ta, indice_map);

LoDTensor sentences() { return LoDTensor(Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({6, 1}), LoD::from_lengths({{2, 1, 3}})); }

Tensor rnnstep(const SlotValue& step_input, const LoDTensor& state, Model* model) {
  const Tensor from_state = matmul(state.tensor(), model->U, model->stream());
  const Tensor from_input = matmul(step_input.tensor(), model->W, model->stream());
  return sigmoid(add(from_input, from_state, model->stream()), model->stream());
}

task<LoDTensor> sentence_rnn(LoDTensor sentence_input, Tensor boot_state, bool shrinks, Model* model) {
  const StreamRef stream = model->stream();
  const auto [ta, order] = unpack(sentence_input, 0, true, stream);
  const Tensor indice_map = order.indices_map();
  CHECK(indice_map.dtype() == DType::i32);
  TensorArray step_outputs;
  const TensorArray states = TensorArray(ta.size(), order).named("states");
  for (int step = 0; step < ta.size(); step++) {
    SlotValue state = co_await states.read(step - 1, boot_state, stream);
    SlotValue step_input = co_await ta.read(step);
    if (shrinks) state = shrink(state, step_input, stream);
    const Tensor step_output = rnnstep(step_input, state, model);
    states.write(step, step_output);
    step_outputs.append(step_output);
  }
  step_outputs.close();
  LoDTensor rnn_output = co_await pack(step_outputs, 0, order, stream);
  co_return rnn_output;
}

Tensor three_boots() { return Tensor::from<float>({.1f, .2f, .3f}).reshape({3, 1}); }

TEST_CASE("000, 001: unpack, a loop and pack run an RNN over sentences of any length") {
  Model model;
  const LoDTensor output = run_fifo(sentence_rnn(sentences(), three_boots(), true, &model));
  CHECK(output.lod() == sentences().lod());
  std::vector<double> wanted = reference({1, 2}, .1);
  for (const double more : reference({3}, .2)) wanted.push_back(more);
  for (const double more : reference({4, 5, 6}, .3)) wanted.push_back(more);
  check_close(output.tensor().to_vector<float>(), wanted);
}

TEST_CASE("000, 001: level 1 of an input with one level is an error that lists the levels present") {
  Model model;
  std::string what;
  try {
    unpack(sentences(), 1 /*level*/, true /*sort_by_length*/, model.stream());
  } catch (const LoDError& error) {
    what = error.what();
  }
  INFO(what);
  CHECK(contains(what, "1"));
  CHECK(contains(what, "0"));
}

task<void> read_own_step(TensorArray states) {
  for (int step = 0; step < states.size(); step++) SlotValue state = co_await states.read(step);
}

TEST_CASE("000, 001: states.read(step), which nobody writes, is a named deadlock") {
  const std::string what = message_of(read_own_step(TensorArray(3).named("states")));
  INFO(what);
  CHECK(contains(what, "slot 0 of array 'states'"));
  CHECK(contains(what, "'loop'"));
}

task<void> assigned_condition(TensorArray ta) {
  std::int64_t step = 0;
  for (; (step = ta.size()) != 0; step++) SlotValue step_input = co_await ta.read(step);
}

TEST_CASE("000, 001: step = ta.size() is an assignment, and the first read is past the end") {
  const std::string what = message_of(assigned_condition(TensorArray::unstack(twelve_steps()).named("ta")));
  CHECK(contains(what, "'ta' of 12 slots"));
  CHECK(contains(what, "found 12"));
}

TEST_CASE("000, 001: a state that is not shrunk to the rows that still live is a shape error that names shrink") {
  Model model;
  const std::string what = message_of(sentence_rnn(sentences(), three_boots(), false, &model));
  INFO(what);
  CHECK(contains(what, "shrink"));
}

// ---- 003: the forward logic ----
//
//     auto input = LoDTensor(...);  // LoDTensor is the data structure for time series
//
//     std::vector<LoDTensor> inputs_for_each_timestep = LoDTensorToTimesteps(LoDTensor())
//     std::vector<LoDTensor> memories;
//     memories.resize(inputs_for_each_timestep.size() + 1);
//     memories[0] = 0;
//     std::vector<LoDTensor> outputs_for_each_timestep;
//     outputs_for_each_timestep.resize(inputs_for_each_timestep.size());
//
//     auto W0 = LoDTensor(...);
//     auto W1 = LoDTensor(...);
//     auto Bias = LoDTensor(...);
//
//     size_t i = 0;
//     while (i < inputs_for_each_timestep.size()) {
//       auto& step_input = inputs_for_each_timestep[i];
//       auto& ex_mem = memories[i];
//
//       auto tmp0 = step_input * W0;
//       auto tmp1 = ex_mem * W1;
//       auto sum = tmp0 + tmp1 + Bias
//       auto hidden = sigmoid(sum);
//       memories[i+1] = sum;
//       outputs_for_each_timestep[i] = sum;
//     }
//
//     LoDTensor outputs = TimestepsToLoDTensor(outputs_for_each_timestep);

task<LoDTensor> dynamic_rnn_forward(LoDTensor input, Tensor W0, Tensor W1, Tensor Bias, bool increments, Model* model) {
  const StreamRef stream = model->stream();
  const auto [inputs_for_each_timestep, order] = unpack(input, 0, true, stream);
  TensorArray memories = TensorArray(inputs_for_each_timestep.size() + 1).named("memories");
  memories[0] = make_darray(DDim{order.sequences(), 1}, 0.0f);
  TensorArray outputs_for_each_timestep(inputs_for_each_timestep.size(), order);
  std::int64_t i = 0;
  while (i < inputs_for_each_timestep.size()) {
    SlotValue step_input = co_await inputs_for_each_timestep[i];
    SlotValue ex_mem = co_await memories[i];
    const SlotValue living = shrink(ex_mem, order, i - 1, i, stream);
    const Tensor tmp0 = matmul(step_input.tensor(), W0, stream);
    const Tensor tmp1 = matmul(living.tensor(), W1, stream);
    const Tensor both = add(tmp0, tmp1, stream);
    const Tensor sum = add(both, Bias, stream);
    memories[i + 1] = sum;
    outputs_for_each_timestep[i] = sum;
    if (increments) ++i;
  }
  LoDTensor outputs = co_await pack(outputs_for_each_timestep, 0, order, stream);
  co_return outputs;
}

TEST_CASE("003: the forward logic of a dynamic RNN") {
  Model model;
  const Tensor two = Tensor::from<float>({2}).reshape({1, 1});
  const Tensor half = Tensor::from<float>({.5f}).reshape({1, 1});
  const LoDTensor outputs = run_fifo(dynamic_rnn_forward(sentences(), two, half, Tensor::from<float>({1}).reshape({1, 1}), true, &model));
  CHECK(outputs.lod() == sentences().lod());
  CHECK(outputs.tensor().to_vector<float>() == std::vector<float>{3, 6.5f, 7, 9, 15.5f, 20.75f});
}

TEST_CASE("003: taken literally the loop never counts on, and its second iteration writes memories[1] again") {
  Model model;
  const Tensor one = Tensor::from<float>({1}).reshape({1, 1});
  const std::string what = message_of(dynamic_rnn_forward(sentences(), one, one, one, false, &model));
  INFO(what);
  CHECK(contains(what, "slot 1 of array 'memories'"));
  CHECK(contains(what, "a slot is written once"));
}

}  // namespace
}  // namespace millrace
