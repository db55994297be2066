// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/lstm_cell.h>

#include <algorithm>

#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/lstm_kernels.h>
#include <millrace/kernels/cpu/spans.h>

namespace millrace::cpu {
namespace {

/// `Together` rows side by side for each column of a block.
template <class T, int Together>
void pack_type(const LstmLayout& layout, const Tensor& from, std::int64_t gates, bool panels, const Tensor& to, ThreadTeam& team) {
  const T* source = static_cast<const T*>(from.raw());
  T* target = static_cast<T*>(to.raw_mutable());
  const std::int64_t rows = from.dim(0), padded = (rows + Together - 1) / Together * Together, width = gates * layout.lanes * Together;
  const std::int64_t columns = panels ? layout.panel * layout.lanes : gates * layout.lanes;  // of a panel
  team.parallel(layout.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t units = layout.units(block), step = panels ? lstm_gate_step(layout.lanes, units) : layout.lanes;
      T* const first = target + block * (padded / Together) * width;
      std::fill_n(first, padded / Together * width, T{0});
      for (std::int64_t gate = 0; gate < gates; ++gate) {
        for (std::int64_t unit = 0; unit < units; ++unit) {
          const std::int64_t column = gate * step + unit, panel = column / columns;
          T* const there = first + panel * (padded / Together) * columns * Together + column % columns * Together;
          const T* const here = source + (gate * layout.hidden + block * layout.lanes + unit) * from.strides()[1];
          for (std::int64_t row = 0; row < rows; ++row)
            there[row / Together * columns * Together + row % Together] = here[row * from.strides()[0]];
        }
      }
    }
  });
}

/// The rows of one operand as pointers.
template <class T>
struct Rows {
  explicit Rows(const Tensor& x) : first(static_cast<const T*>(x.raw())), stride(x.strides()[0]) {}
  void fill(std::int64_t row, std::int64_t count, const T** to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = first + (row + i) * stride;
  }
  void fill(std::int64_t row, std::int64_t count, T** to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = const_cast<T*>(first) + (row + i) * stride;
  }
  const T* first;
  std::int64_t stride;
};

template <class T>
const T* or_null(const Tensor& x, bool used) {
  return used ? static_cast<const T*>(x.raw()) : nullptr;
}

template <class T>
void run_type(const LstmPlan& plan, const PackedLstm& weights, const Tensor& x, LstmGiven given, const Tensor& h, const Tensor& c,
              const Tensor& h_out, const Tensor& c_out, ThreadTeam& team) {
  const LstmDesc& desc = plan.desc();
  const LstmLayout layout = lstm_layout(plan);
  const Rows<T> inputs(x), hs(h), cs(c), next_hs(h_out), next_cs(c_out);
  const bool summed = given == LstmGiven::both_products;
  const std::int64_t products = summed ? 0 : desc.hidden + (given == LstmGiven::rows ? desc.input : 0);
  const std::int64_t work = 4 * layout.lanes * (products + 32);
  each_span(team, h.dim(0), max_rows, layout.blocks(), work,
            [&](std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last) {
              const T* from[3][max_rows];
              T* to[2][max_rows];
              inputs.fill(row, rows, from[0]);
              hs.fill(row, rows, from[1]);
              cs.fill(row, rows, from[2]);
              next_hs.fill(row, rows, to[0]);
              next_cs.fill(row, rows, to[1]);
              LstmCall<T> call;
              call.desc = &desc;
              call.rows = rows;
              (given == LstmGiven::rows ? call.x : call.projection) = from[0];
              (summed ? call.sums : call.h) = from[1];
              call.c = from[2];
              call.h_out = to[0];
              call.c_out = to[1];
              call.input = weights.input.raw();
              call.recurrent = weights.recurrent.raw();
              call.pairs = layout.together > 1;
              call.bias = or_null<T>(weights.bias, desc.bias);
              call.peepholes = or_null<T>(weights.peepholes, desc.peepholes);
              call.first_block = first;
              call.last_block = last;
              plan.kernels().run(call);
            });
}

}  // namespace

LstmLayout lstm_layout(const LstmPlan& plan) {
  const bool f64 = plan.desc().dtype == DType::f64;
  return {plan.desc().hidden, f64 ? plan.kernels().lanes_f64 : plan.kernels().lanes_f32, plan.kernels().panel,
          plan.desc().weights_dtype() != plan.desc().dtype ? 2 : 1};
}

void pack_gates(const LstmLayout& layout, const Tensor& from, std::int64_t gates, bool panels, const Tensor& to, ThreadTeam& team) {
  if (from.dtype() == DType::bf16) return pack_type<std::uint16_t, 2>(layout, from, gates, panels, to, team);
  if (from.dtype() == DType::f64) return pack_type<double, 1>(layout, from, gates, panels, to, team);
  pack_type<float, 1>(layout, from, gates, panels, to, team);
}

void lstm_cell(const LstmPlan& plan, const PackedLstm& weights, const Tensor& x, LstmGiven given, const Tensor& h, const Tensor& c,
               const Tensor& h_out, const Tensor& c_out, ThreadTeam& team) {
  if (h_out.elements() == 0) return;
  if (h.dtype() == DType::f64) return run_type<double>(plan, weights, x, given, h, c, h_out, c_out, team);
  run_type<float>(plan, weights, x, given, h, c, h_out, c_out, team);
}

}  // namespace millrace::cpu
