// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/linear_attention.h>

#include <cmath>
#include <string>
#include <vector>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/internal/cells.h>

namespace millrace::layers {
namespace {

using namespace build;

/// Extents of one step, checked.
struct Form {
  std::int64_t queries, heads, keys, values;
  std::int64_t decays = 0;  ///< numbers of g: 0, H or H·D
  std::int64_t rates = 0;   ///< numbers of β: 0, 1 or H
  double scale;
};

std::int64_t width(const Var& x, const char* name) {
  const VarType& type = x.type();
  const std::int64_t found = type.rank() > 0 ? (*type.shape)[type.rank() - 1] : DDim::unknown;
  if (found < 1)
    throw ProgramError(std::string("linear_attention: expected a ") + name + " whose last axis is known and not empty, found " +
                       type.to_string());
  return found;
}

std::int64_t part(std::int64_t whole, std::int64_t heads, const char* name) {
  if (heads < 1 || whole % heads != 0)
    throw ProgramError(std::string("linear_attention: expected a ") + name + " of " + std::to_string(heads) +
                       " equal heads, found a width of " + std::to_string(whole));
  return whole / heads;
}

/// The width of an input that is there if and only if the update uses it.
std::int64_t optional_width(const Var& x, bool used, const char* name, std::int64_t a, std::int64_t b) {
  if (used != x.defined())
    throw ProgramError(std::string("linear_attention: expected ") + (used ? "a " : "no ") + name + " with this update, found " +
                       (used ? "none" : "one"));
  if (!used) return 0;
  const std::int64_t found = width(x, name);
  if (found != a && found != b)
    throw ProgramError(std::string("linear_attention: expected a ") + name + " of " + std::to_string(a) + " or " + std::to_string(b) +
                       " numbers, found " + std::to_string(found));
  return found;
}

Form form_of(const LinearAttentionInputs& in, const LinearAttentionOptions& options) {
  Form form{};
  form.queries = options.query_heads;
  form.heads = options.heads;
  part(form.queries, form.heads, "number of heads of the query");
  form.keys = part(width(in.key, "key"), form.heads, "key");
  form.values = part(width(in.value, "value"), form.heads, "value");
  if (part(width(in.query, "query"), form.queries, "query") != form.keys)
    throw ProgramError("linear_attention: expected heads of query and key of equal widths, found " + in.query.type().to_string() + " and " +
                       in.key.type().to_string());
  form.decays = optional_width(in.decay, reads_decay(options.update), "decay", form.heads, form.heads * form.keys);
  form.rates = optional_width(in.rate, reads_rate(options.update), "rate", form.heads, 1);
  form.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(form.keys)));
  return form;
}

/// One step: rows of q, k, v and, where they are used, of g and β.
CellStep step(const Form& f, const std::vector<Var>& rows, const Var& before) {
  const std::int64_t h = f.heads, shared = f.queries / f.heads;
  const Var q = reshape(rows[0], {0, h, shared, f.keys, 1});
  const Var k = reshape(rows[1], {0, h, f.keys, 1});
  Var v = reshape(rows[2], {0, h, 1, f.values});
  Var state = reshape(before, {0, h, f.keys, f.values});
  if (f.decays > 0) state = state * exp(reshape(rows[3], {0, h, f.decays / h, 1}));
  if (f.rates > 0) v = reshape(rows.back(), {0, f.rates, 1, 1}) * (v - sum(state * k, {2}, true));
  state = state + v * k;
  const Var read = sum(reshape(state, {0, h, 1, f.keys, f.values}) * q, {3}) * internal::number(f.scale, rows[0].type().dtype);
  return {reshape(read, {0, f.queries * f.values}), {reshape(state, {0, h * f.keys * f.values})}};
}

}  // namespace

Unrolled linear_attention(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options, const Var& initial) {
  const Form form = form_of(inputs, options);
  std::vector<Var> sequences{inputs.query, inputs.key, inputs.value};
  if (form.decays > 0) sequences.push_back(inputs.decay);
  if (form.rates > 0) sequences.push_back(inputs.rate);
  const RowsCell cell = [&form](const std::vector<Var>& rows, const std::vector<Var>& states) { return step(form, rows, states.at(0)); };
  return unroll_together(cell, sequences, {{form.heads * form.keys * form.values, initial}});
}

}  // namespace millrace::layers
