// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/row_plan.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/gru_kernels.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/lstm_cell.h>
#include <millrace/kernels/cpu/lstm_gate_kernels.h>
#include <millrace/kernels/cpu/lstm_kernels.h>
#include <millrace/kernels/cpu/norm_kernels.h>
#include <millrace/kernels/cpu/packing.h>
#include <millrace/kernels/cpu/reduce.h>
#include <millrace/kernels/cpu/softmax_kernels.h>
#include <millrace/kernels/cpu/span_kernels.h>
#include <millrace/kernels/cpu/unary_kernels.h>

namespace millrace::cpu {
namespace {

using Kind = RowOp::Kind;

/// `inner` elements, `outer` times, where `inner` is one of few: what unfolds and transposes short sequences.
template <int inner, class T>
void copy_few(const RowOp& op, const T* from, T* to) {
  const std::int64_t from_step = op.in[0].inner_step, to_step = op.out.inner_step;
  const std::int64_t from_outer = op.in[0].outer_step, to_outer = op.out.outer_step;
  for (std::int64_t o = 0; o < op.outer; ++o) {
    T held[inner];
    for (int i = 0; i < inner; ++i) held[i] = from[o * from_outer + i * from_step];
    for (int i = 0; i < inner; ++i) to[o * to_outer + i * to_step] = held[i];
  }
}

/// The elements of one row. Within one register the order counts; else it does not.
template <class T>
void copy_grid(const RowOp& op, const T* from, T* to) {
  if (op.in[0].reg != op.out.reg) {
    switch (op.inner) {
      case 1: return copy_few<1>(op, from, to);
      case 2: return copy_few<2>(op, from, to);
      case 3: return copy_few<3>(op, from, to);
      case 4: return copy_few<4>(op, from, to);
      default: break;
    }
  }
  constexpr std::int64_t few = 8;  // so many elements are moved before a call is made
  const std::int64_t from_step = op.in[0].inner_step, to_step = op.out.inner_step;
  const std::int64_t inner = op.inner;
  for (std::int64_t o = 0; o < op.outer; ++o) {
    const T* x = from + o * op.in[0].outer_step;
    T* y = to + o * op.out.outer_step;
    if (inner >= few && from_step == 1 && to_step == 1) {
      std::memmove(y, x, static_cast<std::size_t>(inner) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < inner; ++i) y[i * to_step] = x[i * from_step];
    }
  }
}

/// One block of rows on its way through a plan.
template <class T>
class Machine {
 public:
  Machine(const RowPlan::State& plan, const RowWeights& weights, void* workspace, SpinHelper* helper)
      : plan_(plan),
        ops_(plan.desc.ops.data()),
        functions_(functions_of(plan.functions)),
        weights_(weights),
        registers_(static_cast<Register*>(workspace)),
        helper_(helper) {
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + plan.table_bytes);
  }

  /// Writes down where constants and scratch lie; once for a workspace.
  void place() {
    for (std::size_t i = 0; i < plan_.desc.registers.size(); ++i) {
      const RowRegister& reg = plan_.desc.registers[i];
      registers_[i] = {nullptr, 0, 0};
      if (reg.kind == RowRegister::Kind::constant)
        registers_[i].first = const_cast<T*>(static_cast<const T*>(weights_.constants[reg.place].raw()));
      else if (reg.kind == RowRegister::Kind::scratch)
        registers_[i] = {data_ + plan_.places[i].offset, reg.width, 0};
    }
  }

  /// Rows [first, first + rows) of the views.
  void run(std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t first, std::int64_t rows) {
    for (const std::size_t i : plan_.given) {
      const RowRegister& reg = plan_.desc.registers[i];
      const RowView& view = reg.kind == RowRegister::Kind::input ? inputs[reg.place] : outputs[reg.place];
      registers_[i] = {static_cast<T*>(view.first) + first * view.stride, view.stride, 0};
    }
    run_groups(rows);
  }

