// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/runtime/training/metrics.h>
#include <millrace/runtime/training/ts_file.h>
#include <millrace/streaming/client/session_plan.h>
#include <millrace/streaming/client/stream_client.h>

#include "demos.h"
#include "serving.h"

namespace millrace::demo {
namespace {

/// The probability of the model's best class, row by row.
std::string as_it_comes(const Tensor& probabilities) {
  std::string text;
  const std::vector<float> all = probabilities.to_vector<float>();
  const auto classes = static_cast<std::size_t>(probabilities.dim(1));
  for (std::size_t row = 0; row * classes < all.size(); ++row) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(row * classes);
    const auto most = std::max_element(from, from + static_cast<std::ptrdiff_t>(classes));
    text += fmt::format("{}{}", row == 0 ? "" : " ", most - from + 1) + (*most > 0.9f ? "!" : *most > 0.5f ? "" : "?");
  }
  return text;
}

}  // namespace

int trained(const Trained& given) {
  const training::Dataset data = training::read_ts(given.sequences);
  ThreadExecutor executor(1);
  const RunResult whole = sync_wait(executor, run(load_program(given.folder + "/model.mr"), {{"x", data.x}}));
  const Tensor& wanted = whole["scores"].tensor();

  app::Child server({given.bin + "/millrace", "serve", given.folder + "/live.mr", "--port", "0", "--quiet"});
  const StreamUrl url = url_of(server);
  SessionPlan plan({{"x", data.x}}, describe_server(url));
  const std::vector<ClientRecord> records = stream_plans(url, plan.take());
  server.terminate();
  server.finish();
  for (const ClientRecord& record : records)
    if (!record.error.empty()) throw IoError("millrace stream: " + record.error);

  std::vector<LoDTensor> scores, probabilities;
  for (const auto& [name, rows] : plan.outputs(records)) (name == "scores" ? scores : probabilities) = rows.peel();
  std::int64_t equal = 0, right = 0;
  fmt::print("live: the speaker that each row so far is of (? below 0.5, ! above 0.9)\n");
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const Tensor& rows = scores[i].tensor();
    const auto at = static_cast<std::int64_t>(i);
    if (i % (scores.size() / 6 + 1) == 0)
      fmt::print("  speaker {}: {}\n", data.classes[static_cast<std::size_t>(data.targets[DDim{at}])],
                 as_it_comes(probabilities[i].tensor()));
    if (rows.dim(0) == 0) continue;
    const Tensor last = rows.rows(rows.dim(0) - 1, rows.dim(0)).copy_to(CpuPlace{}), own = wanted.rows(at, at + 1).copy_to(CpuPlace{});
    equal += std::memcmp(last.raw(), own.raw(), own.bytes()) == 0 ? 1 : 0;
    right += training::count_right(last, data.targets.rows(at, at + 1));
  }
  const auto count = static_cast<std::int64_t>(scores.size());
  fmt::print("demo: {} sessions live, {} of them right ({:.1f} %); the last row of each has the bits of the whole: {}/{}\n", count, right,
             100.0 * static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(1, count)), equal, count);
  return equal == count ? 0 : 1;
}

}  // namespace millrace::demo
