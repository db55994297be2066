// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/training/train_config.h>

#include <millrace/runtime/autodiff/memory_policy_text.h>

using namespace millrace;
using namespace millrace::training;

namespace {

const std::string least = "epochs = 3\n[data]\ntrain = \"a.ts\"\n[[layer]]\nkind = \"lstm\"\nunits = 5\n";

void refused(const std::string& text, const std::string& why) {
  INFO(text);
  CHECK_THROWS_WITH_AS(parse_train_config(text, "c.toml"), doctest::Contains(why.c_str()), ParseError);
}

}  // namespace

TEST_CASE("the least that a job says leaves the rest to the defaults") {
  const TrainConfig config = parse_train_config(least, "c.toml");
  CHECK(config.epochs == 3);
  CHECK(config.seed == 1);
  CHECK(config.train == "a.ts");
  CHECK(config.test.empty());
  REQUIRE(config.model.layers.size() == 1);
  CHECK(config.model.layers[0].units == 5);
  CHECK(config.batch.sequences == 32);
  CHECK(config.optimizer.kind == OptimizerOptions::Kind::adam);
  CHECK(config.schedule.base == 0.001);
  CHECK(config.checkpoint_seconds == 30);
  CHECK(parse_train_config(least + "[model]\nstart = \"s.safetensors\"\ninit = \"default\"\n", "c.toml").start == "s.safetensors");
}

TEST_CASE("every key arrives where it belongs") {
  const TrainConfig config = parse_train_config(R"(seed = 9
epochs = 2
[data]
train = "t.csv"
test = "e.tsv"
validation = 0.25
targets = "sequence"
standardize = true
sequence_column = "id"
target_columns = ["y", "z"]
feature_columns = "a"
separator = ";"
[[layer]]
kind = "gru"
units = 7
direction = "bidirectional"
dropout = 0.5
[[layer]]
kind = "linear"
units = 3
activation = "relu"
[model]
loss = "mse"
pooling = "max"
init = "he_normal"
recurrent_init = "orthogonal"
init_scale = 1.5
[training]
batch_sequences = 0
batch_rows = 512
optimizer = "sgd"
momentum = 0.9
nesterov = true
learning_rate = 0.5
weight_decay = 0.01
schedule = "cosine"
warmup_steps = 4
decay_steps = 50
least_rate = 0.1
clip_norm = 2.0
clip_value = 1.0
memory = "recompute"
weights = "bf16"
[checkpoint]
every_steps = 10
every_seconds = 0.0
[output]
folder = "f"
)",
                                                "c.toml");
  CHECK(config.seed == 9);
  CHECK(config.validation == 0.25);
  CHECK(config.targets == Targets::sequence);
  CHECK(config.standardize);
  CHECK(config.has_csv);
  CHECK(config.csv.sequence == "id");
  CHECK(config.csv.targets == std::vector<std::string>{"y", "z"});
  CHECK(config.csv.features == std::vector<std::string>{"a"});
  CHECK(config.csv.separator == ';');
  CHECK(config.model.layers[0].kind == LayerSpec::Kind::gru);
  CHECK(config.model.layers[0].direction == layers::Direction::bidirectional);
  CHECK(config.model.layers[0].dropout == 0.5);
  CHECK(config.model.layers[1].activation == "relu");
  CHECK(config.model.loss == ModelSpec::Loss::mse);
  CHECK(config.model.pooling == ModelSpec::Pooling::max);
  CHECK(config.model.init.input->kind == Initialiser::Kind::he_normal);
  CHECK(config.model.init.recurrent->kind == Initialiser::Kind::orthogonal);
  CHECK(config.model.init.input->scale == 1.5);
  CHECK(config.batch.rows == 512);
  CHECK(config.optimizer.kind == OptimizerOptions::Kind::sgd);
  CHECK(config.optimizer.nesterov);
  CHECK(config.schedule.kind == Schedule::Kind::cosine);
  CHECK(config.schedule.decay_steps == 50);
  CHECK(config.clipping.norm == 2);
  CHECK(to_string(config.memory) == "recompute(0)");
  CHECK(config.narrow);
  CHECK(config.checkpoint_steps == 10);
  CHECK(config.folder == "f");
}