  /// `runs` times all rows, of one block, each on the next place of the tracks.
  void run(std::span<const RowTrack> inputs, std::span<const RowTrack> outputs, std::int64_t rows, std::int64_t runs) {
    const auto track_of = [&](std::size_t reg) -> const RowTrack& {
      const RowRegister& given = plan_.desc.registers[reg];
      return given.kind == RowRegister::Kind::input ? inputs[given.place] : outputs[given.place];
    };
    if (plan_.sections && runs > 1 && keeps_sections_apart(track_of, rows, runs)) return share_sections(track_of, rows, runs);
    for (const std::size_t i : plan_.given) registers_[i] = {static_cast<T*>(track_of(i).view.first), track_of(i).view.stride, 0};
    if (rows == 1)  // the only row is the first one of every tile
      for (std::size_t i = 0; i < plan_.places.size(); ++i) registers_[i].origin = 0;
    for (std::int64_t run = 0; run < runs; ++run) {
      backwards_ = run % 2 != 0;
      for (const std::size_t i : plan_.given) registers_[i].first = at_run(track_of(i), run);
      if (rows == 1)
        run_row();
      else
        run_groups(rows);
    }
  }

 private:
  using Handed = RowPlan::State::Sections::Handed;

  static const RowFunctions<T>* functions_of(const RowFunctionTable& table) { return std::get<std::vector<RowFunctions<T>>>(table).data(); }

  static T* at_run(const RowTrack& track, std::int64_t run) {
    void* const there = run % 2 != 0 && track.other != nullptr ? track.other : track.view.first;
    return reinterpret_cast<T*>(static_cast<std::byte*>(there) + run * track.step);
  }

  /// Whether a row of a run of `a` and one of `b` share memory.
  static bool meet(const RowTrack& a, std::int64_t a_width, const RowTrack& b, std::int64_t b_width, std::int64_t rows, std::int64_t runs) {
    // The memory of the even runs, or that of the odd ones.
    const auto part = [&](const RowTrack& track, std::int64_t width, std::int64_t first) {
      const std::int64_t last = first + (runs - 1 - first) / 2 * 2;
      const auto [low, high] = std::minmax({at_run(track, first), at_run(track, last)});
      return std::pair(low, high + (rows - 1) * track.view.stride + width);
    };
    for (const std::int64_t i : {0, 1})
      for (const std::int64_t j : {0, 1}) {
        const auto [a_low, a_high] = part(a, a_width, i);
        const auto [b_low, b_high] = part(b, b_width, j);
        if (a_low < b_high && b_low < a_high) return true;
      }
    return false;
  }

  /// Whether an input that lies where an output does is the only one there, and takes what the run before left, section by section.
  template <class F>
  bool keeps_sections_apart(const F& track_of, std::int64_t rows, std::int64_t runs) const {
    for (const std::size_t output : plan_.given) {
      if (plan_.desc.registers[output].kind != RowRegister::Kind::output) continue;
      bool met = false;
      for (const std::size_t input : plan_.given) {
        if (plan_.desc.registers[input].kind != RowRegister::Kind::input) continue;
        const RowTrack &from = track_of(input), &to = track_of(output);
        if (!meet(from, plan_.desc.registers[input].width, to, plan_.desc.registers[output].width, rows, runs)) continue;
        const auto handed = std::any_of(plan_.sections->handed.begin(), plan_.sections->handed.end(),
                                        [&](const Handed& each) { return each.input == input && each.output == output; });
        if (met || !handed || from.view.stride != to.view.stride || at_run(from, 1) != at_run(to, 0) || at_run(from, 2) != at_run(to, 1))
          return false;
        met = true;
      }
    }
    return true;
  }

  /// All sections, half of them by the other thread where one helps, in memory of its own.
  template <class F>
  void share_sections(const F& track_of, std::int64_t rows, std::int64_t runs) {
    const std::size_t count = plan_.sections->ops.size();
    if (helper_ == nullptr) return run_sections(track_of, rows, runs, 0, count);
    helper_->both([&](int part, int parts) {
      const std::size_t half = count / 2;
      if (part == 0) return run_sections(track_of, rows, runs, 0, parts == 1 ? count : half);
      Machine other(plan_, weights_, reinterpret_cast<std::byte*>(registers_) + plan_.machine_bytes, nullptr);
      other.place();
      other.run_sections(track_of, rows, runs, half, count);
    });
  }

