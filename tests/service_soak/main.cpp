// SPDX-License-Identifier: Apache-2.0
// millrace-service-soak: the live service as a whole (server, sessions, batcher, states, timers, framing) on a simulated machine: its network, clock, threads and
// device do what a seed decides, among clients that vanish, stall, flood, lie and resume, and servers that drain and crash. Each world checks the ledger and
// the bits. MILLRACE_SERVICES says how many (1000 unless set); MILLRACE_SEED runs one alone; MILLRACE_DROP_REPLY=n loses the n-th result of each on its way,
// which must make it fail.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <service_soak/world.h>

namespace {

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

int main() {
  using namespace millrace::simulated;
  const Models models;
  const bool one = std::getenv("MILLRACE_SEED") != nullptr;
  const std::uint64_t first = number("MILLRACE_SEED", 1), count = one ? 1 : number("MILLRACE_SERVICES", 1000);
  const std::uint64_t drop = number("MILLRACE_DROP_REPLY", 0);
  std::map<std::string, std::uint64_t> events;
  std::uint64_t failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 10; ++seed) {
    Outcome outcome = live(models, seed, drop);
    if (outcome.wrong.empty() && seed % 50 == 0 && live(models, seed, drop).trace != outcome.trace)
      outcome.wrong = "a second run went otherwise";
    for (const auto& [event, times] : outcome.counts) events[event] += times;
    if (outcome.wrong.empty()) continue;
    std::printf("service: FAILED seed %llu: %s\n", static_cast<unsigned long long>(seed), outcome.wrong.c_str());
    ++failures;
  }
  for (const auto& [event, times] : events) std::printf("service: %s %llu\n", event.c_str(), static_cast<unsigned long long>(times));
  std::printf("service: seeds=%llu failures=%llu\n", static_cast<unsigned long long>(count), static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
