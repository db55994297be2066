// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/checkpoint.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/descriptor.h>
#include <millrace/runtime/files/internal/json_reader.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/files/sha256.h>
#include <millrace/runtime/files/utf8.h>
#include <millrace/tensor/error.h>

namespace millrace::training {
namespace {

namespace fs = std::filesystem;
using millrace::internal::Descriptor;
using millrace::internal::json_quoted;
using millrace::internal::JsonReader;
using millrace::internal::sync_folder;

constexpr const char* manifest_name = "manifest.json";
const std::string tensors_ending = ".safetensors";
constexpr const char* prefix = "step-";
constexpr const char* replaced_ending = ".old.tmp";  // of a checkpoint while another of its step takes its place
constexpr std::int64_t format = 1;
constexpr std::uint64_t most_manifest = std::uint64_t{64} << 20;

[[noreturn]] void failed(const fs::path& path, const std::string& doing, int error) {
  throw IoError(path.string() + ": cannot " + doing + ": " + std::strerror(error));
}

void make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) failed(path, "make the folder", errno);
}

/// A new file, and its bytes on the disk.
void write_new(const fs::path& path, std::string_view bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) failed(path, "create", errno);
  const Descriptor file(descriptor);
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.get(), bytes.data(), std::min<std::size_t>(bytes.size(), 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) failed(path, "write", errno);
    if (put == 0) failed(path, "write", ENOSPC);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fsync(file.get()) != 0) failed(path, "write", errno);
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) failed(to, "rename", errno);
}

std::string file_bytes(const Tensors& tensors) {
  SafeTensors contents;
  for (const auto& [name, tensor] : tensors) contents.tensors.emplace_back(name, tensor);
  return format_safetensors(contents);
}

bool is_word(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.front() != '.' && name != manifest_name && std::all_of(name.begin(), name.end(), plain);
}

struct Entry {
  std::int64_t bytes = 0;
  std::string hash;
};

std::string manifest_of(const Checkpoint& checkpoint, const std::map<std::string, Entry>& files) {
  std::string text = "{\"format\": " + std::to_string(format) + ", \"step\": " + std::to_string(checkpoint.step) + ",\n \"fields\": {";
  const char* between = "";
  for (const auto& [name, value] : checkpoint.fields) {
    text += between + ("\n  " + json_quoted(name) + ": " + json_quoted(value));
    between = ",";
  }
  text += "},\n \"files\": {";
  between = "";
  for (const auto& [name, entry] : files) {
    text += between + ("\n  " + json_quoted(name) + ": {\"bytes\": " + std::to_string(entry.bytes) +
                       ", \"sha256\": " + json_quoted(entry.hash) + "}");
    between = ",";
  }
  text += "}}\n";
  return text + "sha256 " + sha256(text) + "\n";
}

void parse_manifest(std::string_view text, const std::string& where, Checkpoint& checkpoint, std::map<std::string, Entry>& files) {
  const auto mark = text.rfind("sha256 ");
  const std::string_view body = text.substr(0, mark);
  if (mark == text.npos || text.substr(mark) != "sha256 " + sha256(body) + "\n")
    throw ParseError(where + ": expected a last line with the SHA-256 of what stands before, found another");
  JsonReader reader(body, where);
  std::int64_t found_format = -1;
  reader.object([&](const std::string& key) {
    if (key == "format")
      found_format = reader.integer();
    else if (key == "step")
      checkpoint.step = reader.integer();
    else if (key == "fields")
      reader.object([&](const std::string& name) { checkpoint.fields[name] = reader.string(); });
    else if (key == "files")
      reader.object([&](const std::string& name) {
        if (!is_word(name)) reader.fail("the name of a file");
        Entry& entry = files[name];
        reader.object([&](const std::string& part) {
          if (part == "bytes")
            entry.bytes = reader.integer();
          else if (part == "sha256")
            entry.hash = reader.string();
          else
            reader.fail("bytes or sha256");
        });
      });
    else
      reader.fail("format, step, fields or files");
  });
  reader.end();
  if (found_format != format)
    throw ParseError(where + ": expected format " + std::to_string(format) + ", found " + std::to_string(found_format));
}

/// The names of a folder; none for one that is not there.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator each(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && each != fs::directory_iterator(); each.increment(error)) names.push_back(each->path().filename().string());
  if (error) failed(folder, "read the folder", error.value());
  return names;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) failed(path, "remove", error.value());
}

}  // namespace

const std::string& Checkpoint::field(const std::string& name) const {
  const auto found = fields.find(name);
  if (found == fields.end())
    throw ArgumentError("checkpoint of step " + std::to_string(step) + ": expected a field '" + name + "', found none");
  return found->second;
}

