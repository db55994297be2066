// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/admission.h>

#include <algorithm>

#include <fmt/format.h>

namespace millrace {

void Admission::observe(TimePoint now, std::uint64_t steps, double transport_seconds) {
  if (!due(now)) return;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const auto made = static_cast<double>(steps - steps_);
  rate_ = made / seconds;
  // A few steps cost their wake-ups and little else: they say nothing about many.
  constexpr double enough = 500;
  if (made >= enough) {
    const double cost = (transport_seconds - transport_seconds_) / made;
    transport_cost_ = transport_cost_ > 0 ? transport_cost_ + (cost - transport_cost_) / 4 : cost;
  }
  begun_ = now;
  steps_ = steps;
  transport_seconds_ = transport_seconds;
  young_last_ = young_now_;
  young_now_ = 0;
}

double Admission::capacity() const noexcept {
  if (!options_.by_transport || transport_cost_ <= 0) return options_.capacity;
  constexpr double usable = 0.9;  // of the thread of the sockets
  return std::min(options_.capacity, usable / transport_cost_);
}

double Admission::load(std::size_t sessions) const noexcept {
  const double all = static_cast<double>(sessions) * options_.session_rate;
  return std::min(all, rate_ + static_cast<double>(young_now_ + young_last_) * options_.session_rate);
}

bool Admission::full(std::size_t sessions, double others) const noexcept {
  if (options_.capacity <= 0 || options_.session_rate <= 0) return false;
  return load(sessions) + options_.session_rate > capacity() * std::max(0.0, 1 - others);
}

std::optional<Admission::Refusal> Admission::refuse(std::size_t sessions, double others) {
  if (!full(sessions, others)) return std::nullopt;
  const double asked = load(sessions) + options_.session_rate;
  const double held = capacity() * std::max(0.0, 1 - others);
  constexpr std::uint32_t least_ms = 1000, spread = 16, apart_ms = 125;
  return Refusal{
      fmt::format("with another session about {:.0f} steps a second would be asked for, and this server holds {:.0f}", asked, held) +
          (others > 0 ? " beside its other models" : ""),
      least_ms + refused_++ % spread * apart_ms};
}

}  // namespace millrace
