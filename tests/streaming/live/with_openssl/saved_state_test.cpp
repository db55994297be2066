// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/saved_state.h>

#include <doctest/doctest.h>

#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

const std::string secret(32, 's');

SavedState some_state(const Recurrence& recurrence, Random& random) {
  SavedState state;
  state.steps = random.next();
  state.steps_before = random.next();
  for (const Recurrence::State& one : recurrence.states) {
    Tensor value(one.dtype, one.dims);
    value.storage()->mark_written();
    for (std::size_t i = 0; i < value.bytes(); ++i) static_cast<char*>(value.raw_mutable())[i] = static_cast<char>(random.next());
    state.states.push_back(value);
  }
  state.pending = {std::string(static_cast<std::size_t>(random.between(0, 11)), 'p')};
  if (random.coin()) state.given = {random.coin() ? Tensor() : random_tensor(random, recurrence.given.at(0).dims)};
  return state;
}

std::string why(const StateSeal& seal, const std::string& bytes) {
  try {
    seal.unseal(bytes);
  } catch (const SavedStateError& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("a state survives its seal, by whoever has the model and the key") {
  for (const std::uint64_t seed : seeds(30)) {
    INFO("seed ", seed);
    Random random(seed);
    const auto recurrence = recurrence_of(live_listing(random, features, hidden));
    Random same(seed);
    const StateSeal seal(recurrence, StateKey(secret)), other(recurrence_of(live_listing(same, features, hidden)), StateKey(secret));
    CHECK(seal.fingerprint() == other.fingerprint());
    const SavedState state = some_state(*recurrence, random);
    const std::string bytes = seal.seal(state);
    CHECK(bytes.size() <= seal.most_bytes());
    const SavedState again = other.unseal(bytes);
    CHECK(again.steps == state.steps);
    CHECK(again.steps_before == state.steps_before);
    CHECK(again.pending == state.pending);
    REQUIRE(again.states.size() == state.states.size());
    for (std::size_t i = 0; i < state.states.size(); ++i) CHECK(WholeRun::bytes(again.states[i]) == WholeRun::bytes(state.states[i]));
    REQUIRE(again.given.size() == state.given.size());
    for (std::size_t i = 0; i < state.given.size(); ++i) CHECK(again.given[i].elements() == state.given[i].elements());
    CHECK(seal.seal(again) == bytes);
  }
}

TEST_CASE("a state that was cut, changed in any bit, lengthened, or is of another key or model is refused") {
  Random random(7);
  const Program program = live_listing(random, features, hidden);
  const auto recurrence = recurrence_of(program);
  const StateSeal seal(recurrence, StateKey(secret));
  const std::string bytes = seal.seal(some_state(*recurrence, random));
  const std::string changed = "saved state: expected bytes that this server's key has sealed";
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK(why(seal, bytes.substr(0, size)).starts_with(changed));
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    CHECK(why(seal, flipped).starts_with(changed));
  }
  CHECK(why(seal, bytes + 'x').starts_with(changed));
  CHECK(why(seal, std::string(seal.most_bytes() + 1, 'x')).starts_with("saved state: expected at most "));
  CHECK(why(StateSeal(recurrence, StateKey::random()), bytes).starts_with(changed));
  const StateSeal elsewhere(recurrence_of(live_listing(random, features, hidden)), StateKey(secret));  // other weights
  CHECK(why(elsewhere, bytes) == "saved state: expected one of the model that is served, found one of another model");
  CHECK(why(StateSeal(recurrence, StateKey(secret), "audio at another rate"), bytes).ends_with("found one of another model"));
  CHECK(why(seal, bytes) == "taken");
}

TEST_CASE("a state with more input that waits than one may have is not sealed") {
  Random random(8);
  const auto recurrence = recurrence_of(live_listing(random, features, hidden));
  const StateSeal seal(recurrence, StateKey(secret));
  SavedState state = some_state(*recurrence, random);
  state.pending[0].assign(1 << 20, 'p');
  CHECK_THROWS_WITH_AS(seal.seal(state), doctest::Contains("too many rows"), SavedStateError);
}