std::int64_t Checkpoint::integer(const std::string& name) const {
  const std::string& text = field(name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw ParseError("checkpoint of step " + std::to_string(step) + ", " + name + ": expected an integer, found '" + text + "'");
  return value;
}

fs::path CheckpointFolder::at(std::int64_t step) const { return folder_ / (prefix + std::to_string(step)); }

/// A crash between the two renames of a save leaves the checkpoint that was to be replaced under its other name alone.
fs::path CheckpointFolder::found_at(std::int64_t step) const {
  const fs::path target = at(step), replaced = target.string() + replaced_ending;
  std::error_code unknown, ignored;
  return !fs::exists(target, unknown) && !unknown && fs::exists(replaced, ignored) ? replaced : target;
}

/// Removes what a crash or an error left behind. None of it was ever acknowledged, but for a checkpoint that was to be replaced: it gets its name back.
void CheckpointFolder::remove_leftovers() const {
  for (const std::int64_t step : steps())
    if (found_at(step) != at(step)) rename_folder(found_at(step), at(step));
  for (const std::string& name : names_in(folder_))
    if (name.starts_with(prefix) && name.ends_with(".tmp")) remove_tree(folder_ / name);
}

/// A checkpoint that could not be loaded must not take the place of one that can.
void CheckpointFolder::check(const Checkpoint& checkpoint) {
  const auto refuse = [](const std::string& what, const std::string& found) {
    throw ArgumentError("checkpoint: expected " + what + ", found " + millrace::internal::printable(found));
  };
  if (checkpoint.step < 0) refuse("a step of at least 0", std::to_string(checkpoint.step));
  for (const auto& [name, value] : checkpoint.fields) {
    if (!is_utf8(name)) refuse("the name of a field in UTF-8", name);
    if (!is_utf8(value)) refuse("the field '" + name + "' in UTF-8", value);
  }
  for (const auto& [name, tensors] : checkpoint.tensors)
    if (!is_word(name + tensors_ending)) refuse("the name of a file of tensors", name);
  for (const auto& [name, text] : checkpoint.texts)
    if (!is_word(name) || name.ends_with(tensors_ending)) refuse("the name of a file of text", name);
}

void CheckpointFolder::write_all(const fs::path& temporary, const Checkpoint& checkpoint) const {
  make_folder(temporary);
  std::map<std::string, Entry> files;
  const auto write = [&](const std::string& name, const std::string& bytes) {
    files[name] = {static_cast<std::int64_t>(bytes.size()), sha256(bytes)};
    write_new(temporary / name, bytes);
  };
  for (const auto& [name, tensors] : checkpoint.tensors) write(name + tensors_ending, file_bytes(tensors));
  for (const auto& [name, text] : checkpoint.texts) write(name, text);
  write_new(temporary / manifest_name, manifest_of(checkpoint, files));
  sync_folder(temporary);
}

void CheckpointFolder::save(const Checkpoint& checkpoint) {
  check(checkpoint);
  const fs::path target = at(checkpoint.step), temporary = target.string() + ".tmp", replaced = target.string() + replaced_ending;
  try {
    make_folders(folder_);
    remove_leftovers();
    write_all(temporary, checkpoint);
    // One of the same step is there when a job went back to an older one because this is torn, or began at its end.
    std::error_code error;
    const bool again = fs::exists(target, error);
    if (error) failed(target, "look at", error.value());
    if (again) rename_folder(target, replaced);
    if (::rename(temporary.c_str(), target.c_str()) != 0) {
      const int cause = errno;
      if (again) rename_folder(replaced, target);
      failed(target, "rename", cause);
    }
    sync_folder(folder_);
    const std::vector<std::int64_t> all = steps();
    const auto here = std::lower_bound(all.begin(), all.end(), checkpoint.step);
    for (auto each = all.begin(); each != all.end(); ++each)
      if (*each != checkpoint.step && each + 1 != here) remove_tree(at(*each));
    remove_tree(replaced);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> found;
  for (std::string name : names_in(folder_)) {
    if (!name.starts_with(prefix)) continue;
    if (name.ends_with(replaced_ending)) name.resize(name.size() - std::strlen(replaced_ending));
    std::int64_t step = 0;
    const char* first = name.data() + std::strlen(prefix);
    const auto [ignored, parsed] = std::from_chars(first, name.data() + name.size(), step);
    if (parsed == std::errc() && first == std::to_string(step) && step >= 0) found.push_back(step);  // no step-007
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

Checkpoint CheckpointFolder::load(std::int64_t step) const {
  const fs::path folder = found_at(step);
  Checkpoint checkpoint;
  std::map<std::string, Entry> files;
  const fs::path manifest = folder / manifest_name;
  parse_manifest(read_file(manifest, most_manifest), manifest.string(), checkpoint, files);
  if (checkpoint.step != step)
    throw ParseError(manifest.string() + ": expected step " + std::to_string(step) + ", found " + std::to_string(checkpoint.step));
  for (const auto& [name, entry] : files) {
    const fs::path path = folder / name;
    const std::string bytes = read_file(path, static_cast<std::uint64_t>(entry.bytes));
    if (std::cmp_not_equal(bytes.size(), entry.bytes) || sha256(bytes) != entry.hash)
      throw ParseError(path.string() + ": expected " + std::to_string(entry.bytes) +
                       " bytes with the SHA-256 of the manifest, found others");
    if (!name.ends_with(tensors_ending)) {
      checkpoint.texts[name] = bytes;
      continue;
    }
    Tensors& tensors = checkpoint.tensors[name.substr(0, name.size() - tensors_ending.size())];
    for (auto& [key, tensor] : parse_safetensors(bytes, path.string()).tensors) tensors.emplace(key, std::move(tensor));
  }
  return checkpoint;
}

std::optional<Checkpoint> CheckpointFolder::load(std::vector<std::string>* skipped) const {
  const std::vector<std::int64_t> all = steps();
  std::string reasons;
  for (std::size_t i = all.size(); i-- > 0;) {
    try {
      return load(all[i]);
    } catch (const Error& error) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(error.what());
      if (skipped != nullptr) skipped->push_back(error.what());
    }
  }
  if (!all.empty()) throw IoError(folder_.string() + ": expected a whole checkpoint, found none: " + reasons);
  return std::nullopt;
}

void CheckpointFolder::clear() {
  remove_leftovers();
  for (const std::int64_t step : steps()) remove_tree(at(step));
}

}  // namespace millrace::training
