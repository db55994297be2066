// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <millrace/kernels/cpu/instruction_set.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/tensor.h>
#include <reference/reference.h>
#include <support/random.h>
#include <support/same_bits.h>
#include <support/sim_device.h>
#include <support/test_place.h>

namespace millrace::testing {

/// A device under test. Every conformance test runs on each; a later device joins the list in `devices_under_test()`.
class DeviceUnderTest {
 public:
  DeviceUnderTest(
      std::string named, std::shared_ptr<Device> device, std::function<void()> finish = [] {})
      : name(std::move(named)), device_(std::move(device)), finish_(std::move(finish)) {}

  StreamRef stream() { return device_->stream(0); }
  /// Runs what was enqueued.
  void finish() { finish_(); }
  /// A host tensor as one of the device, row-major.
  Tensor up(const Tensor& host) {
    Tensor made(host.dtype(), host.dims(), device_->memory());
    if (host.elements() > 0) {
      copy(host, made, stream());
      finish();
    }
    return made;
  }
  /// Room for a result.
  Tensor room(DType dtype, const DDim& dims) { return Tensor(dtype, dims, device_->memory()); }
  /// A result on the host.
  Tensor down(const Tensor& tensor) {
    finish();
    return tensor.copy_to(CpuPlace{});
  }

  /// Half a unit in the last place of 1, of the factors of a product.
  double rounding(DType dtype) const;

  std::string name;
  bool tf32 = false;  ///< f32 is multiplied as tf32

 private:
  std::shared_ptr<Device> device_;
  std::function<void()> finish_;
};

inline DeviceUnderTest cpu_backend(int threads) {
  return {"cpu, threads " + std::to_string(threads), std::make_unique<CpuDevice>(threads)};
}

inline DeviceUnderTest sim_backend() {
  auto device = std::make_unique<SimDevice>();
  SimDevice* sim = device.get();
  return {"sim:0", std::move(device), [sim] { sim->drain(1); }};
}

/// A real device, as a whole program of tests asks for.
inline DeviceUnderTest device_backend(const std::string& place, bool tf32 = false) {
  const std::shared_ptr<Device> device = make_device(Place::parse(place), 1, 4, tf32);
  DeviceUnderTest made(place + (tf32 ? ", tf32" : ""), device, [device] { device->stream(0).position().wait(); });
  made.tf32 = tf32;
  return made;
}

/// Calls `f(device)` for each.
template <class F>
void each_backend(F f) {
  if (const std::string place = test_place(); !place.empty()) {
    DeviceUnderTest device = device_backend(place);
    INFO("on ", device.name);
    return f(device);
  }
  for (const int which : {0, 1, 2}) {
    DeviceUnderTest device = which == 2 ? sim_backend() : cpu_backend(which + 1);
    INFO("on ", device.name);
    f(device);
  }
}

/// Calls `f` as `each_backend` does, and for the real device once more with tf32: kernels of products have both.
template <class F>
void each_product_backend(F f) {
  each_backend(f);
  if (const std::string place = test_place(); place.starts_with("cuda")) {
    DeviceUnderTest device = device_backend(place, true);
    INFO("on ", device.name);
    f(device);
  }
}

/// Calls `f(name)` with each instruction set of this machine in use.
template <class F>
void each_instruction_set(F f) {
  for (const std::string& name : cpu::instruction_sets()) {
    INFO("with ", name);
    cpu::use_instruction_set(name);
    f(name);
  }
  cpu::use_instruction_set("");
}

inline constexpr DType floats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

/// Half a unit in the last place of 1.
inline double rounding(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
    default: return 0;
  }
}

inline double DeviceUnderTest::rounding(DType dtype) const { return tf32 && dtype == DType::f32 ? 0x1p-11 : testing::rounding(dtype); }

/// Random numbers in [-scale, scale), on the host.
inline Tensor random_tensor(Random& random, DType dtype, const DDim& dims, double scale = 1) {
  reference::Values made{dims, {}};
  for (std::int64_t i = 0; i < dims.elements(); ++i) made.at.push_back(scale * static_cast<double>(random.real()));
  return reference::tensor(made, dtype);
}

/// The largest |found − expected| / max(|expected|, floor); equal infinities and two NaNs are no difference.
inline double error_of(const Tensor& found, const reference::Values& expected, double floor = 1) {
  const reference::Values got = reference::values(found);
  if (got.dims != expected.dims) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < got.at.size(); ++i) {
    const double e = expected.at[i];
    if (got.at[i] == e || (got.at[i] != got.at[i] && e != e)) continue;
    const double error = std::abs(got.at[i] - e) / std::max(std::abs(e), floor);
    worst = error == error ? std::max(worst, error) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace millrace::testing
