// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/file_plan.h>

#include <doctest/doctest.h>

#include <millrace/runtime/files/npy.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

StartedMessage server_of(const DDim& row) {
  StartedMessage server;
  server.inputs.push_back({"x", DType::f32, row, {}, {}});
  return server;
}

}  // namespace

TEST_CASE("a .npy is the rows of its axis 0") {
  const ScratchFolder folder;
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2}));
  const ClientPlan plan = plan_file(folder / "x.npy", server_of({2}));
  CHECK(plan.bytes.size() == 24);
  CHECK(plan.unit_bytes == 8);
  CHECK(plan.units_per_second == 0);
  CHECK(plan.input == "x");
  CHECK(plan.start.session == "x.npy");
  CHECK(plan.start.reply == ReplyFormat::binary);
  CHECK(plan.start.inputs.at("x").shape == DDim{2});
}

TEST_CASE("a file that the server cannot take is refused before anything is sent") {
  const ScratchFolder folder;
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2}));
  write_npy(folder / "f64.npy", Tensor::from<double>({1, 2}).reshape({1, 2}));
  CHECK_THROWS_AS(plan_file(folder / "x.npy", server_of({3})), ShapeError);
  CHECK_THROWS_AS(plan_file(folder / "x.npy", server_of({})), ShapeError);
  CHECK_THROWS_AS(plan_file(folder / "f64.npy", server_of({2})), DTypeError);
  CHECK_THROWS_AS(plan_file(folder / "x.wav", server_of({2})), UnsupportedError);
  CHECK_THROWS_AS(plan_file(folder / "absent.npy", server_of({2})), IoError);
  StartedMessage sound = server_of({6});
  sound.inputs[0].audio = AudioFormat();
  CHECK_THROWS_AS(plan_file(folder / "x.npy", sound), UnsupportedError);
  StartedMessage two = server_of({2});
  two.inputs.push_back(two.inputs[0]);
  CHECK_THROWS_AS(plan_file(folder / "x.npy", two), UnsupportedError);
}