TEST_CASE("what is wrong is named with its line") {
  refused("epoch = 3\n", "c.toml:1: file: expected the keys");
  refused(least + "[output]\nfoder = 'o'\n", "c.toml:8: [output]: expected the key folder, found 'foder'");
  refused("\"one\\ntwo\" = 3\n", "found 'one?two'");
  refused(least + "[training]\nmemory = \"a\\nb\"\n", "found 'a?b'");
  refused("epochs = 3\n", "expected the key 'data'");
  refused("epochs = 0\n[data]\ntrain = \"a\"\n", "c.toml:1: file: epochs: expected an integer from 1");
  refused(least + "[training]\nlearning_rat = 1\n", "c.toml:8: [training]: expected the keys");
  refused(least + "[training]\noptimizer = \"adagrad\"\n",
          "c.toml:8: [training]: optimizer: expected one of sgd, adam, adamw, found 'adagrad'");
  refused(least + "[training]\nnesterov = true\n", "nesterov: expected a momentum");
  refused(least + "[training]\nbatch_sequences = 0\n", "batch_sequences");
  refused(least + "[training]\nnesterov = 1\n", "expected true or false, found integer");
  refused("epochs = 1\nlayer = 3\n[data]\ntrain = \"a\"\n", "layer: expected [[layer]] tables, found integer");
  refused("epochs = 1\n[data]\ntrain = \"a\"\n[[layer]]\nunits = 3\n", "expected the key 'kind'");
  const std::string data = "epochs = 1\n[data]\ntrain = \"a.csv\"\n";
  refused(data + "target_columns = 1\n", "c.toml:4: [data]: target_columns: expected a text or an array of texts, found integer");
  refused(data + "target_columns = [1]\n", "found integer in an array");
  refused(data + "separator = \"::\"\n", "separator: expected one character, found '::'");
  refused(data + "series = true\nsequence_column = \"id\"\n", "series: expected no sequence_column with it");
  refused("epochs = = 1\n", "c.toml:1: expected TOML");
  refused("epochs = 1\n[data]\ntrain = \"\"\n", "c.toml:3: [data]: train: expected a text, found an empty one");
  refused(least + "[training]\nmemory = \"truncate(0)\"\n",
          "c.toml:8: [training]: memory: expected truncate(k1, k2) with k1 and k2 of 1 or more, found 'truncate(0)'");
}

TEST_CASE("a key that does nothing beside the others is refused with its line, unless it says its default") {
  const std::string training = least + "[training]\n", model = least + "[model]\n";
  refused(training + "momentum = 0.9\n", "c.toml:8: [training]: momentum: expected the optimizer sgd with it, found none");
  refused(training + "optimizer = \"sgd\"\nbeta2 = 0.9\n", "c.toml:9: [training]: beta2: expected the optimizer adam or adamw with it");
  refused(training + "factor = 0.5\n", "c.toml:8: [training]: factor: expected the schedule step or exponential with it");
  refused(training + "schedule = \"cosine\"\nevery_steps = 5\n", "every_steps: expected the schedule step or exponential with it");
  refused(training + "decay_steps = 5\n", "decay_steps: expected the schedule linear or cosine with it");
  refused(training + "schedule = \"step\"\nleast_rate = 0.5\n", "least_rate: expected the schedule linear or cosine with it");
  refused(model + "init_scale = 2.0\n", "c.toml:8: [model]: init_scale: expected an init or a recurrent_init with it");
  refused(model + "forget_bias = 0.0\n", "forget_bias: expected an init or a recurrent_init with it");
  CHECK(parse_train_config(
            training + "momentum = 0.0\nnesterov = false\nevery_steps = 1000\nfactor = 0.1\ndecay_steps = 0\nleast_rate = 0.0\n", "c.toml")
            .optimizer.momentum == 0);
  CHECK(parse_train_config(model + "init = \"default\"\ninit_scale = 1.0\nforget_bias = 1.0\n", "c.toml").model.init.forget_bias == 1);
  CHECK(parse_train_config(model + "recurrent_init = \"orthogonal\"\nforget_bias = 0.5\n", "c.toml").model.init.forget_bias == 0.5);
}

