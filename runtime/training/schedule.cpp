// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <millrace/tensor/error.h>

namespace millrace::training {
namespace {

void expect(bool holds, const char* what, double found) {
  if (!holds) throw ArgumentError("schedule: expected " + std::string(what) + ", found " + std::to_string(found));
}

}  // namespace

double Schedule::at(std::int64_t step) const {
  expect(step >= 0, "a step of at least 0", static_cast<double>(step));
  expect(std::isfinite(base) && base >= 0, "a base rate of at least 0", base);
  expect(warmup >= 0, "a warm-up of at least 0 steps", static_cast<double>(warmup));
  if (step < warmup) return base * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const auto n = static_cast<double>(step - warmup);
  if (kind == Kind::constant) return base;
  if (kind == Kind::step || kind == Kind::exponential) {
    expect(every >= 1, "at least 1 step from one factor to the next", static_cast<double>(every));
    expect(std::isfinite(factor) && factor > 0, "a finite factor above 0", factor);
    const double times = n / static_cast<double>(every);
    return base * std::pow(factor, kind == Kind::step ? std::floor(times) : times);
  }
  expect(decay_steps >= 1, "a decay of at least 1 step", static_cast<double>(decay_steps));
  expect(std::isfinite(least) && least >= 0, "a least rate of at least 0", least);
  const double part = std::min(n / static_cast<double>(decay_steps), 1.0);
  if (kind == Kind::linear) return base + (least - base) * part;
  return least + (base - least) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

void check(const Schedule& schedule) {
  static_cast<void>(schedule.at(0));
  static_cast<void>(schedule.at(schedule.warmup));
}

}  // namespace millrace::training
