// SPDX-License-Identifier: Apache-2.0
#include <bench/library/command.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <bench/library/report.h>
#include <millrace/runtime/files/file.h>
#include <support/standard_streams.h>

namespace millrace::bench {
namespace {

struct Flags {
  std::vector<std::string> only;
  std::string json, plot, python;
  std::vector<std::pair<std::string, std::string>> others;
  bool quick = false;
  bool help = false;
};

std::vector<std::string> ids_of(std::span<const Family> families, const std::string& text) {
  std::string known;
  for (const Family& family : families) known += std::string(known.empty() ? "" : ", ") + family.id;
  std::vector<std::string> ids = parts_of(text);
  for (const std::string& id : ids)
    if (std::none_of(families.begin(), families.end(), [&](const Family& family) { return id == family.id; }))
      throw UsageError(fmt::format("--only: expected some of {}, found '{}'", known, id));
  return ids;
}

Flags parse(const Bench& bench, const std::vector<std::string>& words) {
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
      flags.only = ids_of(bench.families, value());
    else if (name == "--json")
      flags.json = value();
    else if (name == "--plot")
      flags.plot = value();
    else if (name == "--python")
      flags.python = value();
    else if (bench.flags.contains(name))
      flags.others.emplace_back(name, value());
    else if (words[i] == "--quick")
      flags.quick = true;
    else if (words[i] == "--help" || words[i] == "-h")
      flags.help = true;
    else
      throw UsageError("unexpected '" + words[i] + "'");
  }
  return flags;
}

Context make_context(const Bench& bench, const Flags& flags) {
  Context context;
  context.quick = flags.quick;
  if (flags.quick) context.effort = {1, 1, 0.002, 0, 0};
  context.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  context.python = flags.python.empty() ? in_build(context.programs, "venv/bin/python") : flags.python;
  if (context.python.empty()) context.python = "python3";
  for (const auto& [name, value] : flags.others) bench.flags.at(name)(context, value);
  return context;
}

/// Fails before an hour of measuring, and not after it.
void expect_writable(const std::string& file) {
  if (!file.empty()) write_file(file, "");
}

int print_help(const Bench& bench) {
  std::fputs(bench.usage, stdout);
  for (const Family& family : bench.families) fmt::print("               {:<8} {}\n", family.id, family.about);
  std::fputs(bench.usage_end, stdout);
  return 0;
}

}  // namespace

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

int number_of(const std::string& flag, const std::string& text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    throw UsageError(fmt::format("{}: expected numbers from {} to {}, found '{}'", flag, least, most, text));
  return number;
}

std::string in_build(const std::string& programs, const std::string& name) {
  for (const std::filesystem::path& build : {std::filesystem::path(programs) / "../..", std::filesystem::path("build")})
    if (std::filesystem::exists(build / name)) return (build / name).lexically_normal().string();
  return "";
}

int bench_command(const Bench& bench, const std::vector<std::string>& words) {
  const Flags flags = parse(bench, words);
  if (flags.help) return print_help(bench);
  Context context = make_context(bench, flags);
  bench.begin(context);
  const std::string device = bench.device();
  expect_writable(flags.json);
  expect_writable(flags.plot);
  std::vector<Row> rows;
  context.emit = [&](Row row) {
    fmt::print("{}", table_line(row));
    std::fflush(stdout);
    rows.push_back(std::move(row));
    if (!flags.json.empty()) write_file(flags.json, rows_as_json(device, rows));  // a run that is cut short leaves its rows so far
  };
  fmt::print("{}\n{}", device, table_heading());
  int code = 0;
  for (const Family& family : bench.families) {
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
  if (!flags.json.empty() && rows.empty()) write_file(flags.json, rows_as_json(device, rows));
  if (!flags.plot.empty()) write_file(flags.plot, rows_as_svg(device, rows));
  return app::flushed("millrace", code);
}

}  // namespace millrace::bench