  /// Sections [first, last): row by row, and section by section of a row, through all runs.
  template <class F>
  void run_sections(const F& track_of, std::int64_t rows, std::int64_t runs, std::size_t first, std::size_t last) {
    const RowPlan::State::Sections& sections = *plan_.sections;
    for (std::size_t i = 0; i < plan_.places.size(); ++i) registers_[i].origin = 0;
    functions_ = functions_of(sections.functions);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::size_t section = first; section < last; ++section) {
        ops_ = sections.ops[section].data();
        const auto steps_in_place = [&](const Handed& each) {
          return each.in_place && track_of(each.output).other != nullptr &&
                 at_run(track_of(each.input), 1) == at_run(track_of(each.output), 0);
        };
        // Every run reads and writes a state in the place that the last run has to leave it in.
        for (const Handed& each : sections.handed) {
          if (!steps_in_place(each)) continue;
          const std::int64_t count = each.in_place->outer_step,
                             begin = row * track_of(each.input).view.stride + static_cast<std::int64_t>(section) * count;
          const T* const from = at_run(track_of(each.input), 0) + begin;
          T* const to = at_run(track_of(each.output), runs - 1) + begin;
          if (from != to) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
        }
        for (std::int64_t run = 0; run < runs; ++run) {
          for (const std::size_t i : plan_.given) {
            const RowTrack& track = track_of(i);
            registers_[i] = {at_run(track, run) + row * track.view.stride, track.view.stride, 0};
          }
          for (const Handed& each : sections.handed) {
            if (!steps_in_place(each)) continue;
            const RowTrack& to = track_of(each.output);
            registers_[each.input].first = registers_[each.output].first = at_run(to, runs - 1) + row * to.view.stride;
          }
          run_ops_of_row({0, sections.ops[section].size()});
        }
      }
    }
    ops_ = plan_.desc.ops.data();
    functions_ = functions_of(plan_.functions);
  }

  struct Register {
    T* first;
    std::int64_t stride;
    std::int64_t origin;  // the row that lies at `first`
  };
  static_assert(sizeof(Register) <= 24);

  /// One row: no tiles, and no rows to find.
  void run_row() const {
    for (const RowPlan::State::Group& group : plan_.groups)
      if (group.is_pattern())
        pattern(group, 0, 1);
      else
        run_ops_of_row(group);
  }
  void run_ops_of_row(const RowPlan::State::Group& group) const {
    const auto first_of = [this](const RowOperand& operand) { return registers_[operand.reg].first + operand.begin; };
    for (std::size_t i = group.first; i < group.last; ++i) {
      const RowOp& op = ops_[i];
      const RowFunctions<T>& call = functions_[i];
      if (!call.whole_row) {
        call.heavy ? heavy(op, 1) : light(i, 0, 1);
        continue;
      }
      const auto span_of = [&](int k) { return Span<T>{first_of(op.in[k]), op.in[k].inner_step == 0}; };
      const auto count = static_cast<std::size_t>(op.outer * op.inner);
      if (op.kind == Kind::binary)
        call.binary(span_of(0), span_of(1), first_of(op.out), count);
      else if (op.kind == Kind::unary && op.in[0].inner_step != 0)
        call.unary(op.unary, op.params, first_of(op.in[0]), first_of(op.out), count);
      else
        light(i, 0, 1);
    }
  }

  void run_groups(std::int64_t rows) {
    for (const RowPlan::State::Group& group : plan_.groups) {
      if (group.tile == 0) {
        heavy(ops_[group.first], rows);
        continue;
      }
      for (std::int64_t at = 0; at < rows; at += group.tile) run_tile(group, at, std::min(group.tile, rows - at));
    }
  }

  T* at(const RowOperand& operand, std::int64_t row) const {
    const Register& reg = registers_[operand.reg];
    return reg.first + (row - reg.origin) * reg.stride + operand.begin;
  }
  std::int64_t stride(const RowOperand& operand) const { return registers_[operand.reg].stride; }

  void gru_gates(const RowPlan::State::Gru& of, std::int64_t first, std::int64_t rows) const {
    const auto there = [this](const RowOperand& operand, std::int64_t row) { return operand.reg < 0 ? nullptr : at(operand, row); };
    const GruFunction<T> function = gru_function<T>();
    for (std::int64_t row = first; row < first + rows; ++row)
      function({there(of.sums, row), there(of.candidate, row), there(of.gates_bias, row), there(of.candidate_bias, row), there(of.x, row),
                there(of.x_candidate, row), there(of.one, row), there(of.h, row), there(of.out, row), of.hidden, of.turned});
  }

  template <std::size_t Operands>
  GateRows<T, Operands> gate_rows(const RowPlan::State::Lstm& of, std::int64_t first, std::int64_t rows) const {
    GateRows<T, Operands> made;
    for (std::size_t k = 0; k < Operands; ++k) {
      if (of.operands[k].reg < 0) continue;
      made.at[k] = at(of.operands[k], first);
      made.stride[k] = stride(of.operands[k]);
    }
    made.rows = rows;
    made.hidden = of.hidden;
    return made;
  }

  /// The ops of a group that are one function.
  void pattern(const RowPlan::State::Group& group, std::int64_t first, std::int64_t rows) const {
    if (group.gru >= 0) return gru_gates(plan_.gru[static_cast<std::size_t>(group.gru)], first, rows);
    const RowPlan::State::Lstm& of = plan_.lstm[static_cast<std::size_t>(group.lstm)];
    const LstmGateFunctions<T> functions = lstm_gate_functions<T>();
    if (of.gradients)
      functions.gradients(gate_rows<lstm_gate_gradients::count>(of, first, rows));
    else
      functions.gates(gate_rows<lstm_gates::count>(of, first, rows));
  }

  void run_tile(const RowPlan::State::Group& group, std::int64_t first, std::int64_t rows) {
    for (std::size_t i = group.first; i < group.last; ++i) {
      const RowOp& op = ops_[i];
      if (plan_.places[static_cast<std::size_t>(op.out.reg)].local) registers_[op.out.reg].origin = first;
      if (op.out2.reg >= 0 && plan_.places[static_cast<std::size_t>(op.out2.reg)].local) registers_[op.out2.reg].origin = first;
      if (!group.is_pattern()) light(i, first, rows);
    }
    if (group.is_pattern()) pattern(group, first, rows);
  }

  // ---- Row-wise ops ----

  void light(std::size_t i, std::int64_t first, std::int64_t rows) const {
    const RowOp& op = ops_[i];
    const RowFunctions<T>& call = functions_[i];
    switch (op.kind) {
      case Kind::unary:
        return each_run<1>(op, call, first, rows, [&](T* out, const Span<T>* in, std::int64_t n) { unary(op, call, in[0], out, n); });
      case Kind::binary:
        return each_run<2>(op, call, first, rows,
                           [&](T* out, const Span<T>* in, std::int64_t n) { call.binary(in[0], in[1], out, static_cast<std::size_t>(n)); });
      case Kind::where:
        return each_run<3>(op, call, first, rows, [&](T* out, const Span<T>* in, std::int64_t n) {
          call.where(in[0], in[1], in[2], out, static_cast<std::size_t>(n));
        });
      case Kind::round_bf16:
        return each_run<1>(op, call, first, rows, [&](T* out, const Span<T>* in, std::int64_t n) {
          for (std::int64_t at = 0; at < n; ++at)
            out[at] = static_cast<T>(static_cast<float>(bfloat16(static_cast<float>(in[0].first[in[0].repeats ? 0 : at]))));
        });
      case Kind::quantize: return quantize(op, first, rows);
      case Kind::copy: return copy(op, first, rows);
      case Kind::reduce: return reduce(op, first, rows);
      case Kind::layer_norm_gradient: return norm_gradient(op, first, rows);
      default: return norm(op, first, rows);
    }
  }

  static void unary(const RowOp& op, const RowFunctions<T>& call, const Span<T>& in, T* out, std::int64_t n) {
    if (!in.repeats) return call.unary(op.unary, op.params, in.first, out, static_cast<std::size_t>(n));
    T one;
    call.unary(op.unary, op.params, in.first, &one, 1);
    std::fill_n(out, n, one);
  }

  static bool whole(const RowOp& op, const RowOperand& x) { return lies_whole(op, x); }
  /// Whether the same holds from row to row.
  bool whole_rows(const RowOp& op, const RowOperand& x) const {
    return whole(op, x) && stride(x) == (x.inner_step == 0 ? 0 : op.outer * op.inner);
  }

  /// Calls f(out, in, n) on the longest runs of elements that lie side by side in all operands.
  template <int Inputs, class F>
  void each_run(const RowOp& op, const RowFunctions<T>& call, std::int64_t first, std::int64_t rows, F f) const {
    if (rows == 1 && call.whole_row) {
      Span<T> in[Inputs];
      for (int k = 0; k < Inputs; ++k) in[k] = {at(op.in[k], first), op.in[k].inner_step == 0};
      return f(at(op.out, first), in, op.outer * op.inner);
    }
    bool all_whole = whole(op, op.out);
    bool all_rows = rows == 1 || whole_rows(op, op.out);
    Span<T> in[Inputs];
    for (int k = 0; k < Inputs; ++k) {
      all_whole = all_whole && whole(op, op.in[k]);
      all_rows = all_rows && (rows == 1 || whole_rows(op, op.in[k]));
      in[k].repeats = op.in[k].inner_step == 0;
    }
    const std::int64_t steps = all_whole && all_rows ? 1 : rows;
    const std::int64_t outer = all_whole ? 1 : op.outer;
    const std::int64_t n = (all_whole ? op.outer * op.inner : op.inner) * (steps == 1 ? rows : 1);
    if (n == 0) return;
    // Calls may change any memory: places that a table of registers gave once would be read again for each run.
    T* out = at(op.out, first);
    const T* from[Inputs];
    std::int64_t strides[Inputs];
    for (int k = 0; k < Inputs; ++k) {
      from[k] = at(op.in[k], first);
      strides[k] = stride(op.in[k]);
    }
    const std::int64_t out_stride = stride(op.out);
    for (std::int64_t row = 0; row < steps; ++row) {
      for (std::int64_t o = 0; o < outer; ++o) {
        for (int k = 0; k < Inputs; ++k) in[k].first = from[k] + o * op.in[k].outer_step;
        f(out + o * op.out.outer_step, in, n);
      }
      out += out_stride;
      for (int k = 0; k < Inputs; ++k) from[k] += strides[k];
    }
  }

  void copy(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    for (std::int64_t row = first; row < first + rows; ++row) copy_grid(op, at(op.in[0], row), at(op.out, row));
  }

  /// Calls f(from, to, count) for up to sum_rows rows at a time.
  template <class F>
  void each_few(const RowOp& op, std::int64_t first, std::int64_t rows, F f) const {
    const T* from[sum_rows];
    T* to[sum_rows];
    int count = 0;
    for (std::int64_t row = first; row < first + rows; ++row) {
      for (std::int64_t o = 0; o < op.outer; ++o) {
        from[count] = at(op.in[0], row) + o * op.in[0].outer_step;
        to[count] = at(op.out, row) + o * op.out.outer_step;
        if (++count < sum_rows) continue;
        f(from, to, count);
        count = 0;
      }
    }
    if (count > 0) f(from, to, count);
  }

  static T finished(const RowOp& op, T sum) {
    switch (op.reduction) {
      case Reduction::mean: return sum / static_cast<T>(op.inner);
      case Reduction::l2: return std::sqrt(sum);
      case Reduction::log_sum: return std::log(sum);
      default: return sum;
    }
  }
  static Term term_of(const RowOp& op) {
    if (op.reduction == Reduction::l2 || op.reduction == Reduction::sum_square) return Term::square;
    return op.reduction == Reduction::l1 ? Term::magnitude : Term::element;
  }

  /// Columns that stand side by side.
  void reduce_columns(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* const from = at(op.in[0], row);
      T* const to = at(op.out, row);
      if (op.reduction == Reduction::max || op.reduction == Reduction::min) {
        column_extremes(op.reduction == Reduction::max, from, op.inner, op.in[0].inner_step, op.outer, to);
        continue;
      }
      column_sums(term_of(op), from, op.inner, op.in[0].inner_step, op.outer, to);
      for (std::int64_t o = 0; o < op.outer; ++o) to[o] = finished(op, to[o]);
    }
  }

  void reduce(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    if (op.in[0].inner_step != 1) return reduce_columns(op, first, rows);
    each_few(op, first, rows, [&](const T* const* from, T* const* to, int count) {
      if (op.reduction == Reduction::max || op.reduction == Reduction::min) {
        T most[sum_rows];
        extremes(op.reduction == Reduction::max, from, count, op.inner, most);
        for (int r = 0; r < count; ++r) *to[r] = most[r];
        return;
      }
      if (op.reduction == Reduction::log_sum_exp) {
        for (int r = 0; r < count; ++r) *to[r] = log_sum_exp_row(from[r], op.inner);
        return;
      }
      T sums[sum_rows];
      ordered_sums(term_of(op), from, count, op.inner, sums);
      for (int r = 0; r < count; ++r) *to[r] = finished(op, sums[r]);
    });
  }

  void norm(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    if (op.inner == 0) return;
    if (op.kind == Kind::softmax || op.kind == Kind::log_softmax) {
      for (std::int64_t row = first; row < first + rows; ++row) {
        for (std::int64_t o = 0; o < op.outer; ++o) {
          const T* const from = at(op.in[0], row) + o * op.in[0].outer_step;
          T* const to = at(op.out, row) + o * op.out.outer_step;
          op.kind == Kind::softmax ? softmax_row(from, to, op.inner) : log_softmax_row(from, to, op.inner);
        }
      }
      return;
    }
    each_few(op, first, rows, [&](const T* const* from, T* const* to, int count) {
      layer_norm_rows(from, to, count, op.inner, at(op.in[1], first), op.in[2].reg < 0 ? nullptr : at(op.in[2], first),
                      static_cast<T>(op.epsilon));
    });
  }

  void norm_gradient(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    if (op.inner == 0) return;
    const auto part = [this](const RowOperand& of, std::int64_t row, std::int64_t o) { return at(of, row) + o * of.outer_step; };
    const T* const scale = at(op.in[1], first);
    NormGradientRow<T> some[norm_rows];
    int count = 0;
    for (std::int64_t row = first; row < first + rows; ++row) {
      for (std::int64_t o = 0; o < op.outer; ++o) {
        some[count] = {part(op.in[0], row, o), part(op.in[2], row, o), scale, part(op.out, row, o), part(op.out2, row, o)};
        if (++count < norm_rows) continue;
        layer_norm_gradient_rows(some, count, op.inner, static_cast<T>(op.epsilon));
        count = 0;
      }
    }
    if (count > 0) layer_norm_gradient_rows(some, count, op.inner, static_cast<T>(op.epsilon));
  }

  // ---- Products and cells ----

  void heavy(const RowOp& op, std::int64_t rows) const {
    if (op.kind == Kind::matmul) return matmul(op, rows);
    if (op.kind == Kind::matmul_int8) return matmul_int8(op, rows);
    if (op.kind == Kind::function) return function(op, rows);
    cell(op, rows);
  }

  void function(const RowOp& op, std::int64_t rows) const {
    const RowFunction& call = weights_.functions[op.weights];
    if (op.outer == 1)
      return call_rows(call, op, rows, [&](const RowOperand& operand) { return RowView{at(operand, 0), stride(operand)}; });
    for (std::int64_t row = 0; row < rows; ++row)
      call_rows(call, op, op.outer, [&](const RowOperand& operand) { return RowView{at(operand, row), operand.outer_step}; });
  }

  template <class F>
  static void call_rows(const RowFunction& call, const RowOp& op, std::int64_t rows, F view) {
    RowView in[RowOp::most_inputs];
    std::size_t inputs = 0;
    for (; inputs < RowOp::most_inputs && op.in[inputs].reg >= 0; ++inputs) in[inputs] = view(op.in[inputs]);
    const RowView out[2] = {view(op.out), op.out2.reg >= 0 ? view(op.out2) : RowView{}};
    call({in, inputs}, {out, op.out2.reg >= 0 ? 2U : 1U}, rows);
  }

  void quantize(const RowOp& op, std::int64_t first, std::int64_t rows) const {
    if constexpr (std::is_same_v<T, float>) {
      const Int8Kernels& kernels = int8_kernels();
      for (std::int64_t row = first; row < first + rows; ++row)
        for (std::int64_t o = 0; o < op.outer; ++o)
          kernels.quantize(at(op.in[0], row) + o * op.in[0].outer_step, op.inner,
                           reinterpret_cast<std::int8_t*>(at(op.out, row) + o * op.out.outer_step),
                           at(op.out2, row) + o * op.out2.outer_step);
    }
  }

  void matmul_int8(const RowOp& op, std::int64_t rows) const {
    if constexpr (std::is_same_v<T, float>) {
      const RowWeights::Int8& matrix = weights_.int8[op.weights];
      const Int8Layout layout{matrix.plan.desc().k, matrix.plan.desc().n, matrix.plan.kernels().lanes, matrix.plan.kernels().group};
      const std::uint8_t* a[max_rows];
      const float* scales[max_rows];
      float* out[max_rows];
      Int8Call call{a,
                    scales,
                    out,
                    0,
                    layout.k,
                    static_cast<const std::int8_t*>(matrix.packed.data.raw()),
                    static_cast<const std::int32_t*>(matrix.packed.offsets.raw()),
                    static_cast<const float*>(matrix.packed.scales.raw()),
                    layout.columns,
                    0,
                    layout.panels()};
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t o = 0; o < op.outer; ++o) {
          a[call.rows] = reinterpret_cast<const std::uint8_t*>(at(op.in[0], row) + o * op.in[0].outer_step);
          scales[call.rows] = at(op.in[1], row) + o * op.in[1].outer_step;
          out[call.rows] = at(op.out, row) + o * op.out.outer_step;
          if (++call.rows < max_rows) continue;
          matrix.plan.kernels().multiply(call);
          call.rows = 0;
        }
      }
      if (call.rows > 0) matrix.plan.kernels().multiply(call);
    }
  }

  void matmul(const RowOp& op, std::int64_t rows) const {
    const RowWeights::Matrix& matrix = weights_.matrices[op.weights];
    const bool pairs = matrix.plan.desc().weights_dtype() == DType::bf16;
    const PackedLayout layout = layout_for<T>(matrix.plan.kernels(), matrix.plan.desc().k, matrix.plan.desc().n, pairs ? 2 : 1);
    const T* a[max_rows];
    T* out[max_rows];
    MatrixCall<T> call;
    call.a = a;
    call.out = out;
    call.k = layout.k;
    if (pairs)
      call.pairs = static_cast<const std::uint16_t*>(matrix.packed.data.raw());
    else
      call.b = static_cast<const T*>(matrix.packed.data.raw());
    call.panel_stride = layout.panel_stride();
    call.columns = layout.columns;
    call.last_panel = layout.panels();
    call.backwards = backwards_;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t o = 0; o < op.outer; ++o) {
        a[call.rows] = at(op.in[0], row) + o * op.in[0].outer_step;
        out[call.rows] = at(op.out, row) + o * op.out.outer_step;
        if (++call.rows < max_rows) continue;
        run_panels(matrix, call);
        call.rows = 0;
      }
    }
    if (call.rows > 0) run_panels(matrix, call);
  }

  void run_panels(const RowWeights::Matrix& matrix, const MatrixCall<T>& call) const {
    if (helper_ == nullptr || call.rows * call.k * call.columns < row_split_work) return matrix.plan.kernels().run(call);
    helper_->both([&](int part, int parts) {
      MatrixCall<T> mine = call;
      mine.first_panel = call.last_panel * part / parts;
      mine.last_panel = call.last_panel * (part + 1) / parts;
      matrix.plan.kernels().run(mine);
    });
  }

  void cell(const RowOp& op, std::int64_t rows) const {
    const RowWeights::Cell& cell = weights_.cells[op.weights];
    const LstmDesc& desc = cell.plan.desc();
    const T* from[3][max_rows];
    T* to[2][max_rows];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (int k = 0; k < 3; ++k) from[k][row] = at(op.in[k], row);
      to[0][row] = at(op.out, row);
      to[1][row] = at(op.out2, row);
    }
    LstmCall<T> call;
    call.desc = &desc;
    call.rows = rows;
    (op.projected ? call.projection : call.x) = from[0];
    (op.summed ? call.sums : call.h) = from[1];
    call.c = from[2];
    call.h_out = to[0];
    call.c_out = to[1];
    const auto data = [](const Tensor& part, bool used) { return used ? static_cast<const T*>(part.raw()) : nullptr; };
    call.input = op.projected ? nullptr : cell.packed.input.raw();
    call.recurrent = op.summed ? nullptr : cell.packed.recurrent.raw();
    call.pairs = desc.weights_dtype() != desc.dtype;
    call.bias = data(cell.packed.bias, desc.bias);
    call.peepholes = data(cell.packed.peepholes, desc.peepholes);
    call.last_block = lstm_layout(cell.plan).blocks();
    call.backwards = backwards_;
    const std::int64_t sums = desc.hidden + (op.projected ? 0 : desc.input);
    if (helper_ == nullptr || rows * sums * 4 * desc.hidden < row_split_work) return cell.plan.kernels().run(call);
    helper_->both([&](int part, int parts) {
      LstmCall<T> mine = call;
      mine.first_block = call.last_block * part / parts;
      mine.last_block = call.last_block * (part + 1) / parts;
      cell.plan.kernels().run(mine);
    });
  }

  const RowPlan::State& plan_;
  const RowOp* ops_;  // the plan's, or those of a section
  const RowFunctions<T>* functions_;
  const RowWeights& weights_;
  Register* registers_;
  T* data_;
  SpinHelper* helper_;
  /// Every second run of many reads weights from their end on: it finds in the cache what the run before it read last.
  bool backwards_ = false;
};

}  // namespace

