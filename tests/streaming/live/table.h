// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/saved_state.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/live/state_slab.h>

namespace millrace::testing {

/// A server without sockets or threads: sessions, their batcher, and ticks that happen when they are told to.
struct Table : private SessionHost {
  explicit Table(const Program& program, const Limits& given = {}, StreamConfig config = {},
                 std::vector<std::pair<std::string, std::string>> states = {})
      : model(std::make_shared<const ServedModel>(program, std::move(config), std::move(states))),
        limits(given),
        batcher(model->recurrence()),
        slab(model->recurrence()) {}

  std::unique_ptr<Session> sit() { return std::make_unique<Session>(model, batcher, limits); }
  /// One whose host seals states by this key, if the build can, and gives tickets.
  std::unique_ptr<Session> sit_hosted() { return std::make_unique<Session>(static_cast<SessionHost&>(*this), limits); }
  bool take_key(const std::string& secret) try {
    sealing.emplace(model->recurrence(), StateKey(secret), model->identity(), model->config().labels.size(), model->saved_audio_bytes());
    return true;
  } catch (const UnsupportedError&) {
    return false;
  }
  void tick() {
    if (batcher.ready()) batcher.finish(slab.run(batcher.take()));
  }
  void tick_all() {
    while (batcher.ready()) tick();
  }

  std::shared_ptr<const ServedModel> model;
  Limits limits;
  Batcher batcher;
  StateSlab slab;
  std::optional<StateSeal> sealing;
  std::string ticket;                   ///< of each session
  std::vector<std::string> issued;      ///< tickets that find a session
  std::function<void()> before_ticket;  ///< is called when a session asks for one

 private:
  std::shared_ptr<const ServedModel> model_named(const std::string&) override { return model; }
  std::size_t most_state_bytes() const noexcept override { return sealing ? sealing->most_bytes() : 0; }
  Batcher& choose() override { return batcher; }
  const StateSeal* seal() const noexcept override { return sealing ? &*sealing : nullptr; }
  std::string new_ticket() const override {
    std::string made = ticket;
    if (before_ticket) before_ticket();
    return made;
  }
  void issue_ticket(const std::string& of) override { issued.push_back(of); }
};

}  // namespace millrace::testing
