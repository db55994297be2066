// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/train_job.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <millrace/kernels/edit_distance.h>
#include <millrace/runtime/autodiff/memory_policy_text.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/files/sha256.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/models/export/onnx.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/runtime/training/csv_file.h>
#include <millrace/runtime/training/errors.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/fed_program.h>
#include <millrace/runtime/training/gradient_sum.h>
#include <millrace/runtime/training/internal/folder_lock.h>
#include <millrace/runtime/training/ragged_file.h>
#include <millrace/runtime/training/trainer.h>
#include <millrace/runtime/training/ts_file.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace::training {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string exact(double value) { return fmt::format("{:a}", value); }
/// The number of a text that `exact` wrote. The locale does not matter.
double inexact(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.starts_with("0x")) text.remove_prefix(2);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::hex);
  return negative ? -value : value;
}

// ---- Data -----------------------------------------------------------------------------------------------------------
struct JobData {
  Dataset train, validation, test;
  DataShape shape;  // of the training data with those sequences that are held out: a class may be in one of them alone
  bool validated = false, tested = false;
};

class DataReader {
 public:
  DataReader(const TrainConfig& config, fs::path folder) : config_(config), folder_(std::move(folder)) {}

  JobData read(std::uint64_t seed) {
    JobData data;
    data.train = one(config_.train);
    if (data.train.sequences() == 0) throw ArgumentError(data.train.source + ": expected at least one sequence to train on, found none");
    first_ = &data.train;
    alphabet_ = data.train.classes;
    data.tested = !config_.test.empty();
    if (data.tested) data.test = one(config_.test);
    data.validated = !config_.validation_file.empty() || config_.validation > 0;
    if (!config_.validation_file.empty()) data.validation = one(config_.validation_file);
    data.shape = shape_of(data.train);
    if (data.validated && config_.validation_file.empty()) hold_out(data, seed);
    expect_terms("train", data.train);
    if (data.validated) expect_terms("validation", data.validation);
    if (data.tested) expect_terms("test", data.test);
    return data;
  }

 private:
  Dataset one(const std::string& name) const {
    const fs::path path = fs::path(name).is_absolute() ? fs::path(name) : folder_ / name;
    const bool text = config_.format == TrainConfig::Format::text;
    const std::string ending = text ? "" : ending_of(path);
    const bool csv = ending == ".csv" || ending == ".tsv";
    if (ending == ".ts" && config_.targets != Targets::sequence) refuse_targets(path, "\"sequence\"");
    if (csv && config_.targets == Targets::tokens) refuse_targets(path, "\"sequence\" or \"row\"");
    if (!csv && config_.has_csv)
      throw ArgumentError(config_.name + ": [data]: expected a .csv or .tsv file for the keys of columns, found " + path.string());
    Dataset data = text              ? read_characters(path, config_.length, alphabet_)
                   : csv             ? read_csv(path, csv_form(ending), first_)
                   : ending == ".ts" ? read_ts(path)
                                     : read_ragged(path, config_.targets);
    data.expect_finite();
    if (!alphabet_.empty() && data.classes != alphabet_)
      throw ArgumentError(path.string() + ": expected the classes of the training data, found others");
    return data;
  }

  [[noreturn]] void refuse_targets(const fs::path& path, const std::string& expected) const {
    constexpr const char* names[] = {"sequence", "row", "tokens"};
    throw ArgumentError(fmt::format("{}: [data]: targets: expected {} for {}, found \"{}\"", config_.name, expected, path.string(),
                                    names[static_cast<int>(config_.targets)]));
  }

  /// A mean over nothing says nothing.
  void expect_terms(const char* key, const Dataset& data) const {
    if (data.terms() > 0) return;
    throw ArgumentError(fmt::format("{}: [data]: {}: expected at least one {} in {}, found none", config_.name, key,
                                    data.per_row ? "row" : "sequence", data.source));
  }

  CsvForm csv_form(const std::string& ending) const {
    CsvForm form = config_.csv;
    form.per_row = config_.targets == Targets::row;
    form.numbers = config_.model.loss == ModelSpec::Loss::mse;
    form.words = !config_.model.layers.empty() && config_.model.layers[0].kind == LayerSpec::Kind::embedding;
    form.length = config_.length;
    if (ending == ".tsv") form.separator = '\t';
    return form;
  }

  void hold_out(JobData& data, std::uint64_t seed) const {
    constexpr std::uint64_t split_epoch = ~std::uint64_t{0};  // none that is trained
    const std::int64_t all = data.train.sequences();
    if (all < 2)
      throw ArgumentError(fmt::format("{}: [data]: validation: expected at least 2 sequences in {}, to hold one out, found {}",
                                      config_.name, data.train.source, all));
    const auto held = std::clamp<std::int64_t>(std::llround(config_.validation * static_cast<double>(all)), 1, all - 1);
    std::vector<std::int64_t> order = permutation(all, seed, split_epoch);
    std::vector<std::int64_t> validation(order.begin(), order.begin() + held), train(order.begin() + held, order.end());
    std::sort(validation.begin(), validation.end());
    std::sort(train.begin(), train.end());
    data.validation = data.train.select(validation);
    data.train = data.train.select(train);
  }

  const TrainConfig& config_;
  fs::path folder_;
  const Dataset* first_ = nullptr;  // the training data, when it has been read
  std::vector<std::string> alphabet_;
};

