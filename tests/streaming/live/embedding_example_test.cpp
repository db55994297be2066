// SPDX-License-Identifier: Apache-2.0
// The listing of docs/embedding.md, as a test.
#include <cstring>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/live/live_model.h>
#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

// [live]
boost::asio::awaitable<std::vector<float>> listen(LiveModel& model, std::vector<Tensor> arriving) {
  LiveSession session = co_await model.async_open(LiveStart(), boost::asio::use_awaitable);
  std::vector<float> heard;
  for (const Tensor& rows : arriving) {  // any number of rows, as they come
    co_await session.async_push(LoDTensor(rows), boost::asio::use_awaitable);
    co_await session.async_flush(boost::asio::use_awaitable);
    std::optional<LiveRows> ready;
    if (!session.try_next(ready) || !ready) continue;  // no row, no result
    for (const float value : ready->at("y").tensor().to_vector<float>()) heard.push_back(value);
  }
  co_await session.async_finish(boost::asio::use_awaitable);
  co_return heard;
}

std::vector<float> live(const Program& program, std::vector<Tensor> arriving) {
  boost::asio::io_context io;  // the embedder's own
  RuntimeOptions options;
  options.context = &io;
  Runtime runtime(options);
  LiveModel model(runtime, program);
  std::vector<float> heard;
  boost::asio::co_spawn(io, listen(model, std::move(arriving)),
                        [&](std::exception_ptr, std::vector<float> all) { heard = std::move(all); });
  io.run();
  return heard;
}
// [live]

}  // namespace

TEST_CASE("the listing of the page on embedding hears what one run of the whole gives") {
  Random random(8);
  const Program program = live_listing(random, 3, 4);
  const Tensor rows = random_tensor(random, {7, 3});
  SeededExecutor executor(1);
  const LoDTensor x(rows, LoD::from_lengths({{7}}));
  const Tensor boot = make_darray(DDim{1, 4}, 0.0f);
  const RunResult whole = sync_wait(executor, run(program, {{"x", x}, {"boot", boot}}));
  const std::vector<float> heard = live(program, {rows.rows(0, 1), rows.rows(1, 5), rows.rows(5, 5), rows.rows(5, 7)});
  const std::vector<float> wanted = whole["y"].tensor().to_vector<float>();
  REQUIRE(heard.size() == wanted.size());
  CHECK(std::memcmp(heard.data(), wanted.data(), heard.size() * sizeof(float)) == 0);
}
