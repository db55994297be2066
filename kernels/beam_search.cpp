// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/beam_search.h>

#include <cstring>
#include <string>

#include <millrace/kernels/cpu/beam_search.h>
#include <millrace/kernels/internal/casts.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/visit.h>

namespace millrace {
namespace {

/// Host values as a tensor of the stream's place.
template <class T>
Tensor put(std::vector<T> values, const DDim& dims, StreamRef stream) {
  Tensor out(dtype_of<T>, dims, stream.memory());
  if (internal::on_cuda(stream.place())) {
    copy(Tensor::from(values, dims), out, stream);
    return out;
  }
  launch(
      TensorRefs<0>{}, TensorRefs<1>{&out},
      [values = std::move(values), out](ThreadTeam&) {
        if (!values.empty()) std::memcpy(out.raw_mutable(), values.data(), values.size() * sizeof(T));
      },
      stream);
  return out;
}

DDim column(std::size_t rows) { return DDim{static_cast<std::int64_t>(rows), 1}; }

Tensor put_scores(const std::vector<double>& values, DType dtype, StreamRef stream) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (is_floating(dtype_of<T>)) {
      std::vector<T> narrow;
      for (const double value : values) narrow.push_back(convert_element<T>(value));
      return put(std::move(narrow), column(values.size()), stream);
    } else {
      return Tensor();
    }
  });
}

/// The elements where the host can read them; a device is waited for.
Tensor on_host(const Tensor& tensor) { return internal::on_cuda(tensor.place()) ? tensor.copy_to(CpuPlace{}) : tensor; }

std::vector<std::int64_t> integers(const Tensor& there) {
  const Tensor tensor = on_host(there);
  return tensor.dtype() == DType::i64 ? tensor.to_vector<std::int64_t>() : [&] {
    const std::vector<std::int32_t> narrow = tensor.to_vector<std::int32_t>();
    return std::vector<std::int64_t>(narrow.begin(), narrow.end());
  }();
}

std::vector<double> reals(const Tensor& there) {
  const Tensor tensor = on_host(there);
  return visit_dtype(tensor.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<double> wide;
    for (const T value : tensor.to_vector<T>()) wide.push_back(convert_element<double>(value));
    return wide;
  });
}

void check_options(const char* op, const BeamOptions& options) {
  if (options.width < 1) throw ArgumentError(std::string(op) + ": expected a width of 1 or more, found " + std::to_string(options.width));
}

/// Values of one column with LoD.
void check_column(const char* op, const char* role, const LoDTensor& x, std::int64_t rows) {
  internal::check_dims(op, role, x.tensor(), DDim{rows, 1});
}

std::int64_t check_prefixes(const Prefixes& before) {
  const char* op = "beam_search_step";
  internal::check_index_dtype(op, before.ids.tensor());
  internal::check_index_dtype(op, before.lengths.tensor());
  internal::check_floating(op, before.scores.tensor());
  if (before.ids.lod().empty()) throw LoDError("beam_search_step: expected prefixes with sources, found " + before.ids.to_string());
  const std::int64_t rows = before.ids.rows();
  check_column(op, "ids", before.ids, rows);
  check_column(op, "scores", before.scores, rows);
  check_column(op, "lengths", before.lengths, rows);
  return rows;
}

void check_candidates(const Tensor& scores, const Tensor* tokens, std::int64_t rows) {
  const char* op = "beam_search_step";
  if (scores.rank() != 2 || scores.dim(0) != rows)
    throw ShapeError("beam_search_step: expected candidates of [" + std::to_string(rows) + ", K], found " + scores.to_string());
  if (tokens == nullptr) return;
  internal::check_index_dtype(op, *tokens);
  internal::check_dims(op, "tokens", *tokens, scores.dims());
}

}  // namespace