/// The best hypothesis of each source without its end, with one level.
LoDTensor best_hypotheses(const LoDTensor& tokens, std::int64_t end) {
  const std::vector<std::int64_t> all = tokens.tensor().to_vector<std::int64_t>();
  const auto sources = tokens.lod().offsets(0), hypotheses = tokens.lod().offsets(1);
  std::vector<std::int64_t> best;
  LoD::Level lengths;
  for (std::size_t i = 0; i + 1 < sources.size(); ++i) {
    lengths.push_back(0);
    if (sources[i] == sources[i + 1]) continue;
    const auto first = static_cast<std::size_t>(sources[i]);
    for (std::int64_t at = hypotheses[first]; at < hypotheses[first + 1] && all[static_cast<std::size_t>(at)] != end; ++at) {
      best.push_back(all[static_cast<std::size_t>(at)]);
      ++lengths.back();
    }
  }
  return {Tensor::from(best, {std::ssize(best)}), LoD::from_lengths({lengths})};
}

/// IndexError, naming the source, for the first of the numbers, i64, that is not below `count`, the numbers of the training data.
void expect_known(const Tensor& numbers, std::int64_t count, const std::string& source, const char* what, const char* one) {
  const std::vector<std::int64_t> all = numbers.to_vector<std::int64_t>();
  const auto wrong = std::find_if(all.begin(), all.end(), [&](std::int64_t number) { return number >= count; });
  if (wrong == all.end()) return;
  throw IndexError(fmt::format("{}: expected {} from 0 to {}, as in the training data, found {} as {} {}", source, what, count - 1, *wrong,
                               one, wrong - all.begin()));
}

/// Data to validate or to test, compared with that to train on, before the first step: its dtypes, widths, words and classes.
void check_like(const DataShape& wanted, const Dataset& train, const Dataset& data) {
  const DataShape found = shape_of(data);
  const auto rows = [](const DataShape& shape) {
    return shape.dtype == DType::i64 ? "numbers of words, i64" : fmt::format("{} features of {}", shape.features, name_of(shape.dtype));
  };
  const bool words = wanted.dtype == DType::i64, floating = is_floating(train.targets.dtype());
  if (found.dtype != wanted.dtype)
    throw DTypeError(fmt::format("{}, rows: expected {}, as in the training data, found {}", data.source, rows(wanted), rows(found)));
  if (!words && found.features != wanted.features)
    throw ShapeError(fmt::format("{}, rows: expected {}, as in the training data, found {}", data.source, rows(wanted), rows(found)));
  if (data.targets.dtype() != train.targets.dtype())
    throw DTypeError(fmt::format("{}, targets: expected {}, as in the training data, found {}", data.source,
                                 floating ? fmt::format("values of {}", name_of(train.targets.dtype())) : "classes, i64",
                                 name_of(data.targets.dtype())));
  if (floating && found.outputs != wanted.outputs)
    throw ShapeError(fmt::format("{}, targets: expected {} values each, as in the training data, found {}", data.source, wanted.outputs,
                                 data.targets.to_string()));
  if (words) expect_known(data.x.tensor(), wanted.features, data.source, "words", "element");
  if (!floating) expect_known(data.targets, wanted.outputs, data.source, "classes", "target");
}

// ---- The job --------------------------------------------------------------------------------------------------------
/// Sums over an epoch so far.
struct Running {
  double loss = 0, norm = 0, rate = 0;
  std::int64_t right = 0, count = 0, batches = 0;

  Score score(bool classes) const {
    const double n = static_cast<double>(std::max<std::int64_t>(1, count));
    return {loss / n, classes ? std::optional(static_cast<double>(right) / n) : std::nullopt};
  }
};

class TrainJob {
 public:
  TrainJob(const TrainConfig& config, const TrainJobOptions& options, TrainObserver& observer)
      : config_(config),
        options_(options),
        observer_(observer),
        seed_(options.seed.value_or(config.seed)),
        epochs_(options.epochs.value_or(config.epochs)),
        folder_(options.folder.value_or(config.folder)),
        checkpoints_(folder_ / "checkpoints"),
        data_(DataReader(config, data_folder()).read(seed_)),
        shape_(data_.shape),
        classes_(config.model.loss == ModelSpec::Loss::cross_entropy),
        batches_(dealt(0)),
        trainer_(model(ModelUse::train), trainer_options()),
        scorer_(with_fed_weights(model(ModelUse::score)), make_cpu_device(options.threads)) {}

  TrainResult run() {
    check_results();
    check_checkpoints();
    identity_ = identity();
    check_ranks();
    if (writes()) observer_.begins(description());
    if (options_.resume)
      resume();
    else
      begin();
    started_ = Clock::now();
    last_checkpoint_ = Clock::now();
    while (epoch_ < epochs_) train_epoch();
    return finish();
  }

 private:
  int rank() const { return options_.ranks == nullptr ? 0 : options_.ranks->rank(); }
  int world_size() const { return options_.ranks == nullptr ? 1 : options_.ranks->world_size(); }
  bool writes() const { return rank() == 0; }
  fs::path data_folder() const { return options_.data.value_or(fs::path(config_.name).parent_path()); }
  void note(const std::string& text) {
    if (writes()) observer_.note(text);
  }

  /// Sums over the ranks, the same on all of them.
  std::vector<double> summed(const std::vector<double>& values) const {
    if (options_.ranks == nullptr) return values;
    CpuStream stream(std::make_shared<ThreadTeam>(1));
    Tensor sum = Tensor::from(values, DDim{std::ssize(values)});
    options_.ranks->all_reduce(sum, sum, Reduce::sum, stream).wait();
    return sum.to_vector<double>();
  }

