// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <millrace/kernels/adam.h>
#include <millrace/runtime/training/internal/floats.h>
#include <millrace/tensor/kernel_floats.h>

namespace millrace::training {
namespace {

using Kind = OptimizerOptions::Kind;

void expect(bool holds, const char* what, double found) {
  if (!holds || !std::isfinite(found)) throw ArgumentError(fmt::format("optimizer: expected {}, found {}", what, found));
}

constexpr std::int64_t most_steps = std::int64_t{1} << 53;  // more would not be counted exactly by the bias of Adam's means

/// Where elements of f64 are computed in f64, all others in f32.
DType computed_in(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

Tensor zeros(DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    T* to = made.mutable_data<T>();
    for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = T{};
  });
  return made;
}

Tensor copied(const Tensor& tensor) {
  const Tensor from = internal::dense(tensor);
  Tensor made(from.dtype(), from.dims());
  visit_dtype(from.dtype(), [&]<class T>(std::type_identity<T>) {
    T* to = made.mutable_data<T>();
    if (made.elements() > 0) std::memcpy(to, from.data<T>(), made.bytes());
  });
  return made;
}

Tensor converted(const Tensor& tensor, DType dtype) {
  Tensor from = internal::dense(tensor);
  if (from.dtype() == dtype) return from;
  Tensor made(dtype, from.dims());
  visit_dtype(dtype, [&]<class To>(std::type_identity<To>) {
    visit_dtype(from.dtype(), [&]<class From>(std::type_identity<From>) {
      To* to = made.mutable_data<To>();
      const From* x = made.elements() > 0 ? from.data<From>() : nullptr;
      for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = convert_element<To>(x[i]);
    });
  });
  return made;
}

/// Whether a narrow weight has the bits of its master copy, narrowed.
bool is_of(const Tensor& master, const Tensor& weight) {
  const Tensor narrow = internal::dense(weight);
  const float* const wide = master.data<float>();
  bool same = true;
  visit_dtype(narrow.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const found = narrow.data<T>();
    for (std::int64_t i = 0; same && i < narrow.elements(); ++i) {
      const T wanted = convert_element<T>(wide[i]);
      same = std::ranges::equal(std::as_bytes(std::span(&wanted, 1)), std::as_bytes(std::span(&found[i], 1)));
    }
  });
  return same;
}

void check_pair(const std::string& name, const Tensors& weights, const Tensor& gradient) {
  const auto weight = weights.find(name);
  if (weight == weights.end()) throw ArgumentError("optimizer: expected a weight '" + name + "' for its gradient, found none");
  if (!is_floating(weight->second.dtype()) || weight->second.dtype() != gradient.dtype())
    throw DTypeError("optimizer, '" + name + "': expected a floating weight and a gradient of its dtype, found " +
                     weight->second.to_string() + " and " + gradient.to_string());
  if (weight->second.dims() != gradient.dims())
    throw ShapeError("optimizer, '" + name + "': expected a gradient of the weight's extents, found " + weight->second.to_string() +
                     " and " + gradient.to_string());
  try {
    gradient.check_written();
    weight->second.check_written();
  } catch (Error& error) {
    error.add_context(" (optimizer, '" + name + "')");
    throw;
  }
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options) : options_(options) {
  expect(options.momentum >= 0, "a finite momentum of at least 0", options.momentum);
  expect(!options.nesterov || options.momentum > 0, "a momentum above 0 for Nesterov's", options.momentum);
  expect(options.beta1 >= 0 && options.beta1 < 1, "beta1 in [0, 1)", options.beta1);
  expect(options.beta2 >= 0 && options.beta2 < 1, "beta2 in [0, 1)", options.beta2);
  // Without it, a weight whose gradients are all 0 would become 0 / 0.
  expect(options.epsilon >= std::numeric_limits<float>::min(), "a finite epsilon of at least 1.1754944e-38, the least normal f32",
         options.epsilon);
  expect(options.weight_decay >= 0, "a finite weight decay of at least 0", options.weight_decay);
}

Optimizer::Slot& Optimizer::slot_of(const std::string& name, const Tensor& weight) {
  Slot& slot = slots_[name];
  if (slot.started) return slot;
  const DType dtype = computed_in(weight.dtype());
  if (options_.kind != Kind::sgd || options_.momentum > 0) slot.first = zeros(dtype, weight.dims());
  if (options_.kind != Kind::sgd) slot.second = zeros(dtype, weight.dims());
  slot.narrow = weight.dtype() != dtype;
  if (slot.narrow) slot.master = converted(weight, dtype);
  slot.started = true;
  return slot;
}

