// SPDX-License-Identifier: Apache-2.0
// Ops that the backward of loops is made of: gradients of an array's slots as a list, and of ops that move rows.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/array/reorder.h>
#include <millrace/runtime/array/unpack.h>
#include <millrace/runtime/program/internal/input_name.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arrays.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/row_moves.h>
#include <millrace/runtime/program/vectorize.h>
#include <millrace/tensor/copy.h>

namespace millrace::ops {
namespace {

using Rows = std::vector<std::int64_t>;

// ---- Lists of gradients: element i belongs to slot i, and no element (or one of extents [0]) is zero ----

Tensor missing(DType dtype) {
  Tensor none(dtype, DDim{0});
  none.storage()->mark_written();
  return none;
}
bool is_missing(const TensorList& list, std::int64_t index) { return index >= list.size() || list.at(index).dims() == DDim{0}; }

std::vector<Tensor> elements_of(const TensorList& list, std::int64_t least, DType dtype) {
  std::vector<Tensor> all(list.elements().begin(), list.elements().end());
  while (std::cmp_less(all.size(), least)) all.push_back(missing(dtype));
  return all;
}

Tensor sum_of(const Tensor& a, const Tensor& b, StreamRef stream) {
  if (a.dims() != b.dims()) throw ShapeError("expected gradients of one slot to agree, found " + a.to_string() + " and " + b.to_string());
  return add(a, b, stream);
}

const VarType& list_type(const InferContext& context, std::size_t input) {
  if (!context.type(input).is_list())
    throw ProgramError("expected a list as " + millrace::internal::input_name(context.program(), context.op(), input) + ", found " +
                       context.describe(input));
  return context.type(input);
}

void expect_slot(const InferContext& context, std::size_t input) {
  expect_index(context, input);
  expect_scalar(context, input);
}

OpDef plain_op(const char* name, std::vector<std::string> inputs, void (*infer)(InferContext&), void (*run)(OpContext&),
               std::vector<std::string> attributes = {}) {
  OpDef def = define(name, std::move(inputs), {"Out"}, std::move(attributes));
  def.infer = infer;
  if (run != nullptr) def.prepare = [run](const PrepareContext&) -> OpKernel { return run; };
  def.passes_lod = false;
  return def;
}

/// Slots may differ in all extents: the list says nothing of them.
VarType gradients_type(const VarType& slot) {
  VarType element =
      slot.shape ? VarType(slot.dtype, DDim(Ints(static_cast<std::size_t>(slot.rank()), DDim::unknown))) : VarType::unranked(slot.dtype);
  return VarType::list_of(element);
}

OpDef no_slot_gradients_op() {
  return plain_op(
      "no_slot_gradients", {"Array?"},
      [](InferContext& context) {
        if (context.has(0)) return context.result(gradients_type(slot_type(context, 0)));
        const Attributes& attributes = context.attributes();
        const std::int64_t rank = attributes.get_or("rank", std::int64_t{-1});
        VarType element = VarType::unranked(attributes.get<DType>("dtype"));
        if (rank >= 0) element = VarType(element.dtype, DDim(Ints(static_cast<std::size_t>(rank), DDim::unknown)));
        context.result(VarType::list_of(element));
      },
      [](OpContext& run) { run.set(0, TensorList()); }, {"dtype", "rank"});
}

OpDef add_slot_gradient_op() {
  OpDef def = plain_op(
      "add_slot_gradient", {"List", "Index", "X"},
      [](InferContext& context) {
        expect_slot(context, 1);
        if (context.tensor(2).dtype != list_type(context, 0).dtype)
          throw ProgramError("expected a gradient of the list's dtype, found " + context.describe(2) + " for " + context.describe(0));
        context.result(context.type(0));
      },
      [](OpContext& run) {
        const std::int64_t index = run.tensor(1).item_int();
        const TensorList& list = run.in(0).list();
        const Tensor& x = run.tensor(2);
        if (index < 0) return run.set(0, list);  // a boot
        const Tensor total = is_missing(list, index) ? x : sum_of(list.at(index), x, run.stream());
        const TensorList all = index < list.size() ? list : TensorList(elements_of(list, index + 1, x.dtype()));
        run.set(0, all.erase(index).insert(index, total));  // shares the other elements
      });
  def.host_inputs = {1};
  return def;
}

OpDef slot_gradient_op() {
  OpDef def = plain_op(
      "slot_gradient", {"List", "Index", "Like"},
      [](InferContext& context) {
        list_type(context, 0);
        expect_slot(context, 1);
        context.result(tensor_type(context.tensor(2).dtype, context.tensor(2).shape));
      },
      [](OpContext& run) {
        const std::int64_t index = run.tensor(1).item_int();
        const TensorList& list = run.in(0).list();
        const Tensor& like = run.tensor(2);
        if (index < 0 || is_missing(list, index)) return run.set(0, full(like.dims(), 0, like.dtype(), run.stream()));
        run.set(0, list.at(index));
      });
  def.host_inputs = {1};
  return def;
}

OpDef sum_slot_gradients_op() {
  return plain_op(
      "sum_slot_gradients", {"A", "B"},
      [](InferContext& context) {
        list_type(context, 1);
        context.result(list_type(context, 0));
      },
      [](OpContext& run) {
        const TensorList& a = run.in(0).list();
        const TensorList& b = run.in(1).list();
        std::vector<Tensor> all(a.elements().begin(), a.elements().end());
        for (std::int64_t i = 0; i < b.size(); ++i) {
          if (std::cmp_less_equal(all.size(), i))
            all.push_back(b.at(i));
          else if (is_missing(a, i))
            all[static_cast<std::size_t>(i)] = b.at(i);
          else if (!is_missing(b, i))
            all[static_cast<std::size_t>(i)] = sum_of(a.at(i), b.at(i), run.stream());
        }
        run.set(0, TensorList(std::move(all)));
      });
}

VarType like_input(const InferContext& context, std::size_t input) {
  return tensor_type(context.tensor(input).dtype, context.tensor(input).shape);
}

// ---- Between arrays and lists: run by array_ops.cpp ----

OpDef gradients_of_array_op() {
  return plain_op(
      "slot_gradients_of", {"Array"}, [](InferContext& context) { context.result(gradients_type(slot_type(context, 0))); }, nullptr);
}

/// An array of the slots and the order of `Array`.
OpDef array_of_gradients_op() {
  OpDef def = plain_op(
      "slot_gradients_to_array", {"List", "Array"},
      [](InferContext& context) {
        list_type(context, 0);
        context.result(slot_type(context, 1));
      },
      nullptr);
  def.outputs = {"Array"};
  def.attributes = {"dtype", "shape"};
  def.pure = false;
  return def;
}

OpDef concat_gradient_op() {
  return plain_op(
      "concat_gradient", {"Gradient", "Array"},
      [](InferContext& context) {
        context.tensor(0);
        context.result(gradients_type(slot_type(context, 1)));
      },
      nullptr);
}

/// The gradient of tensor_array_unstack: the slots' gradients where the slots were in X.
OpDef unstack_gradient_op() {
  OpDef def = plain_op(
      "unstack_gradient", {"List", "X"},
      [](InferContext& context) {
        list_type(context, 0);
        context.result(like_input(context, 1));
      },
      [](OpContext& run) {
        const TensorList& list = run.in(0).list();
        const Tensor& x = run.tensor(1);
        const int axis = x.dims().checked_axis(static_cast<int>(run.op().attributes.get_or("axis", std::int64_t{0})));
        Tensor made = full(x.dims(), 0, x.dtype(), run.stream());
        for (std::int64_t i = 0; i < x.dim(axis); ++i) {
          if (is_missing(list, i) && x.dims().erased(axis) != DDim{0}) continue;
          Tensor slot = made.select(axis, i);
          copy(list.at(i), slot, run.stream());
        }
        run.set(0, std::move(made));
      });
  def.attributes = {"axis"};
  return def;
}

OpDef unpack_as_op() {
  OpDef def = plain_op(
      "unpack_as", {"X", "Order"},
      [](InferContext& context) {
        expect_order(context, 1);
        const VarType& x = context.tensor(0);
        if (x.lod_depth == 0) throw ProgramError("expected rows with LoD, found " + context.describe(0));
        std::optional<DDim> slot = x.shape;
        if (slot && slot->rank() > 0) (*slot)[0] = DDim::unknown;
        context.result(VarType::array_of(x.dtype, slot, true));
      },
      [](OpContext& run) {
        const SequenceOrder& order = run.in(1).order();
        auto made = unpack(run.in(0).tensor(), order.level(), order.sorted(), run.stream(), order.reversed());
        run.set(0, std::move(made.first));
      });
  def.outputs = {"Array"};
  return def;
}

// ---- Rows that an op moved: back where they came from, zeros elsewhere ----

/// 0, 1, 2 … for each row of `x`, with its LoD.
Tensor row_numbers(const Tensor& x, StreamRef stream) { return arange(0, static_cast<double>(x.dim(0)), 1, DType::i64, stream); }

Tensor put_back(const Tensor& gradient, const Tensor& rows, const DDim& dims, StreamRef stream) {
  Tensor made = full(dims, 0, gradient.dtype(), stream);
  scatter_rows(gradient, rows, made, stream);
  return made;
}

/// i64 [rows]: which row of the state each row of `shrink` is.
Tensor rows_of_shrink(const SlotValue& state, const SlotValue& step, StreamRef stream) {
  const LoDTensor numbers(row_numbers(state.tensor(), stream), state.lod());
  const SlotValue moved = state.has_order() ? SlotValue(numbers, state.order(), state.iteration()) : SlotValue(numbers);
  return shrunk(moved, step, stream).tensor();
}

/// i64 [rows]: the row of X that each row of `reorder` is.
Tensor rows_of_reorder(const LoDTensor& x, const SequenceOrder& order, StreamRef stream) {
  return reorder(LoDTensor(row_numbers(x.tensor(), stream), x.lod()), order, stream).tensor();
}

OpDef shrink_gradient_op() {
  return plain_op(
      "shrink_gradient", {"Gradient", "State", "Step"}, [](InferContext& context) { context.result(like_input(context, 1)); },
      [](OpContext& run) {
        const SlotValue& state = run.in(1).tensor();
        const Tensor rows = rows_of_shrink(state, run.in(2).tensor(), run.stream());
        run.set(0, put_back(run.tensor(0), rows, state.dims(), run.stream()));
      });
}

OpDef shrink_rows_op() {
  return plain_op(
      "shrink_rows", {"State", "Step"},
      [](InferContext& context) {
        context.tensor(0);
        context.tensor(1);
        context.result(VarType(DType::i64, DDim{DDim::unknown}));
      },
      [](OpContext& run) { run.set(0, rows_of_shrink(run.in(0).tensor(), run.in(1).tensor(), run.stream())); });
}

OpDef reorder_gradient_op() {
  return plain_op(
      "reorder_gradient", {"Gradient", "X", "Order"},
      [](InferContext& context) {
        expect_order(context, 2);
        context.result(like_input(context, 1));
      },
      [](OpContext& run) {
        const LoDTensor& x = run.in(1).tensor();
        run.set(0, put_back(run.tensor(0), rows_of_reorder(x, run.in(2).order(), run.stream()), x.dims(), run.stream()));
      });
}

/// Of an array, its order; where it has none, rows stay.
OpDef reorder_rows_op() {
  return plain_op(
      "reorder_rows", {"X", "Order"},
      [](InferContext& context) {
        if (!context.type(1).is_array()) expect_order(context, 1);
        context.result(VarType(DType::i64, DDim{extent(context, 0, 0)}));
      },
      [](OpContext& run) {
        const LoDTensor& x = run.in(0).tensor();
        const std::optional<SequenceOrder> order = run.in(1).is_array() ? run.in(1).array().order() : run.in(1).order();
        run.set(0, order ? rows_of_reorder(x, *order, run.stream()) : row_numbers(x.tensor(), run.stream()));
      });
}

/// The gradient of the boot of tensor_array_read: zeros, unless the read was in front of slot 0.
OpDef boot_gradient_op() {
  OpDef def = plain_op(
      "boot_gradient", {"Gradient", "Array", "Index", "Boot"},
      [](InferContext& context) {
        array_type(context, 1);
        expect_slot(context, 2);
        context.result(like_input(context, 3));
      },
      [](OpContext& run) {
        const LoDTensor& boot = run.in(3).tensor();
        if (run.tensor(2).item_int() >= 0) return run.set(0, full(boot.dims(), 0, boot.dtype(), run.stream()));
        const auto& order = run.in(1).array().order();
        if (!order) return run.set(0, run.tensor(0));
        run.set(0, put_back(run.tensor(0), rows_of_reorder(boot, *order, run.stream()), boot.dims(), run.stream()));
      });
  def.host_inputs = {2};
  return def;
}

void run_last_rows_gradient(OpContext& run) {
  const SequenceOrder& order = run.in(1).order();
  const Tensor& gradient = run.tensor(0);
  Rows of_boot(static_cast<std::size_t>(order.sequences()), -1);
  std::map<std::int64_t, Rows> by_step;  // the sequence whose last row a row of the slot is, or −1
  for (std::int64_t rank = 0; rank < order.sequences(); ++rank) {
    const std::int64_t sequence = order.permutation()[static_cast<std::size_t>(rank)];
    const std::int64_t length = order.lengths()[static_cast<std::size_t>(rank)];
    if (length == 0) {
      of_boot[static_cast<std::size_t>(sequence)] = sequence;
      continue;
    }
    const Rows live = order.live_ranks(length - 1);
    Rows& rows = by_step.try_emplace(length - 1, live.size(), -1).first->second;
    rows[static_cast<std::size_t>(std::find(live.begin(), live.end(), rank) - live.begin())] = sequence;
  }
  std::vector<Tensor> slots(static_cast<std::size_t>(order.steps()), missing(gradient.dtype()));
  for (const auto& [step, rows] : by_step) slots[static_cast<std::size_t>(step)] = gather_rows(gradient, rows, run.stream());
  run.set(0, TensorList(std::move(slots)));
  run.set(1, gather_rows(gradient, of_boot, run.stream()));
}

OpDef last_rows_gradient_op() {
  OpDef def = plain_op(
      "last_rows_gradient", {"Gradient", "Order"},
      [](InferContext& context) {
        expect_order(context, 1);
        context.result(gradients_type(context.tensor(0)));
        context.result(like_input(context, 0));
      },
      run_last_rows_gradient);
  def.outputs = {"List", "Boot"};
  return def;
}

/// The gradient of `Gradient` in last_rows_gradient: of each sequence the row of its last step, else its row of Boot.
OpDef last_rows_of_op() {
  return plain_op(
      "last_rows_of", {"List", "Order", "Boot"},
      [](InferContext& context) {
        list_type(context, 0);
        expect_order(context, 1);
        context.result(like_input(context, 2));
      },
      [](OpContext& run) {
        const TensorList& list = run.in(0).list();
        const SequenceOrder& order = run.in(1).order();
        const Tensor& boot = run.tensor(2);
        Rows of_boot(static_cast<std::size_t>(order.sequences()), -1);
        std::map<std::int64_t, std::pair<Rows, Rows>> by_step;  // rows of a slot, and the sequences whose last ones they are
        for (std::int64_t rank = 0; rank < order.sequences(); ++rank) {
          const std::int64_t sequence = order.permutation()[static_cast<std::size_t>(rank)];
          const std::int64_t last = order.lengths()[static_cast<std::size_t>(rank)] - 1;
          if (last < 0) of_boot[static_cast<std::size_t>(sequence)] = sequence;
          if (last < 0 || is_missing(list, last)) continue;
          const Rows live = order.live_ranks(last);
          auto& [rows, sequences] = by_step[last];
          rows.push_back(std::find(live.begin(), live.end(), rank) - live.begin());
          sequences.push_back(sequence);
        }
        Tensor made = gather_rows(boot, of_boot, run.stream());
        for (const auto& [step, moved] : by_step) {
          const Tensor rows = gather_rows(list.at(step), moved.first, run.stream());
          scatter_rows(rows, moved.second, made, run.stream());
        }
        run.set(0, std::move(made));
      });
}

/// The windows of one phase of a truncation: run j of `every` items has the window of the last `reach` items up to its end, and belongs to phase
/// j mod `phases`.
struct RunWindows {
  std::int64_t every, reach, phases, phase;