  Program model(ModelUse use) {
    if (!checked_) check_data();
    checked_ = true;
    ModelSpec spec = config_.model;
    spec.seed = seed_;
    return typed(build_model(spec, shape_, use));
  }

  /// With weights of the type that the configuration says.
  Program typed(Program made) const {
    if (!config_.narrow) return made;
    layers::narrow_weights(made, DType::bf16);
    return made;
  }

  void check_data() {
    const bool floating = is_floating(data_.train.targets.dtype());
    if (classes_ == floating)
      throw DTypeError(fmt::format("{}: expected {}, found {}", data_.train.source,
                                   classes_ ? "classes, i64, for cross_entropy (loss = \"mse\" is for numbers)" : "floating values for mse",
                                   data_.train.classes.empty() ? name_of(data_.train.targets.dtype()) : "classes"));
    const Tensor& targets = data_.train.targets;
    if (floating && (targets.rank() > 2 || (targets.rank() == 2 && targets.dim(1) == 0)))
      throw ShapeError(data_.train.source + ": expected targets (labels) [N] or [N, K] with K of at least 1, found " + targets.to_string());
    if (data_.validated) check_like(shape_, data_.train, data_.validation);
    if (data_.tested) check_like(shape_, data_.train, data_.test);
    if (!config_.standardize) return;
    if (shape_.dtype == DType::i64)
      throw ArgumentError(config_.name + ": [data]: standardize: expected rows of features, found words in " + data_.train.source);
    shape_.scale = feature_scale(data_.train);
  }

  TrainerOptions trainer_options() const {
    TrainerOptions made;
    made.optimizer = config_.optimizer;
    made.schedule = config_.schedule;
    if (made.schedule.decay_steps == 0) made.schedule.decay_steps = std::max<std::int64_t>(1, steps_of_all() - made.schedule.warmup);
    made.clipping = config_.clipping;
    made.threads = options_.threads;
    made.memory = options_.memory.value_or(config_.memory);
    made.run.tracer = options_.tracer;
    return made;
  }

  /// The steps of all epochs. A batch without terms of the loss makes none. Their number depends on the order where rows bound a batch, or where
  /// sequences have no term.
  std::int64_t steps_of_all() const {
    const bool wanted = config_.schedule.kind == Schedule::Kind::linear || config_.schedule.kind == Schedule::Kind::cosine;
    bool each_has_terms = true;
    for (std::int64_t sequence = 0; wanted && sequence < data_.train.sequences(); ++sequence) each_has_terms &= count_of({sequence}) > 0;
    if (!wanted || (config_.batch.rows == 0 && each_has_terms)) return std::ssize(batches_) * epochs_;
    std::int64_t count = 0;
    for (std::int64_t epoch = 0; epoch < epochs_; ++epoch)
      for (const std::vector<std::int64_t>& batch : dealt(epoch)) count += count_of(batch) > 0 ? 1 : 0;
    return count;
  }

  std::string description() const {
    std::int64_t count = 0;
    for (const auto& [name, weight] : trainer_.weights()) count += weight.elements();
    const auto size = [](const Dataset& data) { return fmt::format("{} sequences ({} rows)", data.sequences(), data.rows()); };
    std::string text = fmt::format("{} weights, {} to train on", count, size(data_.train));
    if (data_.validated) text += fmt::format(", {} to validate", size(data_.validation));
    if (data_.tested) text += fmt::format(", {} to test", size(data_.test));
    return text + fmt::format(", {} batches an epoch, seed {}", batches_.size(), seed_);
  }

  /// Ranks of different jobs would wait for one another, or sum what does not belong together.
  void check_ranks() const {
    if (world_size() == 1) return;
    std::string data;
    for (const char* name : {"data", validation_data, test_data})
      if (const auto found = identity_.find(name); found != identity_.end()) data += name + found->second;
    const std::vector<std::pair<std::string, std::string>> told{{"configuration", identity_.at("config")},
                                                                {"seed", identity_.at("seed")},
                                                                {"epochs", std::to_string(epochs_)},
                                                                {"data", data},
                                                                {"--resume", std::to_string(static_cast<int>(options_.resume))}};
    std::string unlike, own;
    for (const auto& [name, value] : told) {
      if (is_same(sha256(value))) continue;
      unlike += (unlike.empty() ? "" : ", ") + name;
      if (name == "seed" || name == "epochs") own += (own.empty() ? " (" : ", ") + name + " " + value;
    }
    if (!unlike.empty())
      throw MismatchError(fmt::format("training on {} ranks: expected the same {} of all ranks, found another than that of rank {}{}",
                                      world_size(), unlike, rank(), own.empty() ? "" : own + ")"));
  }