std::vector<const Tensor*> Optimizer::parts_of(const Slot& slot) const {
  std::vector<const Tensor*> parts;
  if (options_.kind != Kind::sgd || options_.momentum > 0) parts.push_back(&slot.first);
  if (options_.kind != Kind::sgd) parts.push_back(&slot.second);
  if (slot.narrow) parts.push_back(&slot.master);
  return parts;
}

void Optimizer::check_slot(const std::string& name, const Tensor& weight) const {
  const auto found = slots_.find(name);
  if (found == slots_.end()) return;
  const Slot& slot = found->second;
  const DType dtype = computed_in(weight.dtype());
  if (slot.narrow != (weight.dtype() != dtype))
    throw DTypeError("optimizer, '" + name + "': expected a weight of " + (slot.narrow ? "f16 or bf16" : "f32 or f64") +
                     ", as its state is of, found " + weight.to_string());
  for (const Tensor* kept : parts_of(slot)) {
    if (kept->dtype() != dtype)
      throw DTypeError("optimizer, '" + name + "': expected a weight that is computed in " + std::string(name_of(kept->dtype())) +
                       ", as its state is, found " + weight.to_string());
    if (kept->dims() != weight.dims())
      throw ShapeError("optimizer, '" + name + "': expected a weight of the extents of its state, " + kept->dims().to_string() +
                       ", found " + weight.to_string());
  }
}

template <class Compute>
void Optimizer::apply(Slot& slot, Compute* weight, const Tensor& gradient, double learning_rate) const {
  const std::int64_t count = gradient.elements();
  const Compute* g = gradient.data<Compute>();
  const auto rate = static_cast<Compute>(learning_rate);
  const auto decay = static_cast<Compute>(options_.weight_decay);
  if (options_.kind == Kind::sgd) {
    const auto momentum = static_cast<Compute>(options_.momentum);
    Compute* kept = options_.momentum > 0 ? slot.first.mutable_data<Compute>() : nullptr;
    for (std::int64_t i = 0; i < count; ++i) {
      Compute slope = g[i] + decay * weight[i];
      if (kept != nullptr) {
        kept[i] = slot.steps == 0 ? slope : momentum * kept[i] + slope;
        slope = options_.nesterov ? slope + momentum * kept[i] : kept[i];
      }
      weight[i] -= rate * slope;
    }
    return;
  }
  const bool decoupled = options_.kind == Kind::adamw;
  const auto t = static_cast<double>(slot.steps + 1);
  const auto b1 = static_cast<Compute>(options_.beta1), b2 = static_cast<Compute>(options_.beta2);
  const auto c1 = static_cast<Compute>(1 - options_.beta1), c2 = static_cast<Compute>(1 - options_.beta2);
  const auto stride = static_cast<Compute>(learning_rate / (1 - std::pow(options_.beta1, t)));
  const auto root = static_cast<Compute>(std::sqrt(1 - std::pow(options_.beta2, t)));
  const auto epsilon = static_cast<Compute>(options_.epsilon);
  const auto shrink = static_cast<Compute>(1 - learning_rate * options_.weight_decay);
  Compute* m = slot.first.mutable_data<Compute>();
  Compute* v = slot.second.mutable_data<Compute>();
  adam_update(AdamNumbers<Compute>{b1, b2, c1, c2, stride, root, epsilon, decay, shrink, decoupled}, g, weight, m, v, count);
}

void Optimizer::update_one(const std::string& name, Tensor& weight, const Tensor& gradient, double learning_rate) {
  Slot& slot = slot_of(name, weight);
  const DType dtype = computed_in(weight.dtype());
  if (gradient.elements() > 0) {
    // Somebody may have set the weight since: the master copy is of another value then.
    if (slot.narrow && !is_of(slot.master, weight)) slot.master = converted(weight, dtype);
    const bool shared = weight.is_read_only() || weight.storage().use_count() > 1;
    if (!slot.narrow && (shared || !weight.is_contiguous() || !weight.host_accessible())) weight = copied(weight);
    Tensor& target = slot.narrow ? slot.master : weight;
    const Tensor slope = converted(gradient, dtype);
    if (dtype == DType::f64)
      apply(slot, target.mutable_data<double>(), slope, learning_rate);
    else
      apply(slot, target.mutable_data<float>(), slope, learning_rate);
    if (slot.narrow) weight = converted(slot.master, weight.dtype());
  }
  ++slot.steps;
}

