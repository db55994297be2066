// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <apps/lac_small_files.h>
#include <lac_tagger/library/line_reader.h>
#include <lac_tagger/library/tagger.h>
#include <lac_tagger/library/text.h>
#include <millrace/kernels/crf.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/device.h>
#include <millrace/tensor/error.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

using Sentence = std::vector<std::string>;

/// Whether the real model is there; else the test case counts as skipped.
bool has_model() {
  const bool there = std::filesystem::exists(lac::default_folder() / "model_baseline");
  if (!there) MESSAGE("skipped: Debian's python3-jieba is not installed");
  return there;
}

Sentence characters(const std::string& text) { return lac::characters_of(text).all; }

bool same_bits(const lac::Tagged& a, const lac::Tagged& b) {
  return a.to_string() == b.to_string() && a.tags == b.tags &&
         std::bit_cast<std::uint32_t>(a.score) == std::bit_cast<std::uint32_t>(b.score);
}

/// Sentences of the characters that a model knows, and of some that it does not, empty ones too.
std::vector<Sentence> random_sentences(const lac::Model& model, std::size_t count, std::int64_t longest, Random& random) {
  std::vector<std::string> known;
  for (const auto& [text, id] : model.ids)
    if (characters(text).size() == 1) known.push_back(text);
  std::vector<Sentence> made(count);
  for (Sentence& sentence : made)
    for (std::int64_t left = random.between(0, longest); left > 0; --left)
      sentence.push_back(random.between(0, 19) == 0 ? "☃" : known[static_cast<std::size_t>(random.next() % known.size())]);
  return made;
}

struct TaggerEnded {
  int code = 0;
  std::string out, err;
};

/// The program, with `input` on its stdin.
TaggerEnded tagger_command(const std::string& flags, const std::string& input) {
  const ScratchFolder folder;
  write_file(folder / "in", input);
  const char* bin = std::getenv("MILLRACE_BIN");
  const std::string command = std::string(bin == nullptr ? "build/release/bin" : bin) + "/lac_tagger " + flags + " <" +
                              (folder / "in").string() + " >" + (folder / "out").string() + " 2>" + (folder / "err").string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"), read_file(folder / "err")};
}