  /// Whether all ranks have that hash.
  bool is_same(const std::string& hash) const {
    const std::vector<double> bytes(hash.begin(), hash.end()), sums = summed(bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (sums[i] != bytes[i] * world_size()) return false;
    return true;
  }

  /// Gradients are summed, and each rank changes weights of its own by the sum: they begin alike. `from`: where the weights were read.
  void check_weights(const std::string& from) const {
    if (world_size() == 1) return;
    Sha256 hash;
    hash.add(std::to_string(trainer_.steps()));
    for (const auto& [name, weight] : trainer_.weights()) {
      hash.add("\n" + name);
      hash.add(bytes_of(weight));
    }
    if (!is_same(hash.digits()))
      throw MismatchError(
          fmt::format("training on {} ranks: expected the same weights of all ranks in {}, found others than those of rank {}",
                      world_size(), from, rank()));
  }

  void begin() {
    if (!config_.start.empty()) {
      trainer_.set_weights(start_weights());
      check_weights(config_.start);
    }
    if (writes()) {
      make_folders(folder_);
      take_folder();
      checkpoints_.clear();
    }
    deal();
  }

  /// One tensor of the configuration's file for each weight of the model. Other tensors of the file are ignored.
  Tensors start_weights() const {
    const fs::path name(config_.start);
    const fs::path path = name.is_absolute() ? name : data_folder() / name;
    Tensors all;
    for (auto& [name_in_file, tensor] : read_safetensors(path).tensors) all.emplace(name_in_file, std::move(tensor));
    Tensors made;
    for (const auto& [weight, value] : trainer_.weights()) {
      const auto found = all.find(weight);
      if (found == all.end())
        throw ArgumentError(path.string() + ": expected a tensor '" + weight + "' of " + value.to_string() + ", found none");
      if (found->second.dtype() != value.dtype() || found->second.dims() != value.dims())
        throw ShapeError(path.string() + ": expected '" + weight + "' of " + value.to_string() + ", found " + found->second.to_string());
      made.emplace(weight, found->second);
    }
    return made;
  }

  /// The files of a result, in the order of train_job.h.
  static constexpr std::array result_files{"metrics.jsonl", "curves.svg",        "alphabet.npy", "classes.txt", "words.txt",
                                           "model.mr",      "model.safetensors", "model.onnx",   "live.mr",     "live.safetensors"};

  /// Locks the folder, and removes the temporaries that a job left when it was killed while it wrote its results.
  void take_folder() {
    lock_ = internal::FolderLock(folder_);
    const auto left = [](const std::string& name) {
      const auto at = name.rfind(".tmp");
      return at != name.npos && at + 4 < name.size() && name.find_first_not_of("0123456789", at + 4) == name.npos &&
             std::find(result_files.begin(), result_files.end(), name.substr(0, at)) != result_files.end();
    };
    std::error_code error;
    for (fs::directory_iterator each(folder_, error), end; !error && each != end; each.increment(error))
      if (left(each->path().filename().string())) remove_file(each->path());
  }

  static void remove_file(const fs::path& path) {
    std::error_code error;
    fs::remove(path, error);
    if (error) throw IoError(path.string() + ": cannot remove: " + error.message());
  }

  /// Removes the results of an earlier job that this one has none of in their place, such as a live.mr of other layers.
  void remove_stale(const std::vector<std::string>& written) const {
    for (const char* name : result_files) {
      const fs::path path = folder_ / name;
      std::error_code error;
      const bool there = fs::is_regular_file(fs::symlink_status(path, error));
      if (there && std::find(written.begin(), written.end(), name) == written.end() && !is_input(path)) remove_file(path);
    }
  }

  /// A job must not write over what it reads.
  void check_results() const {
    for (const std::string_view name : result_files) {
      const bool text = config_.format == TrainConfig::Format::text;
      if ((name == "alphabet.npy" && !text) || (name == "classes.txt" && (text || data_.train.classes.empty())) ||
          (name == "words.txt" && (text || data_.train.words.empty())) || !is_input(folder_ / name))
        continue;
      throw ArgumentError((folder_ / name).string() +
                          ": expected an output folder whose results are none of the job's inputs, found one that it reads");
    }
  }

  /// A new job clears the checkpoints of its folder, and each save removes old ones.
  void check_checkpoints() const {
    for (const std::string* input : {&config_.train, &config_.validation_file, &config_.test, &config_.start}) {
      if (input->empty()) continue;
      std::error_code error;
      const fs::path path = fs::weakly_canonical(data_folder() / *input, error), folder = fs::weakly_canonical(checkpoints_.path(), error);
      const fs::path inside = path.lexically_relative(folder);
      if (!error && !inside.empty() && *inside.begin() != ".." && *inside.begin() != ".")
        throw ArgumentError(path.string() +
                            ": expected inputs of the job outside the folder of its checkpoints, which it clears, found one there");
    }
  }

  /// Whether the job reads this file: a text to train on may be named words.txt.
  bool is_input(const fs::path& path) const {
    const std::array inputs{&config_.train, &config_.validation_file, &config_.test, &config_.start};
    return std::any_of(inputs.begin(), inputs.end(), [&](const std::string* input) {
      std::error_code error;
      return !input->empty() && fs::equivalent(path, data_folder() / *input, error);  // an absolute name stays what it is
    });
  }

  static std::string_view bytes_of(const Tensor& tensor) { return {static_cast<const char*>(tensor.raw()), tensor.bytes()}; }

  static constexpr const char* configuration = "configuration";
  static constexpr const char* validation_data = "validation data";
  static constexpr const char* test_data = "test data";

  static std::string hash_of(const Dataset& data) {
    Sha256 hash;
    hash.add(bytes_of(data.x.tensor()));
    hash.add(data.x.lod().to_string());
    hash.add(bytes_of(data.targets));
    hash.add(data.target_lod.to_string());
    // Numbers alone say nothing of the words and classes that they stand for.
    for (const std::vector<std::string>* names : {&data.classes, &data.words}) {
      hash.add(std::to_string(names->size()));
      for (const std::string& name : *names) hash.add("\n" + name);
    }
    return hash.digits();
  }

  /// The cut of gradients: other policies have the gradients of "keep".
  static std::string cuts_of(const MemoryPolicy& policy) {
    return policy.kind == MemoryPolicy::Kind::truncate ? to_string(policy) : "keep";
  }

  /// A line `[table] key = value` for each key that the weights depend on.
  static std::string lines_of(std::map<std::string, std::string> meaning, const std::string& cuts) {
    meaning["[training] memory"] = cuts;
    std::string lines;
    for (const auto& [key, value] : meaning) lines += key + " = " + value + "\n";
    return lines;
  }

  /// The first key in whose value two of these texts differ, with both; empty: there is none.
  static std::string difference(const std::string& found, const std::string& own) {
    const auto values = [](std::string_view lines) {
      std::map<std::string_view, std::string_view> made;
      while (!lines.empty()) {
        const std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(lines.size(), line.size() + 1));
        const std::size_t end = std::min(line.find(" = "), line.size());
        made[line.substr(0, end)] = line.substr(std::min(line.size(), end + 3));
      }
      return made;
    };
    const auto there = values(found), here = values(own);
    const auto value_in = [](const auto& all, std::string_view key) {
      const auto at = all.find(key);
      return at == all.end() ? std::string("nothing") : std::string(at->second);
    };
    std::set<std::string_view> keys;
    for (const auto* all : {&there, &here})
      for (const auto& [key, value] : *all) keys.insert(key);
    for (const std::string_view key : keys)
      if (const std::string one = value_in(there, key), other = value_in(here, key); one != other)
        return fmt::format("{}: {} there, {} here", key, one, other);
    return {};
  }