Prefixes beam_search_start(const Tensor& tokens, DType scores, StreamRef stream) {
  internal::check_index_dtype("beam_search_start", tokens);
  internal::check_device_places("beam_search_start", stream, {&tokens});
  if (!is_floating(scores)) throw DTypeError("beam_search_start: expected floats for scores, found " + std::string(name_of(scores)));
  const bool column_of = tokens.rank() == 1 || (tokens.rank() == 2 && tokens.dim(1) == 1);
  if (!column_of) throw ShapeError("beam_search_start: expected tokens of [N] or [N, 1], found " + tokens.to_string());
  const std::int64_t n = tokens.dim(0);
  const LoD::Level one(static_cast<std::size_t>(n), 1);
  const LoD lod = LoD::from_lengths({one, one});
  Tensor ids(DType::i64, DDim{n, 1}, stream.memory());
  launch(
      TensorRefs<1>{&tokens}, TensorRefs<1>{&ids},
      [tokens, ids](KernelContext& context) { internal::casts.run(tokens, ids.reshape(tokens.dims()), context); }, stream);
  const std::vector<std::int64_t> zero(static_cast<std::size_t>(n), 0);
  return {LoDTensor(ids, lod), LoDTensor(put_scores(std::vector<double>(zero.size(), 0), scores, stream), lod),
          LoDTensor(put(zero, DDim{n, 1}, stream), lod)};
}

BeamStep beam_search_step(const Prefixes& before, const Tensor& candidates, const Tensor* tokens, const BeamOptions& options,
                          StreamRef stream) {
  check_options("beam_search_step", options);
  const std::int64_t rows = check_prefixes(before);
  internal::check_same_dtype("beam_search_step", before.scores.tensor(), candidates);
  check_candidates(candidates, tokens, rows);
  const auto elsewhere = [&](const Tensor& x) { return internal::on_cuda(stream.place()) && x.host_accessible() ? nullptr : &x; };
  internal::check_device_places("beam_search_step", stream,
                                {elsewhere(before.ids.tensor()), elsewhere(candidates), tokens == nullptr ? nullptr : elsewhere(*tokens)});
  cpu::BeamInput input{
      before.ids.lod(), integers(before.ids.tensor()), reals(before.scores.tensor()), integers(before.lengths.tensor()), {}};
  if (tokens != nullptr) input.tokens = integers(*tokens);
  cpu::BeamChoice choice = cpu::choose(input, on_host(candidates), options);
  BeamStep step;
  const LoD& lod = choice.lod;
  step.kept.scores = LoDTensor(put_scores(choice.scores, candidates.dtype(), stream), lod);
  step.kept.ids = LoDTensor(put(std::move(choice.ids), column(static_cast<std::size_t>(lod.rows())), stream), lod);
  step.kept.lengths = LoDTensor(put(std::move(choice.lengths), column(static_cast<std::size_t>(lod.rows())), stream), lod);
  step.parents = put(std::move(choice.parents), DDim{lod.rows()}, stream);
  step.live = choice.live;
  return step;
}

Hypotheses beam_search_decode(const LoDTensor& ids, const LoDTensor& scores, std::int64_t steps, const BeamOptions& options,
                              StreamRef stream) {
  const char* op = "beam_search_decode";
  internal::check_index_dtype(op, ids.tensor());
  internal::check_floating(op, scores.tensor());
  if (ids.lod().depth() != 2) throw LoDError("beam_search_decode: expected ids with 2 levels of LoD, found " + ids.to_string());
  check_column(op, "ids", ids, ids.rows());
  check_column(op, "scores", scores, ids.rows());
  if (steps < 1 || ids.lod().sequences(0) % steps != 0)
    throw LoDError("beam_search_decode: expected the same sources in each of " + std::to_string(steps) + " steps, found " +
                   std::to_string(ids.lod().sequences(0)) + " sequences in all");
  const cpu::BeamTrace trace = cpu::trace_back(ids.lod(), integers(ids.tensor()), reals(scores.tensor()), steps, options);
  const LoD lod = LoD::from_lengths({trace.hypotheses, trace.lengths});
  const DType dtype = scores.dtype();
  return {LoDTensor(put(trace.tokens, column(trace.tokens.size()), stream), lod), LoDTensor(put_scores(trace.scores, dtype, stream), lod),
          LoDTensor(put_scores(trace.totals, dtype, stream), LoD::from_lengths({trace.hypotheses}))};
}

}  // namespace millrace