void Optimizer::update(Tensors& weights, const Tensors& gradients, double learning_rate) {
  expect(learning_rate >= 0, "a finite learning rate of at least 0", learning_rate);
  for (const auto& [name, gradient] : gradients) {
    check_pair(name, weights, gradient);
    check_slot(name, weights.at(name));
  }
  const KernelFloats floats;  // momenta of a weight that has no gradient fade to zeros
  for (const auto& [name, gradient] : gradients) update_one(name, weights.at(name), gradient, learning_rate);
  ++steps_;
}

Tensors Optimizer::state() const {
  Tensors all;
  all.emplace("steps", Tensor::scalar(steps_));
  for (const auto& [name, slot] : slots_) {
    all.emplace(name + "/steps", Tensor::scalar(slot.steps));
    if (options_.kind == Kind::sgd && options_.momentum > 0) all.emplace(name + "/momentum", copied(slot.first));
    if (options_.kind != Kind::sgd) all.emplace(name + "/m", copied(slot.first));
    if (options_.kind != Kind::sgd) all.emplace(name + "/v", copied(slot.second));
    if (slot.narrow) all.emplace(name + "/master", copied(slot.master));
  }
  return all;
}

void Optimizer::restore(const Tensors& state) {
  std::map<std::string, Slot> slots;
  std::int64_t steps = 0;
  const bool adam = options_.kind != Kind::sgd;
  const auto rule = [&] { return std::string(adam ? "adam" : options_.momentum > 0 ? "sgd with momentum" : "sgd"); };
  for (const auto& [full, tensor] : state) {
    const auto slash = full.rfind('/');
    const std::string part = full.substr(slash == full.npos ? 0 : slash + 1);
    if (slash == full.npos) {
      if (part != "steps") throw ArgumentError("optimizer: expected 'steps' or NAME/PART in its state, found '" + full + "'");
      steps = tensor.item_int();
      if (steps < 0 || steps > most_steps)
        throw ArgumentError("optimizer: expected from 0 to " + std::to_string(most_steps) + " steps, found " + std::to_string(steps));
      continue;
    }
    Slot& slot = slots[full.substr(0, slash)];
    slot.started = true;
    if (part == "steps")
      slot.steps = tensor.item_int();
    else if (part == "master")
      slot.master = copied(tensor), slot.narrow = true;
    else if (part == (adam ? "m" : "momentum") && (adam || options_.momentum > 0))
      slot.first = copied(tensor);
    else if (adam && part == "v")
      slot.second = copied(tensor);
    else
      throw ArgumentError("optimizer: expected the state of " + rule() + ", found '" + full + "'");
  }
  if (!state.contains("steps")) throw ArgumentError("optimizer: expected 'steps' in its state, found none");
  for (const auto& [name, slot] : slots) {
    if (slot.steps < 0 || slot.steps > steps)
      throw ArgumentError("optimizer: expected from 0 to " + std::to_string(steps) + " steps of '" + name + "', found " +
                          std::to_string(slot.steps));
    const auto has = [&, &of = name](const char* part) { return state.contains(of + "/" + part); };
    if (!has("steps") || (adam && (!has("m") || !has("v"))) || (!adam && options_.momentum > 0 && !has("momentum")))
      throw ArgumentError("optimizer: expected the whole state of '" + name + "' for " + rule() + ", found a part of it");
    const Tensor* first = nullptr;
    for (const Tensor* kept : parts_of(slot)) {
      if (kept->dtype() != DType::f32 && (kept->dtype() != DType::f64 || slot.narrow))
        throw ArgumentError("optimizer: expected the state of '" + name + "' in " + (slot.narrow ? "f32" : "f32 or f64") + ", found " +
                            kept->to_string());
      if (first == nullptr) first = kept;
      if (kept->dims() != first->dims() || kept->dtype() != first->dtype())
        throw ArgumentError("optimizer: expected tensors of one dtype and the same extents for '" + name + "', found " +
                            first->to_string() + " and " + kept->to_string());
    }
  }
  slots_ = std::move(slots);
  steps_ = steps;
}

}  // namespace millrace::training