  /// The properties that a checkpoint must share with this job.
  std::map<std::string, std::string> identity() const {
    const std::string cuts = cuts_of(options_.memory.value_or(config_.memory));
    std::map<std::string, std::string> made{{"config", sha256(config_.text + (cuts == cuts_of(config_.memory) ? "" : cuts))},
                                            {configuration, lines_of(config_.meaning, cuts)},
                                            {"seed", std::to_string(seed_)},
                                            {"data", hash_of(data_.train)}};
    // The best weights so far were chosen by this validation.
    if (data_.validated) made[validation_data] = hash_of(data_.validation);
    if (data_.tested) made[test_data] = hash_of(data_.test);
    return made;
  }

  void resume() {
    if (writes()) take_folder();
    std::vector<std::string> skipped;
    const std::optional<Checkpoint> found = checkpoints_.load(&skipped);
    for (const std::string& line : skipped) note("a checkpoint is skipped: " + line);
    if (!found) throw TrainingError(checkpoints_.path().string() + ": expected a checkpoint to resume from, found none");
    const auto refuse = [&](const std::string& name) {
      throw TrainingError(
          fmt::format("{}: expected a checkpoint of this job, found one with another {}", checkpoints_.path().string(), name));
    };
    if (const auto there = found->fields.find(configuration); there == found->fields.end()) {  // a checkpoint of an earlier build
      if (found->field("config") != identity_.at("config")) refuse("config");
    } else if (const std::string key = difference(there->second, identity_.at(configuration)); !key.empty()) {
      refuse("config: " + key);
    }
    for (const char* name : {"seed", "data"})
      if (found->field(name) != identity_.at(name)) refuse(name);
    for (const char* name : {validation_data, test_data}) {
      const auto there = found->fields.find(name);  // a checkpoint of an earlier build has none
      const auto own = identity_.find(name);
      if (there != found->fields.end() && own != identity_.end() && there->second != own->second) refuse(name);
    }
    if (found->field("build") != options_.build)
      note(fmt::format("the checkpoint is of build '{}', this is '{}': bits may differ", found->field("build"), options_.build));
    if (found->field("world_size") != std::to_string(world_size()))
      note(fmt::format("the checkpoint is of {} ranks, these are {}: results agree to rounding", found->field("world_size"), world_size()));
    trainer_.restore(*found);
    epoch_ = found->integer("epoch");
    batch_ = found->integer("batch");
    best_epoch_ = found->integer("best_epoch");
    best_score_ = {inexact(found->field("best_loss")), classes_ ? std::optional(inexact(found->field("best_accuracy"))) : std::nullopt};
    running_ = {inexact(found->field("loss")), inexact(found->field("norm")), inexact(found->field("rate")),
                found->integer("right"),       found->integer("count"),       found->integer("batches")};
    history_ = metrics_of(found->tensors.at("history").at("epochs"));
    if (const auto best = found->tensors.find("best"); best != found->tensors.end()) best_ = best->second;
    const std::int64_t begun = epoch_ + (batch_ > 0 ? 1 : 0);
    if (epochs_ < begun)
      throw TrainingError(fmt::format("{}: expected at least {} epochs, which the checkpoint has begun, found {}",
                                      checkpoints_.path().string(), begun, epochs_));
    note(fmt::format("resumed at step {}, {}", trainer_.steps(),
                     epoch_ < epochs_ ? fmt::format("epoch {}", epoch_ + 1) : std::string("behind the last epoch")));
    // No rank writes before all have read; they have read the same.
    check_weights(checkpoints_.path().string());
    deal();
  }

