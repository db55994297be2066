// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/model_spec.h>

#include <algorithm>

#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/embedding.h>

namespace millrace::training {
namespace {

using build::Var;
using Kind = LayerSpec::Kind;

bool is_recurrent(const LayerSpec& layer) { return layer.kind == Kind::lstm || layer.kind == Kind::gru || layer.kind == Kind::rnn; }

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::lstm: return "lstm";
    case Kind::gru: return "gru";
    case Kind::rnn: return "rnn";
    case Kind::linear: return "linear";
    case Kind::embedding: return "embedding";
  }
  return "";
}

Tensor row_of(const std::vector<double>& values, DType dtype) {
  return dtype == DType::f64 ? Tensor::from(values, {static_cast<std::int64_t>(values.size())})
                             : Tensor::from(std::vector<float>(values.begin(), values.end()), {static_cast<std::int64_t>(values.size())});
}

/// Appends a model to the program that is being built.
class ModelBuilder {
 public:
  ModelBuilder(const ModelSpec& spec, const DataShape& data, ModelUse use)
      : spec_(spec), data_(data), use_(use), dtype_(data.dtype == DType::i64 ? DType::f32 : data.dtype), init_(spec.seed, dtype_) {
    init_.choice = spec.init;
    for (std::size_t i = 0; i < spec.layers.size(); ++i)
      if (is_recurrent(spec.layers[i])) last_recurrent_ = i;
  }

  void run() {
    check();
    const bool words = data_.dtype == DType::i64;
    const DDim row = words ? DDim{DDim::unknown} : DDim{DDim::unknown, data_.features};
    x_ = build::input("x", VarType(data_.dtype, row, 1));
    width_ = data_.features;
    if (data_.scale)
      x_ = (x_ - build::constant(row_of(data_.scale->mean, dtype_))) / build::constant(row_of(data_.scale->deviation, dtype_));
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) append(i);
    if (!pools_at(spec_.layers.size()) && pools()) pool(x_);
    const Var scores = layers::linear(x_, init_.linear("scores", width_, data_.outputs), "scores");
    if (use_ == ModelUse::train || use_ == ModelUse::score) build::output("loss", loss(scores));
    build::output("scores", scores);
    if (spec_.loss == ModelSpec::Loss::cross_entropy && (use_ == ModelUse::infer || use_ == ModelUse::live))
      build::output("probabilities", build::softmax(scores));
  }

 private:
  [[noreturn]] void fail(std::size_t i, const std::string& what) const {
    throw ArgumentError("layer " + std::to_string(i + 1) + " (" + name_of(spec_.layers[i].kind) + "): " + what);
  }

  void check() const {
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      if (layer.units < 1) fail(i, "expected at least 1 unit, found " + std::to_string(layer.units));
      if (!(layer.dropout >= 0 && layer.dropout < 1)) fail(i, "expected a dropout in [0, 1), found " + std::to_string(layer.dropout));
      if (layer.kind == Kind::embedding && (i > 0 || data_.dtype != DType::i64))
        fail(i, "expected an embedding first, over numbers of words");
      if (!is_recurrent(layer) && layer.direction != layers::Direction::forward) fail(i, "expected no direction, found one");
      if (layer.kind != Kind::linear && !layer.activation.empty()) fail(i, "expected an activation behind a linear layer alone");
    }
    if (data_.dtype == DType::i64 && (spec_.layers.empty() || spec_.layers[0].kind != Kind::embedding))
      throw ArgumentError("model: expected an embedding as the first layer over numbers of words, found none");
    if (use_ != ModelUse::live) return;
    const auto causal = [](const LayerSpec& layer) { return layer.direction == layers::Direction::forward; };
    if (!std::all_of(spec_.layers.begin(), spec_.layers.end(), causal) || (!data_.per_row && spec_.pooling != ModelSpec::Pooling::last))
      throw UnsupportedError("model: expected layers that go forward and, for sequences, their last state, to be fed live; found others");
  }

  /// Whether rows become one for each sequence somewhere.
  bool pools() const { return !data_.per_row && use_ != ModelUse::live; }
  bool pools_at(std::size_t i) const { return pools() && last_recurrent_ && i > *last_recurrent_; }

  void append(std::size_t i) {
    const LayerSpec& layer = spec_.layers[i];
    const std::string name = name_of(layer.kind) + std::to_string(i + 1);
    std::vector<Var> last;
    if (layer.kind == Kind::embedding) {
      x_ = layers::embedding(x_, init_.embedding(name, data_.features, layer.units), {}, name);
      width_ = layer.units;
    } else if (layer.kind == Kind::linear) {
      x_ = layers::linear(x_, init_.linear(name, width_, layer.units), name);
      if (!layer.activation.empty()) x_ = build::call1(layer.activation, {x_});
      width_ = layer.units;
    } else {
      last = recurrent(layer, name);
      width_ = layer.units * static_cast<std::int64_t>(layers::directions(layer.direction));
    }
    if (pools() && last_recurrent_ == i) {
      if (spec_.pooling == ModelSpec::Pooling::last)
        x_ = last.size() == 1 ? last[0] : build::concat(last, 1);
      else
        pool(x_);
    }
    if (layer.dropout > 0 && use_ == ModelUse::train) drop(i);
  }

  void pool(const Var& rows) {
    const char* kind = spec_.pooling == ModelSpec::Pooling::last      ? "last"
                       : spec_.pooling == ModelSpec::Pooling::average ? "average"
                                                                      : "max";
    x_ = build::sequence_pool(rows, kind);
  }

  std::vector<Var> recurrent(const LayerSpec& layer, const std::string& name) {
    const auto all = [&](const auto& one) {
      std::vector<decltype(one(std::size_t{0}))> weights;
      for (std::size_t k = 0; k < layers::directions(layer.direction); ++k) weights.push_back(one(k));
      return weights;
    };
    if (layer.kind == Kind::lstm) {
      const layers::LstmResult made = layers::lstm({x_}, all([&](std::size_t k) { return init_.lstm(name, width_, layer.units, k); }),
                                                   {.direction = layer.direction, .name = name});
      x_ = made.y;
      return made.h;
    }
    if (layer.kind == Kind::gru) {
      const layers::GruResult made = layers::gru({x_}, all([&](std::size_t k) { return init_.gru(name, width_, layer.units, k); }),
                                                 {.direction = layer.direction, .name = name});
      x_ = made.y;
      return made.h;
    }
    const layers::RnnResult made = layers::rnn({x_}, all([&](std::size_t k) { return init_.rnn(name, width_, layer.units, k); }),
                                               {.direction = layer.direction, .name = name});
    x_ = made.y;
    return made.h;
  }

  void drop(std::size_t i);
  Var loss(const Var& scores);

  const ModelSpec& spec_;
  const DataShape& data_;
  ModelUse use_;
  DType dtype_;
  LayerInit init_;
  std::optional<std::size_t> last_recurrent_;
  Var x_;
  Var sample_, epoch_;
  std::int64_t width_ = 0;
};

