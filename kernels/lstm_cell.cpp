// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/lstm_cell.h>

#include <string>

#include <millrace/kernels/cpu/lstm_cell.h>
#include <millrace/kernels/cpu/lstm_kernels.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

/// ONNX's activations of recurrent cells, and those that are as cheap.
bool fits_cells(Unary kind) {
  switch (kind) {
    case Unary::identity:
    case Unary::sigmoid:
    case Unary::tanh:
    case Unary::relu:
    case Unary::leaky_relu:
    case Unary::thresholded_relu:
    case Unary::elu:
    case Unary::hard_sigmoid:
    case Unary::softplus:
    case Unary::softsign:
    case Unary::affine:
    case Unary::scaled_tanh: return true;
    default: return false;
  }
}

void check_activation(const char* role, const Activation& activation) {
  if (!fits_cells(activation.kind))
    throw ArgumentError("lstm cell: expected an activation of ONNX's recurrent cells for " + std::string(role) + ", found " +
                        std::string(name_of(activation.kind)));
}

}  // namespace

LstmPlan make_lstm_cell(const LstmDesc& desc, const Place& place) {
  internal::check_device_plan_place("lstm cell", place);
  if (desc.input < 0 || desc.hidden < 0 || !(desc.clip >= 0))
    throw ArgumentError("lstm cell: expected input, hidden and clip of at least 0, found " + std::to_string(desc.input) + ", " +
                        std::to_string(desc.hidden) + " and " + std::to_string(desc.clip));
  if (!is_floating(desc.dtype)) throw DTypeError("lstm cell: expected f64, f32, f16 or bf16, found " + std::string(name_of(desc.dtype)));
  if (!internal::multiplies(desc.dtype, desc.weights_dtype()))
    throw DTypeError("lstm cell: expected weights of " + std::string(name_of(desc.dtype)) + ", or of bf16 under f32, found " +
                     std::string(name_of(desc.weights_dtype())));
  check_activation("the gates", desc.gate);
  check_activation("the candidate", desc.candidate);
  check_activation("the output", desc.output);
  LstmPlan plan;
  plan.desc_ = desc;
  plan.place_ = place;
  plan.kernels_ = &cpu::lstm_kernels();
  return plan;
}

namespace {

/// One weight [rows, gates·H] as blocks of units.
Tensor pack_one(const LstmPlan& plan, const Tensor& from, std::int64_t gates, bool panels, StreamRef stream) {
  if (internal::on_cuda(plan.place()))
    return internal::row_major_as("lstm pack", from, plan.desc().dtype, stream).reshape(DDim{from.elements()});
  const cpu::LstmLayout layout = cpu::lstm_layout(plan);
  if (from.dtype() != plan.desc().dtype) {
    Tensor packed(from.dtype(), DDim{layout.elements(layout.padded(from.dim(0)) * gates)}, stream.memory());
    launch(
        TensorRefs<1>{&from}, TensorRefs<1>{&packed}, [=](ThreadTeam& team) { cpu::pack_gates(layout, from, gates, panels, packed, team); },
        stream);
    return packed;
  }
  Tensor packed(internal::wide_dtype(from.dtype()), DDim{layout.elements(from.dim(0) * gates)}, stream.memory());
  const Tensor wide = internal::wide_room(from, stream.memory());
  launch(
      TensorRefs<1>{&from}, TensorRefs<1>{&packed},
      [=](ThreadTeam& team) {
        cpu::widen(from, wide, team);
        cpu::pack_gates(layout, wide, gates, panels, packed, team);
      },
      stream);
  return packed;
}

void check_weight(const char* role, const Tensor& weight, DType dtype, const DDim& expected) {
  internal::check_dtype("lstm pack", role, weight, dtype);
  internal::check_dims("lstm pack", role, weight, expected);
}

Tensor pack_vector(const LstmPlan& plan, const char* role, const Tensor* from, bool wanted, std::int64_t gates, StreamRef stream) {
  if ((from != nullptr) != wanted)
    throw ArgumentError("lstm pack: expected " + std::string(wanted ? "" : "no ") + role + " as the description says, found " +
                        (from == nullptr ? "none" : from->to_string()));
  if (from == nullptr) return Tensor(internal::wide_dtype(plan.desc().dtype), DDim{0}, stream.memory());
  check_weight(role, *from, plan.desc().dtype, DDim{gates * plan.desc().hidden});
  // A vector is a matrix of one row.
  const auto first = static_cast<const std::byte*>(from->raw()) - from->storage()->data();
  const Tensor row(from->dtype(), DDim{1, from->dim(0)}, DDim{0, from->strides()[0]},
                   first / static_cast<std::int64_t>(size_of(from->dtype())), from->storage());
  return pack_one(plan, row, gates, false, stream);
}

}  // namespace

