// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/gradients.h>

/// Gradients of products. Each is a product whose sums are those of kernels/gemm.h: a sum over rows runs over ascending rows, restarted every
/// 512. Under narrow weights the sums are f32, narrowed once.
namespace millrace::ops {
namespace {

/// The second factor under a first one of `dtype`: bf16 may stay under f32.
Term second(const Term& x, DType dtype) { return dtype == DType::f32 && x.dtype() == DType::bf16 ? x : cast_to(x, dtype); }

Term gemm(const Term& a, const Term& b, bool trans_a, bool trans_b, double alpha = 1) {
  Attributes attributes;
  if (alpha != 1) attributes.set("alpha", alpha);
  if (trans_a) attributes.set("trans_a", true);
  if (trans_b) attributes.set("trans_b", true);
  return call("gemm", {a, b}, std::move(attributes));
}

/// The last two axes change places.
Term swapped(const Term& x, int rank) {
  Ints perm;
  for (int axis = 0; axis < rank; ++axis) perm.push_back(axis);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return permuted(x, perm);
}

/// Whether one matrix of weights stands under any number of rows: then one product over all rows.
bool rows_by_matrix(const GradientContext& c) {
  const int left = rank_of(c, 0);
  if (rank_of(c, 1) != 2 || left < 2) return false;
  const DDim& b = *c.input_type(1).shape;
  return left == 2 || (b[0] > 0 && b[1] > 0);
}

void matrix_rule(GradientContext& c, const Term& g) {
  const int rank = rank_of(c, 0);
  if (c.wants(0)) {
    const Term b = second(value(c, 1), g.dtype());
    const Term made = rank == 2 ? gemm(g, b, false, true) : call("matmul", {g, permuted(b, {1, 0})});
    set(c, 0, cast_to(made, c.input_type(0).dtype));
  }
  if (!c.wants(1)) return;
  const Term a = cast_to(value(c, 0), g.dtype());
  // The type of A may leave its columns open, which are the rows of B.
  const Term rows = rank == 2 ? a : reshaped_to(a, {-1, (*c.input_type(1).shape)[0]});
  const Term columns = rank == 2 ? g : reshaped_to(g, {-1, (*c.input_type(1).shape)[1]});
  set(c, 1, cast_to(gemm(rows, columns, true, false), c.input_type(1).dtype));
}

void matmul_rule(GradientContext& c) {
  const Term g = gradient(c);
  if (rows_by_matrix(c)) return matrix_rule(c, g);
  const int left = rank_of(c, 0), right = rank_of(c, 1);
  // Vectors are matrices of one row or column.
  Ints gone;
  if (left == 1) gone.push_back(-2);
  if (right == 1) gone.push_back(-1);
  const Term sums = unsqueezed(g, gone);
  const int batch = std::max({left - 2, right - 2, 0});
  for (const std::size_t input : {0, 1}) {
    if (!c.wants(input)) continue;
    const int own = input == 0 ? left : right, other_rank = input == 0 ? right : left;
    Term other = input == 0 ? second(value(c, 1), g.dtype()) : cast_to(value(c, 0), g.dtype());
    if (other_rank == 1) other = unsqueezed(other, {input == 0 ? -1 : 0});
    const Term turned = swapped(other, std::max(other_rank, 2));
    Term made = input == 0 ? call("matmul", {sums, turned}) : call("matmul", {turned, sums});
    made = cast_to(made, c.input_type(input).dtype);
    if (own == 1) {
      // [batch…, 1, k] or [batch…, k, 1]: the vector met every matrix.
      made = squeezed(made, {input == 0 ? -2 : -1});
      Ints axes;
      for (int axis = 0; axis < batch; ++axis) axes.push_back(axis);
      set(c, input, axes.empty() ? made : reduced("sum", made, axes, false));
    } else if (batch == 0 || (made.type().is_static() && made.type().shape == c.input_type(input).shape)) {
      set(c, input, made);
    } else {
      set(c, input, call("sum_to", {made, value(c, input)}));
    }
  }
}

void gemm_rule(GradientContext& c) {
  const Term g = gradient(c);
  const Attributes form = c.op().attributes;
  const bool trans_a = form.get_or("trans_a", false), trans_b = form.get_or("trans_b", false);
  const double alpha = form.get_or("alpha", 1.0), beta = form.get_or("beta", 1.0);
  if (c.wants(0)) {
    const Term b = value(c, 1);
    set(c, 0, trans_a ? gemm(cast_to(b, g.dtype()), g, trans_b, true, alpha) : gemm(g, second(b, g.dtype()), false, !trans_b, alpha));
  }
  if (c.wants(1)) {
    const Term a = value(c, 0);
    set(c, 1, cast_to(trans_b ? gemm(g, a, true, trans_a, alpha) : gemm(a, g, !trans_a, false, alpha), c.input_type(1).dtype));
  }
  if (c.has(2) && c.wants(2) && beta != 0) set_summed(c, 2, g * beta);
}

}  // namespace

void add_matmul_gradients(OpRegistry& registry) {
  registry.set_gradient("matmul", matmul_rule);
  registry.set_gradient("gemm", gemm_rule);
}

}  // namespace millrace::ops
