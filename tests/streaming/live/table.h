// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <millrace/streaming/live/batcher.h>
#include <millrace/streaming/live/served_model.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/live/state_slab.h>

namespace millrace::testing {

/// A server without sockets or threads: sessions, their batcher, and ticks that happen when they are told to.
struct Table {
  explicit Table(const Program& program, const Limits& given = {}, StreamConfig config = {},
                 std::vector<std::pair<std::string, std::string>> states = {})
      : model(std::make_shared<const ServedModel>(program, std::move(config), std::move(states))),
        limits(given),
        batcher(model->recurrence()),
        slab(model->recurrence()) {}

  std::unique_ptr<Session> sit() { return std::make_unique<Session>(model, batcher, limits); }
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
};

}  // namespace millrace::testing