  void save() {
    last_checkpoint_ = Clock::now();
    if (!writes()) return;
    Checkpoint made;
    trainer_.save(made);
    made.fields = identity_;
    made.fields["build"] = options_.build;
    made.fields["world_size"] = std::to_string(world_size());
    made.fields["epoch"] = std::to_string(epoch_);
    made.fields["batch"] = std::to_string(batch_);
    made.fields["best_epoch"] = std::to_string(best_epoch_);
    made.fields["best_loss"] = exact(best_score_.loss);
    made.fields["best_accuracy"] = exact(best_score_.accuracy.value_or(0));
    made.fields["loss"] = exact(running_.loss);
    made.fields["norm"] = exact(running_.norm);
    made.fields["rate"] = exact(running_.rate);
    made.fields["right"] = std::to_string(running_.right);
    made.fields["count"] = std::to_string(running_.count);
    made.fields["batches"] = std::to_string(running_.batches);
    made.tensors["history"]["epochs"] = to_tensor(history_);
    if (!best_.empty()) made.tensors["best"] = best_;
    checkpoints_.save(made);
    last_checkpoint_ = Clock::now();
  }

  void deal() { batches_ = dealt(epoch_); }
  std::vector<std::vector<std::int64_t>> dealt(std::int64_t epoch) const {
    return deal_batches(data_.train.x.lod(), permutation(data_.train.sequences(), seed_, static_cast<std::uint64_t>(epoch)), config_.batch);
  }

  Feeds feeds_of(const Dataset& batch) const {
    if (!batch.has_tokens()) return {{"x", batch.x}, {"target", batch.targets}};
    DecoderFeeds made = decoder_feeds(batch, shape_.outputs);
    return {{"x", batch.x}, {"before", std::move(made.before)}, {"target", std::move(made.target)}};
  }
  Tensor targets_of(const Dataset& batch) const { return batch.has_tokens() ? decoder_feeds(batch, shape_.outputs).target : batch.targets; }

  /// The feeds of a step of training: those of the batch, and the keys by which dropout draws.
  Feeds training_feeds(const Dataset& batch, const std::vector<std::int64_t>& chosen) const {
    Feeds feeds = feeds_of(batch);
    const auto drops = [](const LayerSpec& layer) { return layer.dropout > 0; };
    if (!std::any_of(config_.model.layers.begin(), config_.model.layers.end(), drops)) return feeds;
    feeds["sample"] = Tensor::from(chosen, {static_cast<std::int64_t>(chosen.size())});
    feeds["epoch"] = Tensor::scalar(epoch_);
    return feeds;
  }

  /// Terms of the loss of a batch (`Dataset::terms`).
  std::int64_t count_of(const std::vector<std::int64_t>& batch) const {
    const bool tokens = data_.train.has_tokens();
    if (!data_.train.per_row && !tokens) return std::ssize(batch);
    std::int64_t count = tokens ? std::ssize(batch) : 0;
    for (const std::int64_t sequence : batch) {
      const auto [begin, end] = (tokens ? data_.train.target_lod : data_.train.x.lod()).row_range(0, sequence, sequence + 1);
      count += end - begin;
    }
    return count;
  }

  void train_epoch() {
    while (std::cmp_less(batch_, batches_.size())) {
      train_batch();
      ++batch_;
      if (stopped_) stop();
      if (std::cmp_less(batch_, batches_.size())) {
        if (writes()) observer_.after_batch(progress());
        save_when_due();
      }
    }
    EpochMetrics metrics;
    metrics.epoch = epoch_ + 1;
    metrics.step = trainer_.steps();
    metrics.train = running_.score(classes_);
    metrics.learning_rate = running_.rate;
    metrics.gradient_norm = running_.norm / static_cast<double>(std::max<std::int64_t>(1, running_.batches));
    if (data_.validated) metrics.validation = score(data_.validation, trainer_.weights());
    keep_best(metrics);
    history_.push_back(metrics);
    if (writes()) observer_.after_epoch(metrics, progress());
    ++epoch_;
    batch_ = 0;
    running_ = {};
    write_metrics(nullptr);
    if (epoch_ < epochs_) {
      deal();
      save_when_due();
    }
  }

  void train_batch() {
    const std::vector<std::int64_t>& whole = batches_[static_cast<std::size_t>(batch_)];
    const std::vector<std::int64_t> mine = deal_to_ranks(data_.train.x.lod(), whole, world_size())[static_cast<std::size_t>(rank())];
    const std::vector<std::int64_t>& chosen = world_size() == 1 ? whole : mine;
    const Dataset part = data_.train.select(chosen);
    const std::int64_t own = part.terms();
    const std::int64_t count = world_size() == 1 ? own : count_of(whole);
    sequences_ += std::ssize(whole);
    try {
      std::int64_t right = 0;
      if (count > 0) right = world_size() == 1 ? step_alone(part, chosen) : step_together(part, chosen, own, count);
      agree_to_stop();
      running_.right += right;
      running_.count += count;
    } catch (Error& error) {
      error.add_context(fmt::format(" (epoch {}, batch {} of {})", epoch_ + 1, batch_ + 1, batches_.size()));
      throw;
    }
  }

  std::int64_t step_alone(const Dataset& batch, const std::vector<std::int64_t>& chosen) {
    const Trainer::Step step = trainer_.step(training_feeds(batch, chosen));
    add_step(step.loss, batch.terms(), step.gradient_norm, step.learning_rate);
    return classes_ ? count_right(step.outputs["scores"].tensor(), targets_of(batch)) : 0;
  }

