// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <fmt/format.h>

#include <lac_tagger/library/tagger.h>
#include <lac_tagger/library/text.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/data.h>
#include <support/scratch_folder.h>

#include "demos.h"
#include "serving.h"

namespace millrace::demo {
namespace {

using Dialogue = std::vector<std::string>;

const std::vector<Dialogue> dialogues{
    {"我爱北京天安门", "李小福是创新办主任也是云计算方面的专家", "今天天气很好"},
    {"你好", "请问去火车站怎么走", "坐地铁两站就到了", "谢谢"},
    {"会议什么时候开始", "明天上午九点"},
};

/// All dialogues as the program takes them: the numbers of their characters, and something known of each beforehand.
struct Inputs {
  Inputs(const lac::Model& model) {
    std::vector<std::int64_t> ids;
    LoD::Level sentences, characters;
    for (const Dialogue& dialogue : dialogues) {
      sentences.push_back(static_cast<std::int64_t>(dialogue.size()));
      for (const std::string& sentence : dialogue) {
        const std::vector<std::string> all = lac::characters_of(sentence).all;
        characters.push_back(static_cast<std::int64_t>(all.size()));
        for (const std::string& character : all) {
          const auto known = model.ids.find(character);
          ids.push_back(known == model.ids.end() ? model.unknown : known->second);
        }
      }
    }
    const LoD lod = LoD::from_lengths({sentences, characters});
    const auto rows = static_cast<std::int64_t>(ids.size()), classes = static_cast<std::int64_t>(model.tags.size());
    std::vector<float> known;
    for (std::int64_t i = 0; i < rows * classes; ++i) known.push_back(static_cast<float>(i % 7) / 8);
    words = LoDTensor(Tensor::from(ids, DDim{rows, 1}), lod);
    prior = LoDTensor(Tensor::from(known, DDim{rows, classes}), lod);
  }
  LoDTensor words, prior;
};

std::span<const std::byte> bytes_of(const Tensor& rows) { return {static_cast<const std::byte*>(rows.raw()), rows.bytes()}; }

/// A dialogue as it is said: its sentences open and close, their rows come in pieces cut anywhere.
ClientPlan plan_for(const LoDTensor& words, const LoDTensor& prior) {
  ClientPlan plan;
  plan.start.reply = ReplyFormat::binary;
  for (std::int64_t sentence = 0; sentence < words.lod().sequences(0); ++sentence) {
    plan.script.push_back(text_message(to_json(OpenMessage{1})));
    for (const auto& [name, all] : {std::pair("words", words), std::pair("prior", prior)}) {
      const Tensor rows = all.slice(0, sentence, sentence + 1).tensor();
      const std::span<const std::byte> bytes = bytes_of(rows);
      const std::size_t cut = bytes.size() * 3 / 7 + 1;
      plan.script.push_back(encode_data(name, bytes.first(cut)));
      plan.script.push_back(encode_data(name, bytes.subspan(cut)));
    }
    plan.script.push_back(text_message(to_json(CloseMessage{1})));
    plan.script.push_back(text_message(to_json(FlushMessage{})));
  }
  return plan;
}

void tag_two(const lac::Model& model) {
  lac::Tagger tagger(model);
  for (std::size_t i = 0; i < 2; ++i) {
    const lac::Tagged tagged = tagger.tag({lac::characters_of(dialogues[0][i]).all})[0];
    fmt::print("{} (score {:.3f})\n", tagged.to_string(), tagged.score);
  }
}

}  // namespace

int dialogue(const std::string& bin) {
  if (!std::filesystem::exists(lac::default_folder() / "model_baseline")) {
    fmt::print("demo: LAC-small is not installed (Debian package python3-jieba): no sentences are tagged\n");
    return 0;
  }
  const lac::Model model = lac::read_model(lac::default_folder());
  tag_two(model);

  const app::ScratchFolder scratch("millrace-demo");
  const std::filesystem::path path = scratch / "lac_forward.mr";
  save_program(lac::live_program(model), path);
  const Inputs inputs(model);
  ThreadExecutor executor(1);
  const RunResult whole = sync_wait(executor, run(load_program(path), {{"words", inputs.words}, {"prior", inputs.prior}}));
  const std::vector<LoDTensor> wanted = whole["emission"].peel();

  app::Child server({bin + "/millrace", "serve", path.string(), "--port", "0", "--quiet"});
  const StreamUrl url = url_of(server);
  std::vector<ClientPlan> plans;
  const std::vector<LoDTensor> words = inputs.words.peel(), prior = inputs.prior.peel();
  for (std::size_t i = 0; i < dialogues.size(); ++i) plans.push_back(plan_for(words[i], prior[i]));
  const std::vector<ClientRecord> records = stream_plans(url, std::move(plans));
  server.terminate();
  server.finish();

  int equal = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ClientRecord& record = records[i];
    const Tensor& own = wanted[i].tensor();
    const bool same = record.error.empty() && record.flushed.size() == dialogues[i].size() && record.outputs[0].size() == own.bytes() &&
                      std::memcmp(record.outputs[0].data(), own.raw(), own.bytes()) == 0;
    equal += same ? 1 : 0;
    fmt::print("dialogue {}: {} sentences, {} characters, {} replies{}{}\n", i, dialogues[i].size(), own.dim(0), record.received.size(),
               same ? ", the bits of the whole" : ", other bits than the whole", record.error.empty() ? "" : ": " + record.error);
  }
  fmt::print("demo: dialogues live == offline, bit for bit: {}/{}\n", equal, records.size());
  return equal == static_cast<int>(records.size()) ? 0 : 1;
}

}  // namespace millrace::demo
