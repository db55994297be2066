// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/model_spec.h>

#include <algorithm>

#include <millrace/runtime/builder/losses.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/embedding.h>
#include <millrace/runtime/training/internal/decoder_model.h>

namespace millrace::training {
namespace {

using build::Var;
using Kind = LayerSpec::Kind;

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
      if (spec.layers[i].is_recurrent()) last_recurrent_ = i;
  }

  void run() {
    check();
    const bool words = data_.dtype == DType::i64;
    const DDim row = words ? DDim{DDim::unknown} : DDim{DDim::unknown, data_.features};
    x_ = build::input("x", VarType(data_.dtype, row, 1));
    width_ = data_.features;
    if (data_.scale)
      x_ = (x_ - build::constant(row_of(data_.scale->mean, dtype_))) / build::constant(row_of(data_.scale->deviation, dtype_));
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      try {
        append(i);
      } catch (OutOfMemoryError& error) {
        error.add_context(" (" + name_at(i) + ")");
        throw;
      }
    }
    if (spec_.decoder) return decode();
    if (!pools_at(spec_.layers.size()) && pools()) pool(x_);
    const Var scores = layers::linear(x_, init_.linear("scores", width_, data_.outputs), "scores");
    if (use_ == ModelUse::train || use_ == ModelUse::score) build::output("loss", loss(scores));
    build::output("scores", scores);
    if (spec_.loss == ModelSpec::Loss::cross_entropy && (use_ == ModelUse::infer || use_ == ModelUse::live))
      build::output("probabilities", build::softmax(scores));
  }

 private:
  static std::string opening(const std::string& place) { return place.empty() ? "" : place + ": "; }
  std::string name_at(std::size_t i) const {
    return opening(spec_.layers[i].place) + "layer " + std::to_string(i + 1) + " (" + name_of(spec_.layers[i].kind) + ")";
  }
  [[noreturn]] void fail(std::size_t i, const std::string& what) const { throw ArgumentError(name_at(i) + ": " + what); }

  void check() const {
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      if (layer.units < 1) fail(i, "expected at least 1 unit, found " + std::to_string(layer.units));
      if (!(layer.dropout >= 0 && layer.dropout < 1)) fail(i, "expected a dropout in [0, 1), found " + std::to_string(layer.dropout));
      if (layer.kind == Kind::embedding && i > 0) fail(i, "expected an embedding as the first layer alone, found it behind others");
      if (layer.kind == Kind::embedding && data_.dtype != DType::i64)
        fail(i, "expected rows that are numbers of words, i64, found " + std::to_string(data_.features) + " features of " +
                    std::string(name_of(data_.dtype)));
      if (!layer.is_recurrent() && layer.direction != layers::Direction::forward) fail(i, "expected no direction, found one");
      if (layer.kind != Kind::linear && !layer.activation.empty()) fail(i, "expected an activation behind a linear layer alone");
    }
    if (data_.dtype == DType::i64 && (spec_.layers.empty() || spec_.layers[0].kind != Kind::embedding))
      throw ArgumentError(opening(spec_.layers.empty() ? "" : spec_.layers[0].place) +
                          "model: expected an embedding as the first layer over numbers of words, found none");
    if (spec_.decoder.has_value() != data_.tokens)
      throw ArgumentError(data_.tokens ? "model: expected a decoder of targets that are tokens, found none"
                                       : "model: expected targets that are tokens with a decoder, found others");
    if (spec_.decoder && !last_recurrent_)
      throw ArgumentError(opening(spec_.decoder->place) + "decoder: expected a recurrent layer in front of it, found none");
    if (spec_.decoder && spec_.loss != ModelSpec::Loss::cross_entropy)
      throw ArgumentError(opening(spec_.decoder->place) + "decoder: expected the loss cross_entropy, found another");
    if (use_ != ModelUse::live) return;
    if (spec_.decoder)
      throw UnsupportedError("model: expected scores for each row, to be fed live, found a decoder, which reads the whole sequence first");
    const auto causal = [](const LayerSpec& layer) { return layer.direction == layers::Direction::forward; };
    if (!std::all_of(spec_.layers.begin(), spec_.layers.end(), causal) || (!data_.per_row && spec_.pooling != ModelSpec::Pooling::last))
      throw UnsupportedError("model: expected layers that go forward and, for sequences, their last state, to be fed live; found others");
  }

  /// Whether rows become one for each sequence somewhere.
  bool pools() const { return !data_.per_row && !spec_.decoder && use_ != ModelUse::live; }
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
      if (!layer.activation.empty()) activate(i);
      width_ = layer.units;
    } else {
      last = recurrent(layer, name);
      width_ = layer.units * static_cast<std::int64_t>(layers::directions(layer.direction));
    }
    if (last_recurrent_ == i) last_ = last;
    if (pools() && last_recurrent_ == i) {
      if (spec_.pooling == ModelSpec::Pooling::last)
        x_ = last.size() == 1 ? last[0] : build::concat(last, 1);
      else
        pool(x_);
    }
    if (layer.dropout > 0 && use_ == ModelUse::train) drop(i);
  }

  void activate(std::size_t i) {
    const VarType before = x_.type();
    try {
      x_ = build::call1(spec_.layers[i].activation, {x_});
    } catch (const Error& error) {
      fail(i, "activation: " + std::string(error.what()));
    }
    const VarType& made = x_.type();
    const bool fits = made.is_tensor() && made.dtype == before.dtype && made.lod_depth == before.lod_depth &&
                      made.rank() == before.rank() && (*made.shape)[-1] == (*before.shape)[-1];
    if (!fits)
      fail(i, "activation: expected an op that gives rows as it takes them, " + before.to_string() + ", found '" +
                  spec_.layers[i].activation + "', which gives " + made.to_string());
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
  void decode();
  Var loss(const Var& scores);

  const ModelSpec& spec_;
  const DataShape& data_;
  ModelUse use_;
  DType dtype_;
  LayerInit init_;
  std::optional<std::size_t> last_recurrent_;
  std::vector<Var> last_;  // its states
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

void ModelBuilder::decode() {
  const LayerSpec& recurrent = spec_.layers[*last_recurrent_];
  const std::int64_t last_width = recurrent.units * static_cast<std::int64_t>(layers::directions(recurrent.direction));
  const internal::DecoderModel decoder(*spec_.decoder, init_, dtype_, data_.outputs, {x_, width_, last_, last_width});
  if (use_ == ModelUse::infer) {
    const build::Generated made = decoder.generated();
    build::output("tokens", made.tokens);
    build::output("totals", made.totals);
    return;
  }
  const Var scores = build::drop_lod(decoder.forced(build::input("before", VarType(DType::i64, {DDim::unknown}, 1))));
  build::output("loss", build::softmax_cross_entropy_loss(scores, build::input("target", VarType(DType::i64, {DDim::unknown}))));
  build::output("scores", scores);
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
  if (!words && x.dim(1) == 0) throw ShapeError(data.source + ", rows: expected at least one feature, found " + x.to_string());
  DataShape shape;
  shape.dtype = x.dtype();
  shape.per_row = data.per_row;
  shape.tokens = data.has_tokens();
  const auto count = [](const Tensor& numbers) {
    std::int64_t most = 0;
    for (const std::int64_t number : numbers.to_vector<std::int64_t>()) most = std::max(most, number + 1);
    return most;
  };
  const auto named = static_cast<std::int64_t>(data.classes.size());
  const auto known = data.words.empty() && data.per_row ? named : static_cast<std::int64_t>(data.words.size());
  shape.features = words ? std::max(count(x), known) : x.dim(1);
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

DecoderFeeds decoder_feeds(const Dataset& data, std::int64_t end) {
  const std::vector<std::int64_t> tokens = data.targets.to_vector<std::int64_t>();
  const auto offsets = data.target_lod.offsets(0);
  std::vector<std::int64_t> before, target;
  LoD::Level lengths;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    before.push_back(end);
    for (std::int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
      before.push_back(tokens[static_cast<std::size_t>(at)]);
      target.push_back(before.back());
    }
    target.push_back(end);
    lengths.push_back(offsets[i + 1] - offsets[i] + 1);
  }
  const DDim count{std::ssize(target)};
  return {LoDTensor(Tensor::from(before, count), LoD::from_lengths({lengths})), Tensor::from(target, count)};
}

}  // namespace millrace::training
