// SPDX-License-Identifier: Apache-2.0
// Rows of the LSTM's kernel that a warp writes when its block has arrived at the next meeting.
#include <millrace/kernels/lstm_sequence.h>

#include <cstring>
#include <utility>

#include <any_order.h>
#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {

TEST_CASE("rows behind a watermark are written while the kernel goes on, however late warps are") {
  each_backend([](DeviceUnderTest& on) {
    Random random(1);
    constexpr std::int64_t hidden = 40, rows = 11, steps = 12;
    LstmDesc desc;
    desc.hidden = hidden;
    desc.dtype = DType::f16;
    desc.bias = false;
    const LstmSequencePlan plan = make_lstm_sequence(desc, on.stream().place());
    const PackedLstmSequence packed =
        pack(plan, on.up(random_tensor(random, DType::f16, DDim{hidden, 4 * hidden})), nullptr, nullptr, on.stream());
    const Tensor projection = on.up(random_tensor(random, DType::f32, DDim{rows * steps, 4 * hidden}));
    const Tensor zeros = random_tensor(random, DType::f16, DDim{rows, hidden}, 0);
    const auto start = [&](const LstmSchedule& schedule, std::int64_t steps_a_launch) {
      LstmSequenceRows made;
      made.projection = projection;
      made.y = on.up(random_tensor(random, DType::f16, DDim{rows * steps, hidden}, 0));
      made.h = made.h_out = on.up(zeros);
      made.c = made.c_out = on.up(zeros);
      for (std::int64_t t = 0; t <= steps; ++t) made.offsets.push_back(t * rows);
      made.watermark = on.stream().watermark(static_cast<std::uint64_t>(steps));
      made.steps_a_launch = steps_a_launch;  // the states of one are the next one's, in place
      run(plan, packed, made, on.stream(), &schedule);
      return made;
    };
    using Group = LstmSchedule::Group;
    for (const auto& [group, held] :
         {std::pair{Group::block, 0}, {Group::cluster, 0}, {Group::grid, 0}, {Group::block, 1}, {Group::cluster, 1}, {Group::grid, 2}}) {
      LstmSchedule schedule;
      schedule.group = group;
      schedule.blocks = group == Group::block ? 1 : 2;
      schedule.held = held;
      schedule.groups = held > 0 ? 2 : 1;
      schedule.warps = held > 0 ? 8 : 4;
      schedule.staged = held > 0 ? 1 : 2;
      schedule.step_ns = 1e6;  // each step is published alone
      INFO(schedule.to_string());
      const LstmSequenceRows all = start(schedule, 0);
      const Tensor expected = on.down(all.y);
      emulated::lateness = 3000;
      bool equal = true;
      for (int again = 0; again < 3; ++again) {
        const LstmSequenceRows late = start(schedule, again % 2);
        for (std::int64_t t = 1; t <= steps; ++t) {
          Point(late.watermark, static_cast<std::uint64_t>(t)).wait();
          equal = equal && std::memcmp(late.y.raw(), expected.raw(), static_cast<std::size_t>(t * rows * hidden) * 2) == 0;
        }
        on.finish();
      }
      emulated::lateness = 0;
      CHECK(equal);
    }
  });
}

}  // namespace millrace::testing