TEST_CASE("a key that does nothing with this data or these layers is refused with its line, unless it says its default") {
  const auto job = [](const std::string& data, const std::string& layer) {
    return "epochs = 3\n[data]\n" + data + "[[layer]]\n" + layer + "units = 5\n";
  };
  const std::string lstm = "kind = \"lstm\"\n", gru = "kind = \"gru\"\n", linear = "kind = \"linear\"\n", csv = "train = \"a.csv\"\n";
  for (const char* file : {"a.ts", "a.npz", "a.csv"})
    refused(job("train = \"" + std::string(file) + "\"\nlength = 50\n", lstm),
            "c.toml:4: [data]: length: expected format = \"text\" or series = true with it, found none");
  refused(job(csv + "targets = \"row\"\n", lstm) + "[model]\npooling = \"max\"\n",
          "c.toml:9: [model]: pooling: expected targets for sequences with it");
  refused(job(csv, linear) + "[model]\nrecurrent_init = \"orthogonal\"\n",
          "c.toml:8: [model]: recurrent_init: expected a recurrent layer with it");
  refused(job(csv, gru) + "[model]\ninit = \"he_normal\"\nforget_bias = 2.0\n", "c.toml:9: [model]: forget_bias: expected an lstm with it");
  refused(job(csv, linear) + "[training]\nmemory = \"truncate(2,2)\"\n",
          "c.toml:8: [training]: memory: expected a recurrent layer with it");
  refused(job("train = \"a.tsv\"\nseparator = \";\"\n", lstm), "c.toml:4: [data]: separator: expected a .csv file with it");
  refused(job(csv, lstm) + "[model]\ninit = \"he_normal\"\nstart = \"a.safetensors\"\n",
          "c.toml:8: [model]: init: expected no start with it, which gives all weights, found one");
  for (const std::string other : {"model.mr", "a.npz", "weights"})
    refused(job(csv, lstm) + "[model]\nstart = \"" + other + "\"\n",
            "c.toml:8: [model]: start: expected the name of a .safetensors file, such as the model.safetensors of a job, found " + other);
  refused(job(csv, lstm) + "[model]\nrecurrent_init = \"he_normal\"\nstart = \"a.safetensors\"\n",
          "recurrent_init: expected no start with it");
  refused(job("train = \"a.npz\"\ntargets = \"tokens\"\n", gru) + "[decoder]\nunits = 3\nembedding = 2\nbeam = 1\nlength_penalty = 0.5\n",
          "c.toml:12: [decoder]: length_penalty: expected a beam above 1 with it");
  refused(job("train = \"a.npz\"\ntargets = \"tokens\"\n", gru) +
              "[decoder]\nunits = 3\nembedding = 2\n[training]\nmemory = \"truncate(3, 5)\"\n",
          "c.toml:12: [training]: memory: expected truncate of one number beside [decoder], found truncate(3, 5)");
  refused(job("train = \"a\"\nformat = \"text\"\nstandardize = true\n", lstm),
          "c.toml:5: [data]: standardize: expected rows of features, found a text");
  refused(job("train = \"a.npz\"\nseries = true\n", lstm),
          "c.toml:4: [data]: series: expected a .csv or .tsv file for the keys of columns, found 'a.npz'");
  refused(job(csv + "test = \"b.ts\"\ntarget_columns = \"y\"\n", lstm), "c.toml:5: [data]: target_columns: expected a .csv or .tsv file");
  refused(job("train = \"a.ts\"\ntargets = \"row\"\n", lstm),
          "c.toml:4: [data]: targets: expected \"sequence\" for a .ts file, found 'a.ts'");
  refused(job(csv + "targets = \"tokens\"\n", lstm),
          "c.toml:4: [data]: targets: expected \"sequence\" or \"row\" for a table, found 'a.csv'");
  CHECK(parse_train_config(
            job("train = \"a.tsv\"\nlength = 100\nseparator = \"\\t\"\ntargets = \"row\"\n", linear) +
                "[model]\npooling = \"last\"\nrecurrent_init = \"default\"\nforget_bias = 1.0\n[training]\nmemory = \"keep\"\n",
            "c.toml")
            .length == 100);
  CHECK_FALSE(parse_train_config(job("train = \"a.ts\"\nseparator = \",\"\n", lstm), "c.toml").has_csv);  // the file is read as without
  CHECK(parse_train_config(job("train = \"a.npz\"\nsequence_column = \"sequence\"\nseries = false\nseparator = \",\"\n", lstm), "c.toml")
            .train == "a.npz");
  CHECK(parse_train_config(
            job("train = \"a.npz\"\ntargets = \"tokens\"\n", gru) + "[decoder]\nunits = 3\nembedding = 2\n[model]\npooling = \"last\"\n",
            "c.toml")
            .model.decoder);
  CHECK(parse_train_config(job(csv + "test = \"b.tsv\"\nseries = true\nlength = 50\nseparator = \";\"\n", lstm), "c.toml").length == 50);
  CHECK(parse_train_config(job("train = \"a\"\nformat = \"text\"\nlength = 50\n", lstm), "c.toml").length == 50);
}