template <class T>
void place_registers(const RowPlan::State& plan, const RowWeights& weights, void* workspace) {
  Machine<T>(plan, weights, workspace, nullptr).place();
}

template <class T>
void run_rows(const RowPlan::State& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
              std::int64_t rows, void* workspace, SpinHelper* helper) {
  Machine<T> machine(plan, weights, workspace, helper);
  for (std::int64_t first = 0; first < rows; first += plan.block_rows)
    machine.run(inputs, outputs, first, std::min(plan.block_rows, rows - first));
}

template <class T>
void run_tracks(const RowPlan::State& plan, const RowWeights& weights, std::span<const RowTrack> inputs, std::span<const RowTrack> outputs,
                std::int64_t rows, std::int64_t runs, void* workspace, SpinHelper* helper) {
  Machine<T>(plan, weights, workspace, helper).run(inputs, outputs, rows, runs);
}

template void run_tracks<float>(const RowPlan::State&, const RowWeights&, std::span<const RowTrack>, std::span<const RowTrack>,
                                std::int64_t, std::int64_t, void*, SpinHelper*);
template void run_tracks<double>(const RowPlan::State&, const RowWeights&, std::span<const RowTrack>, std::span<const RowTrack>,
                                 std::int64_t, std::int64_t, void*, SpinHelper*);
template void place_registers<float>(const RowPlan::State&, const RowWeights&, void*);
template void place_registers<double>(const RowPlan::State&, const RowWeights&, void*);
template void run_rows<float>(const RowPlan::State&, const RowWeights&, std::span<const RowView>, std::span<const RowView>, std::int64_t,
                              void*, SpinHelper*);
template void run_rows<double>(const RowPlan::State&, const RowWeights&, std::span<const RowView>, std::span<const RowView>, std::int64_t,
                               void*, SpinHelper*);

}  // namespace millrace::cpu
