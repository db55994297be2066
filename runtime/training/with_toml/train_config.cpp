// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/train_config.h>

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/autodiff/memory_policy_text.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/with_toml/toml_table.h>

namespace millrace::training {
namespace {

using Table = millrace::internal::TomlTable;

constexpr std::int64_t most_steps = 1'000'000'000;
constexpr std::int64_t most_units = 1 << 16;
constexpr double most_number = 1e9;

/// Names of enumerations whose values are 0, 1, …
using Names = std::initializer_list<std::string_view>;
const Names target_names{"sequence", "row", "tokens"};
const Names layer_kinds{"lstm", "gru", "rnn", "linear", "embedding"};
const Names directions{"forward", "reverse", "bidirectional"};
const Names losses{"cross_entropy", "mse"};
const Names poolings{"last", "average", "max"};
/// 0: none is chosen; then those of Initialiser::Kind.
const Names initialisers{"default",       "constant",   "uniform",   "normal",    "xavier_uniform",
                         "xavier_normal", "he_uniform", "he_normal", "orthogonal"};
const Names optimizers{"sgd", "adam", "adamw"};
const Names schedules{"constant", "step", "exponential", "linear", "cosine"};

void read_integer(const Table& table, std::string_view key, std::int64_t least, std::int64_t most, std::int64_t& to) {
  if (table.has(key)) to = table.integer(key, least, most);
}
void read_number(const Table& table, std::string_view key, double least, double most, double& to) {
  if (table.has(key)) to = table.number(key, least, most);
}
void read_flag(const Table& table, std::string_view key, bool& to) {
  if (table.has(key)) to = table.boolean(key);
}
void read_text(const Table& table, std::string_view key, std::string& to) {
  if (table.has(key)) to = table.text(key);
}
/// An enumeration whose values 0, 1, … have these names.
template <class E>
void read_choice(const Table& table, std::string_view key, Names names, E& to) {
  if (table.has(key)) to = static_cast<E>(table.one_of(key, names));
}

/// A key that does nothing beside the others, unless it says its default: a job that was meant otherwise would train unnoticed.
void refuse_idle(const Table& table, const char* key, bool is_default, const std::string& needs) {
  if (table.has(key) && !is_default) table.fail(table.required(key), std::string(key) + ": expected " + needs + " with it, found none");
}

/// A text, or an array of texts.
void read_texts(const Table& table, std::string_view key, std::vector<std::string>& to) {
  if (!table.has(key)) return;
  const toml::node& node = table.required(key);
  const std::string expected = std::string(key) + ": expected a text or an array of texts, found ";
  if (node.is_string()) {
    to = {table.text(key)};
    return;
  }
  if (!node.is_array()) table.fail(node, expected + Table::kind(node));
  to.clear();
  for (const toml::node& each : *node.as_array()) {
    if (!each.is_string()) table.fail(each, expected + Table::kind(each) + " in an array");
    to.push_back(table.text_of(key, each));
  }
}

constexpr std::array csv_keys{"sequence_column", "target_columns", "feature_columns", "separator", "series"};

/// Whether the key of columns has the value that it has without being said.
bool says_default(const CsvForm& form, std::string_view key) {
  const CsvForm none;
  if (key == "sequence_column") return form.sequence == none.sequence;
  if (key == "target_columns") return form.targets == none.targets;
  if (key == "feature_columns") return form.features == none.features;
  return key == "separator" ? form.separator == none.separator : form.series == none.series;
}

void read_csv_form(const Table& table, TrainConfig& config) {
  CsvForm& form = config.csv;
  read_text(table, "sequence_column", form.sequence);
  read_texts(table, "target_columns", form.targets);
  read_texts(table, "feature_columns", form.features);
  read_flag(table, "series", form.series);
  if (form.series && table.has("sequence_column"))
    table.fail(table.required("series"), "series: expected no sequence_column with it, found one");
  try {
    check_columns(form);
  } catch (const ArgumentError& error) {
    const std::string_view what = error.what();
    table.fail(table.required(what.substr(0, what.find(':'))), error.what());
  }
  if (table.has("separator")) {
    const std::string separator = table.text("separator");
    if (separator.size() != 1 || separator == "\"" || separator == "\n")
      table.fail(table.required("separator"), "separator: expected one character, found '" + separator + "'");
    form.separator = separator[0];
  }
  for (const char* key : csv_keys) config.has_csv = config.has_csv || !says_default(form, key);
}

/// Compares the keys with the endings of the files.
void check_files(const Table& table, const TrainConfig& config) {
  bool separated = false, tables = false;
  for (const std::string& name : {config.train, config.test, config.validation_file}) {
    if (name.empty()) continue;
    const std::string ending = config.format == TrainConfig::Format::text ? "" : ending_of(name);
    const bool csv = ending == ".csv" || ending == ".tsv";
    separated = separated || ending == ".csv";
    tables = tables || csv;
    const std::string found = ", found " + millrace::internal::printable(name);
    for (const char* key : csv_keys)
      if (!csv && table.has(key) && !says_default(config.csv, key))
        table.fail(table.required(key), std::string(key) + ": expected a .csv or .tsv file for the keys of columns" + found);
    if (ending == ".ts" && config.targets != Targets::sequence)
      table.fail(table.required("targets"), "targets: expected \"sequence\" for a .ts file" + found);
    if (csv && config.targets == Targets::tokens)
      table.fail(table.required("targets"), "targets: expected \"sequence\" or \"row\" for a table" + found);
  }
  refuse_idle(table, "separator", separated || !tables || config.csv.separator == '\t', "a .csv file");
  refuse_idle(table, "length", config.length == TrainConfig().length || config.csv.series || config.format == TrainConfig::Format::text,
              "format = \"text\" or series = true");
}

void read_data(const Table& table, TrainConfig& config) {
  table.only({"train", "test", "validation", "format", "targets", "standardize", "length", "sequence_column", "target_columns",
              "feature_columns", "separator", "series"});
  read_csv_form(table, config);
  config.train = table.text("train");
  read_text(table, "test", config.test);
  if (table.has("validation")) {
    if (table.required("validation").is_string())
      config.validation_file = table.text("validation");
    else
      config.validation = table.number("validation", 0, 0.9);
  }
  if (table.has("format") && table.one_of("format", {"auto", "text"}) == 1) config.format = TrainConfig::Format::text;
  read_choice(table, "targets", target_names, config.targets);
  read_flag(table, "standardize", config.standardize);
  read_integer(table, "length", 1, most_units, config.length);
  check_files(table, config);
  if (config.format != TrainConfig::Format::text) return;
  if (table.has("targets") && config.targets != Targets::row)
    table.fail(table.required("targets"), "targets: expected \"row\" of a text, whose targets are the bytes that follow");
  config.targets = Targets::row;
}

DecoderSpec decoder_of(const Table& table) {
  table.only({"units", "embedding", "beam", "max_length", "length_penalty"});
  DecoderSpec decoder;
  decoder.units = table.integer("units", 1, most_units);
  decoder.embedding = table.integer("embedding", 1, most_units);
  read_integer(table, "beam", 1, most_units, decoder.beam);
  read_integer(table, "max_length", 1, most_units, decoder.max_length);
  read_number(table, "length_penalty", 0, most_number, decoder.length_penalty);
  if (decoder.beam == 1) refuse_idle(table, "length_penalty", decoder.length_penalty == 0, "a beam above 1");
  decoder.place = table.place();
  return decoder;
}

LayerSpec layer_of(const Table& table) {
  table.only({"kind", "units", "direction", "activation", "dropout"});
  LayerSpec layer;
  table.required("kind");
  read_choice(table, "kind", layer_kinds, layer.kind);
  layer.units = table.integer("units", 1, most_units);
  read_choice(table, "direction", directions, layer.direction);
  read_text(table, "activation", layer.activation);
  read_number(table, "dropout", 0, 0.99, layer.dropout);
  layer.place = table.place();
  return layer;
}

void read_init(const Table& table, std::string_view key, std::optional<Initialiser>& to) {
  if (!table.has(key)) return;
  const std::size_t which = table.one_of(key, initialisers);
  if (which == 0) return;
  to = Initialiser{static_cast<Initialiser::Kind>(which - 1), 1};
  read_number(table, "init_scale", 0, most_number, to->scale);
}

/// The layers have been read.
void read_model(const Table& table, TrainConfig& config) {
  ModelSpec& model = config.model;
  table.only({"loss", "pooling", "init", "recurrent_init", "init_scale", "forget_bias", "start"});
  read_text(table, "start", config.start);
  if (!config.start.empty() && !config.start.ends_with(".safetensors"))
    table.fail(
        table.required("start"),
        fmt::format("start: expected the name of a .safetensors file, such as the model.safetensors of a job, found {}", config.start));
  read_choice(table, "loss", losses, model.loss);
  read_choice(table, "pooling", poolings, model.pooling);
  read_init(table, "init", model.init.input);
  read_init(table, "recurrent_init", model.init.recurrent);
  read_number(table, "forget_bias", -most_number, most_number, model.init.forget_bias);
  for (const auto& [key, given] : {std::pair("init", model.init.input.has_value()), {"recurrent_init", model.init.recurrent.has_value()}})
    if (given && !config.start.empty())
      table.fail(table.required(key), std::string(key) + ": expected no start with it, which gives all weights, found one");
  const auto is_lstm = [](const LayerSpec& layer) { return layer.kind == LayerSpec::Kind::lstm; };
  if (config.targets == Targets::row) refuse_idle(table, "pooling", model.pooling == ModelSpec::Pooling::last, "targets for sequences");
  if (!config.model.is_recurrent()) refuse_idle(table, "recurrent_init", !model.init.recurrent, "a recurrent layer");
  if (std::none_of(model.layers.begin(), model.layers.end(), is_lstm))
    refuse_idle(table, "forget_bias", model.init.forget_bias == LayerInit::Choice().forget_bias, "an lstm");
  if (model.init.input || model.init.recurrent) return;
  refuse_idle(table, "init_scale", table.has("init_scale") && table.number("init_scale", 0, most_number) == 1,
              "an init or a recurrent_init");
  refuse_idle(table, "forget_bias", model.init.forget_bias == LayerInit::Choice().forget_bias, "an init or a recurrent_init");
}

void read_optimizer(const Table& table, OptimizerOptions& optimizer) {
  read_choice(table, "optimizer", optimizers, optimizer.kind);
  read_number(table, "momentum", 0, 1, optimizer.momentum);
  read_flag(table, "nesterov", optimizer.nesterov);
  if (optimizer.nesterov && optimizer.momentum == 0)
    table.fail(table.required("nesterov"), "nesterov: expected a momentum above 0 with it");
  read_number(table, "beta1", 0, 0.999999, optimizer.beta1);
  read_number(table, "beta2", 0, 0.99999999, optimizer.beta2);
  read_number(table, "epsilon", 0, 1, optimizer.epsilon);
  read_number(table, "weight_decay", 0, most_number, optimizer.weight_decay);
  const OptimizerOptions standard;
  if (optimizer.kind == OptimizerOptions::Kind::sgd) {
    refuse_idle(table, "beta1", optimizer.beta1 == standard.beta1, "the optimizer adam or adamw");
    refuse_idle(table, "beta2", optimizer.beta2 == standard.beta2, "the optimizer adam or adamw");
    refuse_idle(table, "epsilon", optimizer.epsilon == standard.epsilon, "the optimizer adam or adamw");
  } else {
    if (static_cast<float>(optimizer.epsilon) == 0)
      table.fail(table.required("epsilon"), fmt::format("epsilon: expected a number above 0 that f32 holds, found {}", optimizer.epsilon));
    refuse_idle(table, "momentum", optimizer.momentum == standard.momentum, "the optimizer sgd");
    refuse_idle(table, "nesterov", optimizer.nesterov == standard.nesterov, "the optimizer sgd");
  }
}

void read_schedule(const Table& table, Schedule& schedule) {
  schedule.decay_steps = 0;
  schedule.every = 1000;
  read_choice(table, "schedule", schedules, schedule.kind);
  read_number(table, "learning_rate", 0, most_number, schedule.base);
  read_integer(table, "warmup_steps", 0, most_steps, schedule.warmup);
  read_integer(table, "decay_steps", 0, most_steps, schedule.decay_steps);
  read_integer(table, "every_steps", 1, most_steps, schedule.every);
  read_number(table, "factor", 1e-9, most_number, schedule.factor);
  read_number(table, "least_rate", 0, most_number, schedule.least);
  using Kind = Schedule::Kind;
  const Schedule standard;
  if (schedule.kind != Kind::step && schedule.kind != Kind::exponential) {
    refuse_idle(table, "every_steps", schedule.every == 1000, "the schedule step or exponential");
    refuse_idle(table, "factor", schedule.factor == standard.factor, "the schedule step or exponential");
  }
  if (schedule.kind != Kind::linear && schedule.kind != Kind::cosine) {
    refuse_idle(table, "decay_steps", schedule.decay_steps == 0, "the schedule linear or cosine");
    refuse_idle(table, "least_rate", schedule.least == standard.least, "the schedule linear or cosine");
  } else if (schedule.least > schedule.base) {
    table.fail(table.required("least_rate"),
               fmt::format("least_rate: expected a number up to the learning_rate, {}, found {}", schedule.base, schedule.least));
  }
}

void read_training(const Table& table, TrainConfig& config) {
  table.only({"batch_sequences", "batch_rows", "optimizer",    "learning_rate", "momentum",     "nesterov",    "beta1",
              "beta2",           "epsilon",    "weight_decay", "schedule",      "warmup_steps", "decay_steps", "every_steps",
              "factor",          "least_rate", "clip_norm",    "clip_value",    "memory",       "weights"});
  read_integer(table, "batch_sequences", 0, most_steps, config.batch.sequences);
  read_integer(table, "batch_rows", 0, most_steps, config.batch.rows);
  if (config.batch.sequences == 0 && config.batch.rows == 0)
    table.fail(table.required("batch_sequences"), "batch_sequences: expected a number above 0 here or for batch_rows");
  read_optimizer(table, config.optimizer);
  read_schedule(table, config.schedule);
  read_number(table, "clip_norm", 0, most_number, config.clipping.norm);
  read_number(table, "clip_value", 0, most_number, config.clipping.value);
  config.narrow = table.has("weights") && table.one_of("weights", {"f32", "bf16"}) == 1;
  if (!table.has("memory")) return;
  try {
    config.memory = parse_memory_policy(table.text("memory"));
  } catch (const ArgumentError& error) {
    table.fail(table.required("memory"), error.what());
  }
  if (config.model.decoder && config.memory.kind == MemoryPolicy::Kind::truncate && config.memory.k1 != config.memory.k2)
    table.fail(table.required("memory"), "memory: expected truncate of one number beside [decoder], found " + to_string(config.memory));
  if (!config.model.is_recurrent()) refuse_idle(table, "memory", config.memory.kind == MemoryPolicy::Kind::keep, "a recurrent layer");
}

template <class E>
std::string_view name_in(Names names, E value) {
  return names.begin()[static_cast<std::size_t>(value)];
}

std::map<std::string, std::string> meaning_of(const TrainConfig& config) {
  std::map<std::string, std::string> made;
  std::string table;
  const auto say = [&](const std::string& key, const auto& value) { made[table + " " + key] = fmt::format("{}", value); };
  const auto say_text = [&](const std::string& key, const std::string& text) { say(key, fmt::format("{:?}", text)); };
  const auto say_init = [&](const std::string& key, const std::optional<Initialiser>& init) {
    say(key, name_in(initialisers, init ? static_cast<std::size_t>(init->kind) + 1 : 0));
    if (init) say("init_scale", init->scale);
  };
  table = "[data]";
  say_text("train", config.train);
  say_text("test", config.test);
  if (config.validation_file.empty())
    say("validation", config.validation);
  else
    say_text("validation", config.validation_file);
  say("format", config.format == TrainConfig::Format::text ? "text" : "auto");
  say("targets", name_in(target_names, config.targets));
  say("standardize", config.standardize);
  say("length", config.length);
  say_text("sequence_column", config.csv.sequence);
  say("target_columns", config.csv.targets);
  say("feature_columns", config.csv.features);
  say_text("separator", std::string(1, config.csv.separator));
  say("series", config.csv.series);
  const ModelSpec& model = config.model;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    table = fmt::format("[[layer]] {}", i + 1);
    say("kind", name_in(layer_kinds, layer.kind));
    say("units", layer.units);
    say("direction", name_in(directions, layer.direction));
    say_text("activation", layer.activation);
    say("dropout", layer.dropout);
  }
  table = "[model]";
  say("loss", name_in(losses, model.loss));
  say("pooling", name_in(poolings, model.pooling));
  say_init("init", model.init.input);
  say_init("recurrent_init", model.init.recurrent);
  say("forget_bias", model.init.forget_bias);
  say_text("start", config.start);
  if (model.decoder) {
    table = "[decoder]";
    say("units", model.decoder->units);
    say("embedding", model.decoder->embedding);
    say("beam", model.decoder->beam);
    say("max_length", model.decoder->max_length);
    say("length_penalty", model.decoder->length_penalty);
  }
  table = "[training]";
  say("batch_sequences", config.batch.sequences);
  say("batch_rows", config.batch.rows);
  say("optimizer", name_in(optimizers, config.optimizer.kind));
  say("momentum", config.optimizer.momentum);
  say("nesterov", config.optimizer.nesterov);
  say("beta1", config.optimizer.beta1);
  say("beta2", config.optimizer.beta2);
  say("epsilon", config.optimizer.epsilon);
  say("weight_decay", config.optimizer.weight_decay);
  say("schedule", name_in(schedules, config.schedule.kind));
  say("learning_rate", config.schedule.base);
  say("warmup_steps", config.schedule.warmup);
  say("decay_steps", config.schedule.decay_steps);
  say("every_steps", config.schedule.every);
  say("factor", config.schedule.factor);
  say("least_rate", config.schedule.least);
  say("clip_norm", config.clipping.norm);
  say("clip_value", config.clipping.value);
  say("weights", config.narrow ? "bf16" : "f32");
  return made;
}

TrainConfig config_of(const Table& root, std::string_view text, const std::string& name) {
  root.only({"seed", "epochs", "data", "layer", "model", "decoder", "training", "checkpoint", "output"});
  TrainConfig config;
  config.name = name;
  config.text = text;
  if (root.has("seed")) config.seed = static_cast<std::uint64_t>(root.integer("seed", 0, std::numeric_limits<int>::max()));
  config.epochs = root.integer("epochs", 1, most_steps);
  read_data(Table(root.table_at("data"), name, "[data]"), config);
  root.each_table("layer", [&](const Table& layer) { config.model.layers.push_back(layer_of(layer)); });
  const bool text_of_bytes = config.format == TrainConfig::Format::text;
  if (config.standardize &&
      (text_of_bytes || (!config.model.layers.empty() && config.model.layers[0].kind == LayerSpec::Kind::embedding))) {
    const Table data(root.table_at("data"), name, "[data]");
    data.fail(data.required("standardize"),
              std::string("standardize: expected rows of features, found ") + (text_of_bytes ? "a text" : "words for an embedding"));
  }
  if (root.has("model")) read_model(Table(root.table_at("model"), name, "[model]"), config);
  if (root.has("decoder")) config.model.decoder = decoder_of(Table(root.table_at("decoder"), name, "[decoder]"));
  if (config.model.decoder && config.targets != Targets::tokens)
    root.fail(root.required("decoder"), "[decoder]: expected targets = \"tokens\" in [data] with it");
  if (config.model.decoder && root.has("model")) {
    const Table model(root.table_at("model"), name, "[model]");
    if (model.has("pooling") && config.model.pooling != ModelSpec().pooling)
      model.fail(model.required("pooling"), "pooling: expected none beside [decoder], which sees all rows");
  }
  if (config.targets == Targets::tokens && !config.model.decoder) {
    const Table data(root.table_at("data"), name, "[data]");
    data.fail(data.required("targets"), "targets: expected a table [decoder] with \"tokens\", found none");
  }
  config.schedule.decay_steps = 0;
  if (root.has("training")) read_training(Table(root.table_at("training"), name, "[training]"), config);
  if (root.has("checkpoint")) {
    const Table table(root.table_at("checkpoint"), name, "[checkpoint]");
    table.only({"every_steps", "every_seconds"});
    read_integer(table, "every_steps", 0, most_steps, config.checkpoint_steps);
    read_number(table, "every_seconds", 0, most_number, config.checkpoint_seconds);
  }
  if (root.has("output")) {
    const Table table(root.table_at("output"), name, "[output]");
    table.only({"folder"});
    read_text(table, "folder", config.folder);
  }
  config.meaning = meaning_of(config);
  return config;
}

}  // namespace

TrainConfig parse_train_config(std::string_view text, const std::string& name) {
  return millrace::internal::read_toml(text, name, [&](const Table& root) { return config_of(root, text, name); });
}

}  // namespace millrace::training