TEST_CASE("keys that contradict one another are refused with their line") {
  const std::string training = least + "[training]\n", csv = "epochs = 1\n[data]\ntrain = \"a.csv\"\n";
  for (const char* schedule : {"cosine", "linear"})
    refused(training + "schedule = \"" + schedule + "\"\nleast_rate = 1.0\n",
            "c.toml:9: [training]: least_rate: expected a number up to the learning_rate, 0.001, found 1");
  for (const char* number : {"0.0", "1e-300"})
    refused(training + "epsilon = " + number + "\n", "c.toml:8: [training]: epsilon: expected a number above 0 that f32 holds");
  refused(csv + "feature_columns = [\"a\", \"label\"]\n",
          "c.toml:4: [data]: feature_columns: expected columns that are no targets, found 'label'");
  refused(csv + "feature_columns = [\"a\", \"a\"]\n", "c.toml:4: [data]: feature_columns: expected different columns, found 'a' twice");
  refused(csv + "feature_columns = \"a\"\ntarget_columns = [\"y\", \"y\"]\n",
          "c.toml:5: [data]: target_columns: expected different columns");
}

TEST_CASE("a text with a NUL is refused with its line") {
  const std::string nul = " = \"a\\u0000b\"\n", files = "epochs = 1\n[data]\n";
  refused(files + "train" + nul, "c.toml:3: [data]: train: expected a text without a NUL, found one");
  refused(files + "train = \"a\"\ntest" + nul, "c.toml:4: [data]: test: expected a text without a NUL");
  refused(files + "train = \"a\"\nvalidation" + nul, "c.toml:4: [data]: validation: expected a text without a NUL");
  refused(files + "train = \"a.csv\"\ntarget_columns = [\"a\\u0000b\"]\n",
          "c.toml:4: [data]: target_columns: expected a text without a NUL");
  refused(least + "[model]\nstart" + nul, "c.toml:8: [model]: start: expected a text without a NUL");
  refused(least + "[output]\nfolder" + nul, "c.toml:8: [output]: folder: expected a text without a NUL");
}

TEST_CASE("a layer and a decoder know their lines") {
  const TrainConfig config = parse_train_config(
      "epochs = 3\n[data]\ntrain = \"a.npz\"\ntargets = \"tokens\"\n[[layer]]\nkind = \"gru\"\nunits = 5\n[[layer]]\nkind = "
      "\"linear\"\nunits = 5\n"
      "[decoder]\nunits = 7\nembedding = 3\n",
      "c.toml");
  CHECK(config.model.layers[0].place == "c.toml:5");
  CHECK(config.model.layers[1].place == "c.toml:8");
  CHECK(config.model.decoder->place == "c.toml:11");
}