  /// `own` of the `count` terms of the batch's loss are this rank's.
  std::int64_t step_together(const Dataset& part, const std::vector<std::int64_t>& chosen, std::int64_t own, std::int64_t count) {
    Trainer::Gradients found = trainer_.compute(own > 0 ? training_feeds(part, chosen) : Feeds{}, *options_.ranks,
                                                static_cast<double>(own) / static_cast<double>(count));
    const double rate = trainer_.learning_rate();
    add_step(found.loss, count, trainer_.apply(std::move(found.by_name)), rate);
    const std::int64_t right = classes_ && own > 0 ? count_right(found.outputs["scores"].tensor(), targets_of(part)) : 0;
    return static_cast<std::int64_t>(summed({static_cast<double>(right)})[0]);
  }

  void add_step(double loss, std::int64_t count, double norm, double rate) {
    running_.loss += loss * static_cast<double>(count);
    running_.norm += norm;
    running_.rate = rate;
    ++running_.batches;
  }

  /// A signal may reach the ranks at different steps: they stop behind the same one.
  void agree_to_stop() {
    const bool asked = options_.stop != nullptr && options_.stop->load();
    stopped_ = summed({asked ? 1.0 : 0.0})[0] > 0;
  }

  void save_when_due() {
    const bool by_step = config_.checkpoint_steps > 0 && trainer_.steps() % config_.checkpoint_steps == 0;
    const bool by_time = config_.checkpoint_seconds > 0 && seconds_since(last_checkpoint_) >= config_.checkpoint_seconds;
    if (by_step || by_time) save();
  }

  [[noreturn]] void stop() {
    save();
    static_cast<void>(summed({0.0}));  // no rank ends before rank 0 has saved: mpirun kills the others of a rank that has ended
    throw StoppedError(fmt::format("stopped in epoch {} at step {}: --resume goes on from there", epoch_ + 1, trainer_.steps()));
  }