void ModelBuilder::drop(std::size_t i) {
  if (!sample_.defined()) {
    sample_ = build::input("sample", VarType(DType::i64, {DDim::unknown}));
    epoch_ = build::input("epoch", VarType(DType::i64, {}));
  }
  const bool of_rows = x_.type().lod_depth > 0;
  const build::RandomKeys keys = of_rows ? build::keys_of_rows(x_, sample_, epoch_) : build::RandomKeys{sample_, {}, epoch_};
  x_ = build::dropout(x_, keys, {spec_.layers[i].dropout, static_cast<std::int64_t>(spec_.seed), static_cast<std::int64_t>(i), true});
}

Var ModelBuilder::loss(const Var& scores) {
  const Var plain = data_.per_row ? build::drop_lod(scores) : scores;
  if (spec_.loss == ModelSpec::Loss::mse) {
    const Var target = build::input("target", VarType(dtype_, {DDim::unknown, data_.outputs}));
    const Var apart = plain - target;
    return build::mean_loss(apart * apart);
  }
  const Var target = build::input("target", VarType(DType::i64, {DDim::unknown}));
  return build::softmax_cross_entropy_loss(plain, target);
}

}  // namespace

DataShape shape_of(const Dataset& data) {
  data.validate();
  const Tensor& x = data.x.tensor();
  const bool words = x.dtype() == DType::i64;
  if (words ? x.rank() != 1 : x.rank() != 2 || (x.dtype() != DType::f32 && x.dtype() != DType::f64))
    throw ShapeError(data.source + ": expected rows of f32 or f64 [rows, features], or numbers i64 [rows], found " + x.to_string());
  DataShape shape;
  shape.dtype = x.dtype();
  shape.per_row = data.per_row;
  const auto count = [](const Tensor& numbers) {
    std::int64_t most = 0;
    for (const std::int64_t number : numbers.to_vector<std::int64_t>()) most = std::max(most, number + 1);
    return most;
  };
  const auto named = static_cast<std::int64_t>(data.classes.size());
  shape.features = words ? std::max(count(x), data.per_row ? named : 0) : x.dim(1);
  shape.outputs = data.targets.dtype() == DType::i64 ? std::max(count(data.targets), named) : data.targets.dim(data.targets.rank() - 1);
  return shape;
}

Program build_model(const ModelSpec& spec, const DataShape& data, ModelUse use) {
  Program program;
  program.set_title("trained");
  const build::Guard guard(program);
  ModelBuilder(spec, data, use).run();
  return program;
}

}  // namespace millrace::training