void check_refused(const TaggerEnded& ended, int code, const std::string& word) {
  INFO("stderr: ", ended.err);
  CHECK(ended.code == code);
  CHECK(ended.out == "");
  CHECK(ended.err.starts_with("lac_tagger: "));
  CHECK(ended.err.find('\n') == ended.err.size() - 1);
  CHECK(ended.err.find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("The real LAC-small tags its two sentences with the scores that Fluid gives, together and alone") {
  if (!has_model()) return;
  lac::Tagger tagger(lac::read_model(lac::default_folder()));
  const std::vector<Sentence> sentences{characters("我爱北京天安门"), characters("李小福是创新办主任也是云计算方面的专家")};
  const std::vector<lac::Tagged> both = tagger.tag(sentences);
  CHECK(both[0].to_string() == "我/r 爱/v 北京/LOC 天安门/LOC");
  CHECK(std::abs(both[0].score - 51.639) < 1e-3);
  CHECK(both[1].to_string() == "李小福/PER 是/v 创新/vn 办/vn 主任/n 也是/v 云计算/nz 方面/n 的/u 专家/n");
  CHECK(std::abs(both[1].score - 168.876) < 1e-3);
  for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(tagger.tag({sentences[i]})[0], both[i]));
}

TEST_CASE("A thousand sentences in one ragged batch have the bits of each alone, with the real LAC-small") {
  if (!has_model()) return;
  const lac::Model model = lac::read_model(lac::default_folder());
  lac::Tagger tagger(model);
  Random random(1000);
  const std::vector<Sentence> sentences = random_sentences(model, 1000, 24, random);
  const std::vector<lac::Tagged> together = tagger.tag(sentences);
  int same = 0;
  for (std::size_t i = 0; i < sentences.size(); ++i) same += same_bits(tagger.tag({sentences[i]})[0], together[i]) ? 1 : 0;
  CHECK(same == 1000);
}

TEST_CASE("Any batch of sentences has the bits of each alone, empty ones included, with one thread and with two") {
  for (const std::uint64_t seed : seeds(8)) {
    INFO("seed ", seed);
    Random random(seed);
    const SmallLac files(random);
    const lac::Model model = lac::read_model(files.path());
    lac::Tagger one(model, 1), two(model, 2);
    const std::vector<Sentence> sentences = random_sentences(model, static_cast<std::size_t>(random.between(1, 20)), 9, random);
    const std::vector<lac::Tagged> together = two.tag(sentences);
    for (std::size_t i = 0; i < sentences.size(); ++i) {
      CHECK(same_bits(one.tag({sentences[i]})[0], together[i]));
      std::string text;
      for (const lac::Tagged::Word& word : together[i].words) text += word.text;
      std::string wanted;
      for (const std::string& character : sentences[i]) wanted += character;
      CHECK(text == wanted);
    }
    CHECK(one.tag({{}, {}})[1].to_string() == "");
    CHECK(one.tag({}).empty());
  }
}

TEST_CASE("The forward half is the whole network whose backward weights are zero, and its saved program streams sentence by sentence") {
  Random random(21);
  const SmallLac files(random);
  lac::Model model = lac::read_model(files.path());
  const auto forward_alone = [](const Tensor& weights) {
    std::vector<float> values = weights.to_vector<float>();
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end(), 0.0f);
    return Tensor::from(values, weights.dims());
  };
  model.gru[2].input = forward_alone(model.gru[2].input);
  model.emission.weight = forward_alone(model.emission.weight);
  const std::vector<Sentence> sentences = random_sentences(model, 6, 9, random);
  const std::vector<lac::Tagged> wanted = lac::Tagger(model).tag(sentences);

  const ScratchFolder folder;
  save_program(lac::live_program(model), folder / "live.mr");
  std::vector<std::int64_t> ids;
  LoD::Level lengths;
  for (const Sentence& sentence : sentences) {
    lengths.push_back(static_cast<std::int64_t>(sentence.size()));
    for (const std::string& character : sentence) ids.push_back(model.ids.contains(character) ? model.ids.at(character) : model.unknown);
  }
  const auto rows = static_cast<std::int64_t>(ids.size()), classes = static_cast<std::int64_t>(model.tags.size());
  const LoD lod = LoD::from_lengths({{2, 4}, lengths});
  const LoDTensor words(Tensor::from(ids, DDim{rows, 1}), lod);
  const LoDTensor prior(Tensor::from(std::vector<float>(static_cast<std::size_t>(rows * classes), 0.0f), DDim{rows, classes}), lod);
  ThreadExecutor executor(1);
  const RunResult result = sync_wait(executor, run(load_program(folder / "live.mr"), {{"words", words}, {"prior", prior}}));
  CpuDevice device(1);
  const CrfPath best = crf_viterbi(result["emission"].tensor(), model.transition, LoD::from_lengths({lengths}), device.stream(0));
  const std::vector<std::int64_t> path = best.tags.to_vector<std::int64_t>();
  std::vector<std::int64_t> tags;
  for (const lac::Tagged& tagged : wanted) tags.insert(tags.end(), tagged.tags.begin(), tagged.tags.end());
  CHECK(path == tags);

  CHECK(tagger_command("--model " + files.path().string() + " --save-live " + (folder / "made").string(), "").code == 0);
  const Recurrence recurrence = make_recurrence(load_program(folder / "made" / "lac_forward.mr"));
  CHECK(recurrence.levels == 2);
  CHECK(recurrence.inputs.size() == 2);
  CHECK(recurrence.outputs.size() == 1);
  CHECK(recurrence.opening(1).constants.size() == 2);
}

TEST_CASE("A line becomes its code points without the white space around it, and what is no UTF-8 shows as U+FFFD") {
  CHECK(characters("  a 我\t\r") == Sentence{"a", " ", "我"});
  CHECK(characters("\u3000\u00a0我\u2028\u3000") == Sentence{"我"});
  CHECK(characters("\ufeff我") == Sentence{"我"});
  CHECK(characters("").empty());
  CHECK(characters(" \u3000 ").empty());
  CHECK(characters(std::string("a\0b", 3)) == Sentence{"a", std::string(1, '\0'), "b"});
  CHECK(!lac::characters_of("我爱").broken_at);
  const lac::Characters cut = lac::characters_of("我\xe7\x88z");
  CHECK(cut.all == Sentence{"我", "\ufffd", "z"});
  CHECK(*cut.broken_at == 3);
  CHECK(characters("\xff\xfe") == Sentence{"\ufffd", "\ufffd"});
  CHECK(characters("\xed\xa0\x80") == Sentence{"\ufffd"});
}