  static std::vector<std::int64_t> in_order(const Dataset& data) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(data.sequences()));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    return order;
  }

  Score score(const Dataset& data, const Tensors& weights) {
    const BatchSize size{0, 8192};
    Running sum;
    for (const std::vector<std::int64_t>& chosen : deal_batches(data.x.lod(), in_order(data), size)) {
      const Dataset batch = data.select(chosen);
      const std::int64_t count = batch.terms();
      if (count == 0) continue;
      const RunResult result = scorer_.run(weights, feeds_of(batch));
      sum.loss += result["loss"].tensor().item() * static_cast<double>(count);
      if (classes_) sum.right += count_right(result["scores"].tensor(), targets_of(batch));
      sum.count += count;
    }
    return sum.score(classes_);
  }

  void keep_best(const EpochMetrics& metrics) {
    if (!metrics.validation) return;
    const Score& found = *metrics.validation;
    if (!std::isfinite(found.loss) && !overflowed_) {
      overflowed_ = true;
      note(fmt::format("the validation loss of epoch {} is not finite: {}", metrics.epoch, found.loss));
    }
    if (!best_.empty() && !is_better(found)) return;
    best_ = trainer_.weights();
    best_score_ = found;
    best_epoch_ = metrics.epoch;
  }

  /// A finite loss is better than one that is not, then the greater accuracy, then the smaller loss.
  bool is_better(const Score& found) const {
    const bool finite = std::isfinite(found.loss);
    if (finite != std::isfinite(best_score_.loss)) return finite;
    if (classes_ && *found.accuracy != *best_score_.accuracy) return *found.accuracy > *best_score_.accuracy;
    return found.loss < best_score_.loss;
  }

  TrainObserver::Progress progress() const {
    TrainObserver::Progress made;
    made.epoch = epoch_ + 1;
    made.epochs = epochs_;
    made.batch = batch_;
    made.batches = static_cast<std::int64_t>(batches_.size());
    made.train = running_.score(classes_);
    const double seconds = std::max(1e-9, seconds_since(started_));
    made.sequences_per_second = static_cast<double>(sequences_) / seconds;
    const double part = static_cast<double>(batch_) / static_cast<double>(std::max<std::size_t>(1, batches_.size()));
    const double left = (static_cast<double>(epochs_ - epoch_) - part) * static_cast<double>(data_.train.sequences());
    made.seconds_left = sequences_ > 0 ? left / made.sequences_per_second : 0;
    return made;
  }

  void write_metrics(const FinalMetrics* final) const {
    if (!writes()) return;
    std::string text;
    for (const EpochMetrics& epoch : history_) text += json_line(epoch) + "\n";
    if (final != nullptr) text += json_line(*final) + "\n";
    write_file(folder_ / "metrics.jsonl", text);
  }

  TrainResult finish() {
    save();  // first: --resume repeats the rest
    TrainResult result;
    result.folder = folder_;
    result.epochs = history_;
    const Tensors& kept = best_.empty() ? trainer_.weights() : best_;
    FinalMetrics& final = result.final;
    final.epoch = epoch_;
    final.step = trainer_.steps();
    final.best_epoch = best_.empty() ? epoch_ : best_epoch_;
    if (!best_.empty()) final.validation = best_score_;
    if (data_.tested) final.test = score(data_.test, kept);
    if (final.test && !std::isfinite(final.test->loss)) note(fmt::format("the test loss is not finite: {}", final.test->loss));
    if (data_.tested && config_.model.decoder) final.test_tokens = token_errors(kept);
    if (!writes()) return result;
    export_models(kept, result.files);
    write_file(folder_ / "curves.svg", curves_as_svg(fs::path(config_.name).stem().string(), history_));
    write_metrics(&final);
    result.files.insert(result.files.end(), {"curves.svg", "metrics.jsonl"});
    remove_stale(result.files);
    return result;
  }

  /// The share of tokens that the search of `width` gets wrong, over those of the test.
  double token_error(const Tensors& weights, std::int64_t width) const {
    ModelSpec spec = config_.model;
    spec.decoder->beam = width;
    FedProgram search(with_fed_weights(typed(build_model(spec, shape_, ModelUse::infer))), make_cpu_device(options_.threads));
    CpuStream stream(std::make_shared<ThreadTeam>(1));
    double wrong = 0;
    for (const std::vector<std::int64_t>& chosen : deal_batches(data_.test.x.lod(), in_order(data_.test), {0, 4096})) {
      const Dataset batch = data_.test.select(chosen);
      const LoDTensor best = best_hypotheses(search.run(weights, {{"x", batch.x}})["tokens"], shape_.outputs);
      const Tensor apart = edit_distance(best.tensor(), best.lod(), batch.targets, batch.target_lod, false, {}, stream);
      for (const float distance : apart.to_vector<float>()) wrong += static_cast<double>(distance);
    }
    return wrong == 0 ? 0 : wrong / static_cast<double>(data_.test.targets.dim(0));  // infinite where there is none to get right
  }
  TokenErrors token_errors(const Tensors& weights) const {
    return {token_error(weights, 1), token_error(weights, config_.model.decoder->beam)};
  }

  Program filled(ModelUse use, const Tensors& weights) {
    Program program = model(use);
    std::vector<std::string> outputs;
    for (const Program::Port& port : program.outputs()) outputs.push_back(port.name);
    return extract(program, outputs, weights);
  }

  /// u8 [K]: the byte of each class of a text.
  Tensor alphabet() const {
    std::vector<std::uint8_t> bytes;
    for (const std::string& name : data_.train.classes) bytes.push_back(static_cast<std::uint8_t>(name.at(0)));
    return Tensor::from(bytes, {std::ssize(bytes)});
  }

  /// A line for each name; no file where there are none.
  void write_names(const std::string& file, const std::vector<std::string>& names, std::vector<std::string>& files) const {
    if (names.empty()) return;
    std::string text;
    for (const std::string& name : names) text += name + "\n";
    write_file(folder_ / file, text);
    files.push_back(file);
  }

  void export_models(const Tensors& weights, std::vector<std::string>& files) {
    if (config_.format == TrainConfig::Format::text) {
      write_npy(folder_ / "alphabet.npy", alphabet());
      files.emplace_back("alphabet.npy");
    } else {
      write_names("classes.txt", data_.train.classes, files);
      write_names("words.txt", data_.train.words, files);
    }
    const Program whole = filled(ModelUse::infer, weights);
    save_program(whole, folder_ / "model.mr");
    files.insert(files.end(), {"model.mr", "model.safetensors"});
    try {
      write_onnx(folder_ / "model.onnx", whole);
      files.emplace_back("model.onnx");
    } catch (const UnsupportedError& error) {
      note(std::string("no model.onnx: ") + error.what());
    }
    std::optional<Program> live;
    try {
      live = filled(ModelUse::live, weights);
      static_cast<void>(make_recurrence(*live));
    } catch (const Error& error) {  // an activation may need rows that are still to come, or the rows of other sequences
      live.reset();
      note(std::string("no live.mr: ") + error.what());
    }
    if (!live) return;
    save_program(*live, folder_ / "live.mr");
    files.insert(files.end(), {"live.mr", "live.safetensors"});
  }

  const TrainConfig& config_;
  const TrainJobOptions& options_;
  TrainObserver& observer_;
  std::uint64_t seed_;
  std::int64_t epochs_;
  fs::path folder_;
  CheckpointFolder checkpoints_;
  JobData data_;
  DataShape shape_;
  bool classes_;
  bool checked_ = false;
  std::map<std::string, std::string> identity_;
  internal::FolderLock lock_;
  std::vector<std::vector<std::int64_t>> batches_;
  Trainer trainer_;
  FedProgram scorer_;

  std::int64_t epoch_ = 0;  // that is being trained, from 0 on
  std::int64_t batch_ = 0;  // the next one
  Running running_;
  std::vector<EpochMetrics> history_;
  Tensors best_;
  Score best_score_;
  std::int64_t best_epoch_ = 0;
  bool overflowed_ = false;  // a validation, of which a note was written
  bool stopped_ = false;
  std::int64_t sequences_ = 0;  // trained since the start of this process
  Clock::time_point started_, last_checkpoint_;
};

}  // namespace

TrainResult run_train_job(const TrainConfig& config, const TrainJobOptions& options, TrainObserver& observer) {
  if (options.epochs && *options.epochs < 1)
    throw ArgumentError(fmt::format("training: expected at least 1 epoch, found {}", *options.epochs));
  if (options.memory && options.memory->kind != MemoryPolicy::Kind::keep && !config.model.is_recurrent())
    throw ArgumentError(config.name + ": memory: expected keep for layers none of which is recurrent, found " + to_string(*options.memory));
  if (options.memory && config.model.decoder && options.memory->kind == MemoryPolicy::Kind::truncate &&
      options.memory->k1 != options.memory->k2)
    throw ArgumentError(config.name + ": memory: expected truncate of one number beside [decoder], found " + to_string(*options.memory));
  if (options.ranks == nullptr || options.ranks->world_size() == 1) return TrainJob(config, options, observer).run();
  try {
    return TrainJob(config, options, observer).run();
  } catch (const StoppedError&) {  // all ranks have it
    throw;
  } catch (const std::exception& error) {
    options.ranks->abort(error.what());  // the others wait for this rank
    throw;
  }
}

}  // namespace millrace::training