  explicit RunWindows(const Attributes& attributes)
      : every(attributes.get<std::int64_t>("every")),
        reach(attributes.get_or("reach", every)),
        phases(attributes.get_or("phases", std::int64_t{1})),
        phase(attributes.get_or("phase", std::int64_t{0})) {}
  /// Whether a window begins at the item, and items come before it.
  bool begins(std::int64_t item) const {
    const std::int64_t end = item + reach;  // of its run
    return item > 0 && end % every == 0 && (end / every - 1) % phases == phase;
  }
  /// Whether the item belongs to a run of the phase, and to that run's window.
  bool feeds(std::int64_t item) const {
    const std::int64_t run = item / every;
    return run % phases == phase && (run + 1) * every - item <= reach;
  }
};

/// [rows, 1] of the dtype of X: 0 in the first row of each window of a sequence of `level` but those that begin with the sequence, 1 elsewhere; with
/// `feeds`, 1 in the rows of the runs of the phase, as far as they are in their windows, 0 elsewhere. Reversed, runs begin at the ends of the
/// sequences.
void run_run_rows(OpContext& run) {
  const Attributes& attributes = run.op().attributes;
  const RunWindows windows(attributes);
  const bool reverse = attributes.get_or("reverse", false), feeds = attributes.get_or("feeds", false);
  const LoDTensor& x = run.in(0).tensor();
  const std::vector<std::int64_t> lengths = x.lod().lengths(static_cast<int>(attributes.get<std::int64_t>("level")));
  Rows rows;
  for (const std::int64_t length : lengths)
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t item = reverse ? length - 1 - i : i;
      rows.push_back((feeds ? windows.feeds(item) : !windows.begins(item)) ? 0 : -1);
    }
  const Tensor one = full(DDim{1, 1}, 1, x.dtype(), run.stream());
  run.set(0, LoDTensor(gather_rows(one, rows, run.stream()), x.lod()));
}

OpDef run_rows_op() {
  return plain_op(
      "run_rows", {"X"},
      [](InferContext& context) {
        const auto level = context.attributes().get<std::int64_t>("level");
        if (level < 0 || level + 1 != context.tensor(0).lod_depth)
          throw ProgramError("expected the last level of LoD, found level " + std::to_string(level) + " for " + context.describe(0));
        const RunWindows windows(context.attributes());
        if (windows.every < 1 || windows.reach < 1 || windows.phase < 0 || windows.phase >= windows.phases)
          throw ProgramError("attributes 'every' and 'reach': expected 1 or more, and 'phase' below 'phases'");
        context.result(VarType(context.tensor(0).dtype, DDim{extent(context, 0, 0), 1}, context.tensor(0).lod_depth));
      },
      run_run_rows, {"every", "reach", "phase", "phases", "level", "reverse", "feeds"});
}

/// Marks slot Index of the array as one that has the value X already; does nothing.
OpDef written_op() {
  OpDef def =
      plain_op("tensor_array_written", {"Array", "Index", "X"}, [](InferContext& context) { array_type(context, 0); }, [](OpContext&) {});
  def.outputs = {};
  return def;
}

/// The value of its input; nothing flows back through it.
OpDef stop_gradient_op() {
  OpDef def = define("stop_gradient", {"X"}, {"Out"});
  def.infer = [](InferContext& context) {
    VarType type = context.tensor(0);
    type.ordered = false;
    context.result(std::move(type));
  };
  def.prepare = [](const PrepareContext&) -> OpKernel { return [](OpContext& run) { run.set(0, run.in(0)); }; };
  def.follow_rows = [](const InferContext&, const std::vector<int>& axes) { return axes; };
  def.vectorize = [](Vectorizer& v, const Op& op) { v.bind(op.outputs[0], v.get(op.inputs[0]), v.batched(op.inputs[0])); };
  def.cuts_gradient = true;
  return def;
}

}  // namespace

void add_slot_gradient_ops(OpRegistry& registry) {
  registry.add(no_slot_gradients_op());
  registry.add(add_slot_gradient_op());
  registry.add(slot_gradient_op());
  registry.add(sum_slot_gradients_op());
  registry.add(gradients_of_array_op());
  registry.add(array_of_gradients_op());
  registry.add(concat_gradient_op());
  registry.add(unstack_gradient_op());
  registry.add(unpack_as_op());
  registry.add(shrink_gradient_op());
  registry.add(reorder_gradient_op());
  registry.add(boot_gradient_op());
  registry.add(last_rows_gradient_op());
  registry.add(last_rows_of_op());
  registry.add(shrink_rows_op());
  registry.add(reorder_rows_op());
  registry.add(run_rows_op());
  registry.cut_gradients({"run_rows", "shrink_rows", "reorder_rows"});
  registry.add(written_op());
  registry.add(stop_gradient_op());
}

}  // namespace millrace::ops