TEST_CASE("A word begins at the first character, at a tag that ends with -B, and at the first O of a run") {
  const auto text = [](const Sentence& tags) {
    std::string all;
    for (const lac::Tagged::Word& word : lac::words_of({"a", "b", "c", "d", "e"}, tags)) all += word.text + "/" + word.label + " ";
    return all;
  };
  CHECK(text({"n-I", "n-I", "v-B", "v-I", "v-B"}) == "ab/n cd/v e/v ");
  CHECK(text({"O", "O", "n-B", "O", "O"}) == "ab/O c/n de/O ");
  CHECK(text({"n-B", "v-I", "O", "n-I", "n-B"}) == "ab/n cd/O e/n ");
}

TEST_CASE("A model whose files are missing, damaged or of other extents is refused by the file's name") {
  Random random(7);
  const auto refused = [](const SmallLac& files, const std::string& word) {
    try {
      lac::read_model(files.path());
      FAIL("expected an error about ", word);
    } catch (const Error& error) {
      INFO("found: ", error.what());
      CHECK(std::string(error.what()).find(word) != std::string::npos);
    }
  };
  const auto with = [&](auto&& damage, const std::string& word) {
    const SmallLac files(random);
    damage(files);
    refused(files, word);
  };
  with([](const SmallLac& f) { std::filesystem::remove(f.path() / "model_baseline/crfw"); }, "crfw");
  with([](const SmallLac& f) { std::filesystem::resize_file(f.path() / "model_baseline/gru_2.w_0", 100); }, "gru_2.w_0");
  with([&](const SmallLac& f) { f.parameter("fc_2.w_0", {6, 15}, random); }, "fc_2.w_0");
  with([&](const SmallLac& f) { f.parameter("crfw", {5, 5}, random); }, "crfw");
  with([](const SmallLac& f) { f.write("word.dic", "0\ta\n"); }, "OOV");
  with([](const SmallLac& f) { f.write("word.dic", "0\ta\n1\tOOV\nx\tb\n"); }, "word.dic:3");
  with([](const SmallLac& f) { f.write("word.dic", "0\ta\n40\tOOV\n"); }, "word.dic");
  with([](const SmallLac& f) { f.write("tag.dic", "0\ta-B\n2\tO\n"); }, "tag.dic");
  with([](const SmallLac& f) { f.write("tag.dic", ""); }, "tag.dic");
}

TEST_CASE("The program gives a line for each line, whatever the batch, and names what is wrong in one line") {
  Random random(3);
  const SmallLac files(random);
  const std::string model = "--model " + files.path().string();
  const std::string a = SmallLac::character(1) + SmallLac::character(2), b = SmallLac::character(30);
  const std::string input = a + "\n\n" + b + "\r\n  \n" + a + b;
  const TaggerEnded whole = tagger_command(model, input);
  CHECK(whole.code == 0);
  CHECK(whole.err == "");
  CHECK(std::count(whole.out.begin(), whole.out.end(), '\n') == 5);
  CHECK(whole.out.find("\n\n") != std::string::npos);
  CHECK(tagger_command(model + " --batch 1 --threads 2", input).out == whole.out);
  const TaggerEnded scored = tagger_command(model + " --score", a + "\n\n");
  CHECK(scored.out.find('\t') != std::string::npos);
  CHECK(scored.out.ends_with("\n\n"));
  CHECK(tagger_command(model, "").out == "");

  const TaggerEnded broken = tagger_command(model, a + "\n\xff\n");
  CHECK(broken.code == 0);
  CHECK(broken.out.find("\ufffd/") != std::string::npos);
  CHECK(broken.err.starts_with("lac_tagger: line 2: "));

  CHECK(tagger_command("--help", "").code == 0);
  CHECK(tagger_command("--version", "").out.starts_with("lac_tagger "));
  check_refused(tagger_command("--batch 0", a), 2, "--batch");
  check_refused(tagger_command("--what", a), 2, "--what");
  check_refused(tagger_command("--model /nowhere", a), 1, "/nowhere");
  std::filesystem::resize_file(files.path() / "model_baseline/word_emb", 50);
  check_refused(tagger_command(model, a), 1, "word_emb");
}

TEST_CASE("Lines are read as they come, and one that does not end is refused behind those before it") {
  const ScratchFolder folder;
  write_file(folder / "in", "a\n\nb\n" + std::string(lac::LineReader::longest + 1, 'x'));
  const int file = ::open((folder / "in").c_str(), O_RDONLY);
  REQUIRE(file >= 0);
  lac::LineReader reader(file);
  CHECK(reader.next(2) == std::vector<std::string>{"a", ""});
  CHECK(reader.next(2) == std::vector<std::string>{"b"});
  CHECK_THROWS_AS(reader.next(2), ParseError);
  ::close(file);
}
