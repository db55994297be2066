// SPDX-License-Identifier: Apache-2.0
#include <bench/cpu_command.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include <bench/library/report.h>
#include <bench/registry.h>
#include <millrace/runtime/import/file.h>
#include <support/standard_streams.h>

namespace millrace::bench {
namespace {

constexpr const char* usage =
    "Measures speed beside peers, by turns in one run: docs/performance.md says what a row means.\n"
    "usage: millrace bench cpu [--only ID,...] [--threads N,...] [--json FILE] [--plot FILE.svg] [--quick]\n"
    "                          [--python PROGRAM] [--models FOLDER]\n"
    "  --only     the rows of these ids alone:\n";
constexpr const char* usage_end =
    "  --threads  of a kernel; default 1,2\n"
    "  --json     the rows as data\n"
    "  --plot     ours and peers over H and B, as an SVG\n"
    "  --quick    a few small shapes, a moment each: shows that everything runs, and no more\n"
    "  --python   the interpreter that has onnxruntime, onnx and torch; default build/venv/bin/python, else python3\n"
    "  --models   the folder of silero_vad_v6.onnx; default build/models\n"
    "Exit codes: 0, 1 (failed), 2 (bad usage).\n";

struct Flags {
  std::vector<std::string> only;
  std::vector<int> threads = {1, 2};
  std::string json, plot, python, models;
  bool quick = false;
  bool help = false;
};

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::vector<std::string> ids_of(const std::string& text) {
  std::string known;
  for (const Family& family : families()) known += std::string(known.empty() ? "" : ", ") + family.id;
  std::vector<std::string> ids = parts_of(text);
  for (const std::string& id : ids)
    if (std::none_of(families().begin(), families().end(), [&](const Family& family) { return id == family.id; }))
      throw UsageError(fmt::format("--only: expected some of {}, found '{}'", known, id));
  return ids;
}

std::vector<int> threads_of(const std::string& text) {
  std::vector<int> all;
  for (const std::string& part : parts_of(text)) {
    int count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    if (error != std::errc() || end != part.data() + part.size() || count < 1 || count > 256)
      throw UsageError(fmt::format("--threads: expected numbers from 1 to 256, found '{}'", part));
    all.push_back(count);
  }
  return all;
}

Flags parse(const std::vector<std::string>& words) {
  Flags flags;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].starts_with("--") ? words[i].find('=') : std::string::npos;
    const std::string name = words[i].substr(0, equals);
    const auto value = [&]() -> std::string {
      if (equals != std::string::npos) return words[i].substr(equals + 1);
      if (i + 1 == words.size()) throw UsageError(name + ": expected a value, found nothing");
      return words[++i];
    };
    if (name == "--only")
      flags.only = ids_of(value());
    else if (name == "--threads")
      flags.threads = threads_of(value());
    else if (name == "--json")
      flags.json = value();
    else if (name == "--plot")
      flags.plot = value();
    else if (name == "--python")
      flags.python = value();
    else if (name == "--models")
      flags.models = value();
    else if (words[i] == "--quick")
      flags.quick = true;
    else if (words[i] == "--help" || words[i] == "-h")
      flags.help = true;
    else
      throw UsageError("unexpected '" + words[i] + "'");
  }
  return flags;
}

/// What stands in the build folder of `./dev`, seen from the programs (build/release/bin) or from the root of the tree.
std::string in_build(const std::filesystem::path& programs, const std::string& name) {
  for (const std::filesystem::path& build : {programs / "../..", std::filesystem::path("build")})
    if (std::filesystem::exists(build / name)) return (build / name).lexically_normal().string();
  return "";
}

Context make_context(const Flags& flags) {
  Context context;
  context.quick = flags.quick;
  if (flags.quick) context.effort = {1, 1, 0.002, 0, 0};
  context.threads = flags.threads;
  const std::filesystem::path programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  context.programs = programs.string();
  context.models = flags.models.empty() ? in_build(programs, "models") : flags.models;
  context.python = flags.python.empty() ? in_build(programs, "venv/bin/python") : flags.python;
  if (context.python.empty()) context.python = "python3";
  return context;
}

/// Fails before an hour of measuring, and not after it.
void expect_writable(const std::string& file) {
  if (!file.empty()) write_file(file, "");
}

int print_help() {
  std::fputs(usage, stdout);
  for (const Family& family : families()) fmt::print("               {:<8} {}\n", family.id, family.about);
  std::fputs(usage_end, stdout);
  return 0;
}

}  // namespace

int cpu_command(const std::vector<std::string>& words) {
  const Flags flags = parse(words);
  if (flags.help) return print_help();
  expect_writable(flags.json);
  expect_writable(flags.plot);
  std::vector<Row> rows;
  Context context = make_context(flags);
  context.emit = [&rows](Row row) {
    fmt::print("{}", table_line(row));
    std::fflush(stdout);
    rows.push_back(std::move(row));
  };
  fmt::print("{}\n{}", Machine::name(), table_heading());
  int code = 0;
  for (const Family& family : families()) {
    if (!flags.only.empty() && std::find(flags.only.begin(), flags.only.end(), family.id) == flags.only.end()) continue;
    try {
      family.measure(context);
    } catch (const std::exception& error) {
      Row row;
      row.id = family.id;
      row.shape = family.about;
      row.note = std::string("not measured: ") + error.what();
      context.emit(std::move(row));
      code = 1;
    }
  }
  if (!flags.json.empty()) write_file(flags.json, rows_as_json(Machine::name(), rows));
  if (!flags.plot.empty()) write_file(flags.plot, rows_as_svg(Machine::name(), rows));
  return app::flushed("millrace", code);
}

}  // namespace millrace::bench
