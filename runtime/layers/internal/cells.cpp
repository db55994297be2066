// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/layers/internal/cells.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::layers::internal {
namespace {

constexpr const char* turned_hint =
    ": rows are inputs here, [in, out]; those of PyTorch and ONNX are [out, in], and lstm_from_pytorch, gru_from_onnx and their like turn "
    "them";

}  // namespace

Var parameter(const std::string& name, const std::optional<Tensor>& value) { return value ? build::parameter(name, *value) : Var(); }
Var number(double value, DType dtype) { return build::cast(build::constant(Tensor::scalar(value)), dtype); }
Var clipped(const Var& x, double limit) {
  if (limit == 0) return x;
  if (!(limit > 0)) throw ProgramError("clip: expected 0 (none) or more, found " + std::to_string(limit));
  return build::call1("clip", {x, number(-limit, x.type().dtype), number(limit, x.type().dtype)});
}
Var complement(const Var& x) { return number(1, x.type().dtype) - x; }
std::vector<Var> pieces(const Var& x, std::int64_t parts, std::int64_t units) {
  return build::split(x, -1, std::vector<std::int64_t>(static_cast<std::size_t>(parts), units));
}
Var preactivation(const Var& x, const Matrix& w, const Var& h, const Matrix& r, const Var& bias) {
  const Var recurrent = product(h, r);
  return (bias.defined() ? recurrent + bias : recurrent) + product(x, w);
}

Var initial(const std::vector<Var>& given, std::size_t k, std::size_t count, const std::string& what) {
  if (given.empty()) return Var();
  if (given.size() != count)
    throw ProgramError(what + ": expected " + std::to_string(count) + " initial states, one for each layer and direction, or none, found " +
                       std::to_string(given.size()));
  return given[k];
}

std::size_t layers_of(const std::string& what, std::size_t weights, Direction direction) {
  if (weights == 0 || weights % directions(direction) != 0)
    throw ProgramError(what + ": expected weights for each layer and each of " + std::to_string(directions(direction)) +
                       " directions, found " + std::to_string(weights));
  return weights / directions(direction);
}

void expect_dims(const std::string& layer, const char* field, const Tensor& tensor, const DDim& dims) {
  if (tensor.dims() == dims) return;
  const bool turned = tensor.rank() == 2 && dims.rank() == 2 && tensor.dim(0) == dims[1] && tensor.dim(1) == dims[0];
  throw ShapeError(layer + ", " + field + ": expected " + dims.to_string() + ", found " + tensor.to_string() + (turned ? turned_hint : ""));
}

void refuse_turned(const std::string& layer, const Tensor& recurrent, std::int64_t gates) {
  const std::int64_t hidden = recurrent.dim(1);
  if (gates > 1 && hidden > 0 && recurrent.dim(0) == gates * hidden)
    throw ShapeError(layer + ", recurrent: expected " + DDim{hidden, gates * hidden}.to_string() + ", found " + recurrent.to_string() +
                     turned_hint);
}

Tensor direction_of(const Tensor& w, std::int64_t direction) { return w.select(0, direction); }

}  // namespace millrace::layers::internal
