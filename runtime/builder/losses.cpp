// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/losses.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>

namespace millrace::build {
namespace {

Var number(double value, DType dtype) { return cast(constant(Tensor::scalar(value)), dtype); }
Var plain(const Var& x) { return x.type().lod_depth > 0 ? drop_lod(x) : x; }
/// i64 [rows].
Var rows_of(const Var& column) { return reshape(cast(plain(column), DType::i64), {-1}); }

/// The sum over a count of at least 1.
Var mean_of(const Var& sum, const Var& count) {
  return sum / cast(maximum(cast(count, DType::i64), constant(std::int64_t{1})), sum.type().dtype);
}

}  // namespace

Var mean_loss(const Var& losses) {
  const Var all = plain(losses);
  return mean_of(sum(all), call1("size", {all}));
}

Var softmax_cross_entropy_loss(const Var& x, const Var& labels, std::int64_t ignore_index) {
  const Var losses = call1("softmax_cross_entropy", {x, labels}, {{"ignore_index", ignore_index}}, "loss");
  const Var counts = cast(not_equal(rows_of(labels), constant(ignore_index)), DType::i64);
  return mean_of(sum(plain(losses)), sum(counts));
}

Var mean_squared_error(const Var& x, const Var& target) {
  const Var error = x - target;
  return mean_loss(error * error);
}

Var mean_ctc_loss(const Var& log_probabilities, const Var& labels, std::int64_t blank, bool zero_infinity) {
  return mean_loss(ctc_loss(log_probabilities, labels, blank, zero_infinity));
}

Var mean_crf_loss(const Var& emission, const Var& transition, const Var& labels) {
  return mean_loss(neg(linear_chain_crf(emission, transition, labels)));
}

RandomKeys keys_of_rows(const Var& x, const Var& samples, const Var& epoch) {
  const Var numbers = call1("row_numbers", {x});
  const auto for_each_row = [&](const Var& of) { return drop_lod(sequence_expand_as(of, x)); };
  const Var first = plain(sequence_pool(numbers, "first"));
  return {for_each_row(rows_of(samples)), drop_lod(numbers) - for_each_row(first), epoch};
}

RandomKeys keys_of_sequences(const RandomKeys& rows) { return {rows.sample, {}, rows.epoch}; }

Var dropout(const Var& x, const RandomKeys& keys, const DropoutForm& form) {
  const Var made = call1("dropout", {plain(x), plain(keys.sample), keys.step.defined() ? plain(keys.step) : Var(), keys.epoch},
                         {{"rate", form.rate}, {"seed", form.seed}, {"number", form.number}, {"training", form.training}});
  return x.type().lod_depth > 0 ? call1("lod_reset", {made, Var(), x}) : made;
}

Var keep_mask(const Var& x, const RandomKeys& keys, const DropoutForm& form) {
  const DType dtype = x.type().dtype;
  const Var ones = call1("constant_of_shape", {call1("shape", {plain(x)})}, {{"value", Tensor::scalar(1.0f)}});
  const Var scaled = dropout(cast(ones, dtype), keys, form);
  const Var mask = form.training ? cast(call1("greater", {scaled, number(0, dtype)}), dtype) : scaled * number(1 - form.rate, dtype);
  return x.type().lod_depth > 0 ? call1("lod_reset", {mask, Var(), x}) : mask;
}

Var zoneout(const Var& before, const Var& after, const Var& keeps) { return after + keeps * (before - after); }

}  // namespace millrace::build