PackedLstm pack_gates(const LstmPlan& plan, const Tensor* bias, const Tensor* peepholes, StreamRef stream) {
  internal::check_device_places("lstm pack", stream, {bias, peepholes});
  const Tensor none(internal::wide_dtype(plan.desc().dtype), DDim{0}, stream.memory());
  return {none, none, pack_vector(plan, "bias", bias, plan.desc().bias, 4, stream),
          pack_vector(plan, "peepholes", peepholes, plan.desc().peepholes, 3, stream)};
}

PackedLstm pack(const LstmPlan& plan, const Tensor& w, const Tensor& r, const Tensor* bias, const Tensor* peepholes, StreamRef stream) {
  const LstmDesc& desc = plan.desc();
  internal::check_device_places("lstm pack", stream, {&w, &r, bias, peepholes});
  check_weight("W", w, desc.weights_dtype(), DDim{desc.input, 4 * desc.hidden});
  check_weight("R", r, desc.weights_dtype(), DDim{desc.hidden, 4 * desc.hidden});
  return {pack_one(plan, w, 4, true, stream), pack_one(plan, r, 4, true, stream), pack_vector(plan, "bias", bias, desc.bias, 4, stream),
          pack_vector(plan, "peepholes", peepholes, desc.peepholes, 3, stream)};
}