TEST_CASE("letters beyond ASCII stand in strings of double quotes and in comments") {
  const TrainConfig config = parse_train_config(
      "\xef\xbb\xbf# Größe\nepochs = 3  # Runden, \"viele\" — 時\n[data]\ntrain = \"daten/größe 時 \U0001F600.csv\"  # größer\n"
      "target_columns = [\"é\", \"\"\"ß \"quoted\" \\\n   時\"\"\"\"]\n\"test\" = 'ascii # \".csv'\n"
      "[[layer]]\nkind = \"lstm\"\nunits = 5\n",
      "c.toml");
  CHECK(config.train == "daten/größe 時 \U0001F600.csv");
  CHECK(config.csv.targets == std::vector<std::string>{"é", "ß \"quoted\" 時\""});
  CHECK(config.test == "ascii # \".csv");
  refused("epochs = 3\n# é\n[data]\ntrain = \"é\"\ntest = 'é'\n",
          "c.toml:5: expected ASCII outside comments and strings in \"double quotes\"");
  refused("epochs = 3\nГод = 5\n", "c.toml:2: expected ASCII outside comments");
  refused("epochs = 3\ntrain = \"\"\"é\né\"\"\" é\n", "c.toml:3: expected ASCII outside comments");
  refused("a = \"\\é\"\n", "c.toml:1: expected ASCII outside comments");
  refused(least + "[training]\n\n# é\noptimizer = \"größer\"\n",
          "c.toml:10: [training]: optimizer: expected one of sgd, adam, adamw, found 'größer'");
  for (const char* bytes : {"\xff", "\x80", "\xc0\xaf", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x99"}) {
    refused("\na = \"" + std::string(bytes) + "\"\n", "c.toml:2: expected UTF-8");
    refused("# " + std::string(bytes) + "\n", "c.toml:1: expected UTF-8");
  }
  refused("a = \"é\nb = 1\n", "c.toml:1: expected TOML");
  refused("epochs = 3\na = \"\"\"é\n\n", "expected TOML");
}

TEST_CASE("a decoder belongs to targets that are tokens, and those to a decoder") {
  const std::string tokens = "epochs = 3\n[data]\ntrain = \"a.npz\"\ntargets = \"tokens\"\n[[layer]]\nkind = \"gru\"\nunits = 5\n";
  const TrainConfig config =
      parse_train_config(tokens + "[decoder]\nunits = 7\nembedding = 3\nbeam = 2\nmax_length = 9\nlength_penalty = 0.5\n", "c.toml");
  CHECK(config.targets == Targets::tokens);
  REQUIRE(config.model.decoder);
  CHECK(config.model.decoder->units == 7);
  CHECK(config.model.decoder->embedding == 3);
  CHECK(config.model.decoder->beam == 2);
  CHECK(config.model.decoder->max_length == 9);
  CHECK(config.model.decoder->length_penalty == 0.5);
  refused(tokens, "c.toml:4: [data]: targets: expected a table [decoder] with \"tokens\", found none");
  refused(least + "[decoder]\nunits = 7\nembedding = 3\n", "expected targets = \"tokens\" in [data] with it");
  refused(tokens + "[decoder]\nunits = 7\n", "embedding");
  refused(tokens + "[decoder]\nunits = 7\nembedding = 3\n[model]\npooling = \"max\"\n",
          "c.toml:12: [model]: pooling: expected none beside [decoder]");
  refused(tokens + "[decoder]\nunits = 7\nembedding = 3\nbeam = 0\n", "c.toml:11: [decoder]: beam");
  refused("epochs = 3\n[data]\ntrain = \"a\"\nformat = \"text\"\ntargets = \"sequence\"\n", "targets: expected \"row\" of a text");
}

TEST_CASE("the meaning of a configuration is told apart by each key that weights depend on, and by nothing else") {
  const std::string text = R"(epochs = 3
[data]
train = "a.csv"
test = "b.csv"
validation = 0.25
targets = "sequence"
standardize = false
length = 100
sequence_column = "id"
target_columns = "y"
feature_columns = ["x1", "x2"]
separator = ";"
[[layer]]
kind = "lstm"
units = 5
direction = "forward"
dropout = 0.1
[[layer]]
kind = "linear"
units = 3
activation = "relu"
[model]
loss = "mse"
pooling = "last"
init = "normal"
recurrent_init = "orthogonal"
init_scale = 0.5
forget_bias = 0.5
[training]
batch_sequences = 8
batch_rows = 70
optimizer = "adam"
learning_rate = 0.5
beta1 = 0.8
beta2 = 0.9
epsilon = 0.001
weight_decay = 0.1
schedule = "cosine"
warmup_steps = 4
decay_steps = 6
least_rate = 0.01
clip_norm = 2.0
clip_value = 3.0
weights = "f32"
)";
  const auto meaning = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    INFO(from);
    REQUIRE(other.find(from) != other.npos);
    other.replace(other.find(from), from.size(), to);
    return parse_train_config(other, "c.toml").meaning;
  };
  const auto whole = parse_train_config(text, "c.toml").meaning;
  const std::vector<std::array<std::string, 3>> changes{{"a.csv", "c.csv", "[data] train"},
                                                        {"b.csv", "c.csv", "[data] test"},
                                                        {"0.25", "0.5", "[data] validation"},
                                                        {"0.25", "\"v.csv\"", "[data] validation"},
                                                        {"standardize = false", "standardize = true", "[data] standardize"},
                                                        {"\"id\"", "\"name\"", "[data] sequence_column"},
                                                        {"\"y\"", "[\"y\", \"z\"]", "[data] target_columns"},
                                                        {"[\"x1\", \"x2\"]", "\"x1, x2\"", "[data] feature_columns"},
                                                        {"\";\"", "\":\"", "[data] separator"},
                                                        {"units = 5", "units = 6", "[[layer]] 1 units"},
                                                        {"forward", "reverse", "[[layer]] 1 direction"},
                                                        {"dropout = 0.1", "dropout = 0.2", "[[layer]] 1 dropout"},
                                                        {"kind = \"linear\"", "kind = \"embedding\"", "[[layer]] 2 kind"},
                                                        {"relu", "tanh", "[[layer]] 2 activation"},
                                                        {"mse", "cross_entropy", "[model] loss"},
                                                        {"\"last\"", "\"max\"", "[model] pooling"},
                                                        {"\"normal\"", "\"uniform\"", "[model] init"},
                                                        {"orthogonal", "uniform", "[model] recurrent_init"},
                                                        {"init_scale = 0.5", "init_scale = 0.25", "[model] init_scale"},
                                                        {"forget_bias = 0.5", "forget_bias = 2", "[model] forget_bias"},
                                                        {"batch_sequences = 8", "batch_sequences = 9", "[training] batch_sequences"},
                                                        {"batch_rows = 70", "batch_rows = 0", "[training] batch_rows"},
                                                        {"\"adam\"", "\"adamw\"", "[training] optimizer"},
                                                        {"learning_rate = 0.5", "learning_rate = 0.25", "[training] learning_rate"},
                                                        {"beta1 = 0.8", "beta1 = 0.7", "[training] beta1"},
                                                        {"beta2 = 0.9", "beta2 = 0.8", "[training] beta2"},
                                                        {"epsilon = 0.001", "epsilon = 0.01", "[training] epsilon"},
                                                        {"weight_decay = 0.1", "weight_decay = 0", "[training] weight_decay"},
                                                        {"cosine", "linear", "[training] schedule"},
                                                        {"warmup_steps = 4", "warmup_steps = 5", "[training] warmup_steps"},
                                                        {"decay_steps = 6", "decay_steps = 5", "[training] decay_steps"},
                                                        {"least_rate = 0.01", "least_rate = 0.02", "[training] least_rate"},
                                                        {"clip_norm = 2.0", "clip_norm = 1.0", "[training] clip_norm"},
                                                        {"clip_value = 3.0", "clip_value = 1.0", "[training] clip_value"},
                                                        {"\"f32\"", "\"bf16\"", "[training] weights"}};
  for (const auto& [from, to, key] : changes) {
    INFO(key);
    const auto other = meaning(from, to);
    REQUIRE(other.contains(key));
    CHECK(other.size() == whole.size());
    for (const auto& [name, value] : other) CHECK((whole.at(name) == value) == (name != key));
  }
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"epochs = 3", "# more\nepochs =   4"},
                                                        {"length = 100\n", ""},
                                                        {"standardize = false\n", ""},
                                                        {"0.25", "25e-2"},
                                                        {"[training]", "[checkpoint]\nevery_steps = 3\n[training]"}})
    CHECK(meaning(from, to) == whole);
}