namespace {

void check_rows(const LstmPlan& plan, const char* role, const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  internal::check_dtype("lstm cell", role, tensor, plan.desc().dtype);
  internal::check_dims("lstm cell", role, tensor, DDim{rows, columns});
  if (columns > 1 && rows > 0 && tensor.strides()[1] != 1)
    throw ShapeError("lstm cell: expected contiguous rows for " + std::string(role) + ", found strides " + tensor.strides().to_string());
}

/// `x` with the elements of each row side by side.
Tensor with_whole_rows(const Tensor& x, StreamRef stream) {
  return x.rank() == 2 && x.dim(1) > 1 && x.strides()[1] != 1 ? internal::row_major("lstm cell", x, stream) : x;
}

void check_weights(const LstmPlan& plan, const PackedLstm& weights) {
  const LstmDesc& desc = plan.desc();
  const cpu::LstmLayout layout = cpu::lstm_layout(plan);
  const auto packed = [&](std::int64_t rows) {
    return DDim{internal::on_cuda(plan.place()) ? 4 * desc.hidden * rows : layout.elements(4 * layout.padded(rows))};
  };
  internal::check_dims("lstm cell", "the packed W", weights.input, packed(desc.input));
  internal::check_dims("lstm cell", "the packed R", weights.recurrent, packed(desc.hidden));
}

void run_step(const LstmPlan& plan, const PackedLstm& weights, const Tensor& given_x, cpu::LstmGiven given, const Tensor& given_h,
              const Tensor& given_c, Tensor& h_out, Tensor& c_out, StreamRef stream) {
  const LstmDesc desc = plan.desc();
  internal::check_device_places("lstm cell", stream, {&weights.input, &weights.recurrent, &given_x, &given_h, &given_c, &h_out, &c_out});
  const Tensor x = with_whole_rows(given_x, stream), h = with_whole_rows(given_h, stream), c = with_whole_rows(given_c, stream);
  if (given != cpu::LstmGiven::both_products) check_weights(plan, weights);
  const std::int64_t rows = h.rank() == 2 ? h.dim(0) : 0;
  const bool projected = given != cpu::LstmGiven::rows;
  const bool summed = given == cpu::LstmGiven::both_products;
  check_rows(plan, projected ? "the projection" : "x", x, rows, projected ? 4 * desc.hidden : desc.input);
  check_rows(plan, summed ? "the recurrent product" : "h", h, rows, summed ? 4 * desc.hidden : desc.hidden);
  check_rows(plan, "c", c, rows, desc.hidden);
  check_rows(plan, "h_out", h_out, rows, desc.hidden);
  check_rows(plan, "c_out", c_out, rows, desc.hidden);
  if (rows > 0 && h_out.raw() == h.raw())
    throw ArgumentError("lstm cell: expected an h_out apart from h, found the same memory: every unit reads all of h");
  const auto& memory = stream.memory();
  if (internal::on_cuda(stream.place())) {
    const Tensor gates(internal::wide_dtype(desc.dtype), DDim{2, rows, 4 * desc.hidden}, memory);
    return launch(
        TensorRefs<7>{&x, &h, &c, &weights.input, &weights.recurrent, &weights.bias, &weights.peepholes}, TensorRefs<2>{&h_out, &c_out},
        [=](KernelContext& context) {
          const Tensor input = projected ? x : gates.select(0, 0);
          const Tensor recurrent = summed ? h : gates.select(0, 1);
          const DDim w{desc.input, 4 * desc.hidden};
          const DDim r{desc.hidden, 4 * desc.hidden};
          if (!projected) cuda::linear(x, weights.input.reshape(w), nullptr, input, context);
          if (!summed) cuda::linear(h, weights.recurrent.reshape(r), nullptr, recurrent, context, true);
          cuda::lstm_gates(desc, weights, input, recurrent, c, h_out, c_out, context);
        },
        stream);
  }
  const Tensor wide_x = internal::wide_room(x, memory);
  const Tensor wide_h = internal::wide_room(h, memory);
  const Tensor wide_c = internal::wide_room(c, memory);
  const Tensor wide_h_out = internal::wide_room(h_out, memory);
  const Tensor wide_c_out = internal::wide_room(c_out, memory);
  launch(
      TensorRefs<7>{&x, &h, &c, &weights.input, &weights.recurrent, &weights.bias, &weights.peepholes}, TensorRefs<2>{&h_out, &c_out},
      [=](ThreadTeam& team) {
        cpu::widen(x, wide_x, team);
        cpu::widen(h, wide_h, team);
        cpu::widen(c, wide_c, team);
        cpu::lstm_cell(plan, weights, wide_x, given, wide_h, wide_c, wide_h_out, wide_c_out, team);
        cpu::narrow(wide_h_out, h_out, team);
        cpu::narrow(wide_c_out, c_out, team);
      },
      stream);
}

}  // namespace

void run(const LstmPlan& plan, const PackedLstm& weights, const Tensor& x, const Tensor& h, const Tensor& c, Tensor& h_out, Tensor& c_out,
         StreamRef stream) {
  run_step(plan, weights, x, cpu::LstmGiven::rows, h, c, h_out, c_out, stream);
}

void run_projected(const LstmPlan& plan, const PackedLstm& weights, const Tensor& projection, const Tensor& h, const Tensor& c,
                   Tensor& h_out, Tensor& c_out, StreamRef stream) {
  run_step(plan, weights, projection, cpu::LstmGiven::projection, h, c, h_out, c_out, stream);
}

void run_gates(const LstmPlan& plan, const PackedLstm& weights, const Tensor& projection, const Tensor& recurrent, const Tensor& c,
               Tensor& h_out, Tensor& c_out, StreamRef stream) {
  run_step(plan, weights, projection, cpu::LstmGiven::both_products, recurrent, c, h_out, c_out, stream);
}

}  // namespace millrace
