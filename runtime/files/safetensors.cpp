// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/safetensors.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/elements.h>
#include <millrace/runtime/files/internal/json_reader.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/files/sha256.h>

namespace millrace {
namespace {

constexpr std::size_t max_header = 16 * 1024 * 1024;
constexpr std::string_view metadata_key = "__metadata__";

struct Code {
  std::string_view text;
  DType dtype;
};
constexpr std::array codes = {Code{"F64", DType::f64},   Code{"F32", DType::f32}, Code{"F16", DType::f16},
                              Code{"BF16", DType::bf16}, Code{"I64", DType::i64}, Code{"I32", DType::i32},
                              Code{"I8", DType::i8},     Code{"U8", DType::u8},   Code{"BOOL", DType::boolean}};

struct WideCode {
  std::string_view text;
  internal::FileInteger integer;
};
constexpr std::array wide_codes = {WideCode{"I16", internal::FileInteger::i16}, WideCode{"U16", internal::FileInteger::u16},
                                   WideCode{"U32", internal::FileInteger::u32}, WideCode{"U64", internal::FileInteger::u64}};

std::string_view code_of(DType dtype) {
  return std::find_if(codes.begin(), codes.end(), [&](const Code& code) { return code.dtype == dtype; })->text;
}

/// One tensor as the header describes it.
struct Entry {
  std::string name;
  DType dtype = DType::f32;                      ///< as which elements are read
  std::optional<internal::FileInteger> integer;  ///< which they are, where that is no dtype
  DDim dims;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

std::optional<internal::FileInteger> integer_of_code(const std::string& text) {
  for (const WideCode& code : wide_codes)
    if (code.text == text) return code.integer;
  return std::nullopt;
}

DType dtype_of_code(const std::string& text, const std::string& where) {
  if (const auto integer = integer_of_code(text)) return internal::stored_as(*integer);
  for (const Code& code : codes)
    if (code.text == text) return code.dtype;
  throw DTypeError(where + ": expected F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 or BOOL, found " + internal::printable(text));
}

Entry read_entry(internal::JsonReader& json, const std::string& name, const std::string& where) {
  const std::string tensor = where + ": tensor " + internal::printable(name);
  std::optional<std::string> code;
  std::optional<std::vector<std::int64_t>> shape;
  std::vector<std::int64_t> offsets;
  json.object([&](const std::string& key) {
    if (key == "dtype") {
      code = json.string();
    } else if (key == "shape") {
      shape.emplace();
      json.array([&] { shape->push_back(json.integer()); });
    } else if (key == "data_offsets") {
      json.array([&] { offsets.push_back(json.integer()); });
    } else {
      json.fail("dtype, shape or data_offsets, found " + internal::printable(key));
    }
  });
  if (!code || !shape || offsets.size() != 2) throw ParseError(tensor + ": expected dtype, shape and two data_offsets");
  return {name, dtype_of_code(*code, tensor), integer_of_code(*code), internal::file_dims(*shape, tensor), offsets[0], offsets[1]};
}

std::vector<Entry> read_header(std::string_view text, const std::string& where, std::map<std::string, std::string>& metadata) {
  if (text.empty() || text[0] != '{') throw ParseError(where + ": expected '{' at the start of the header");
  std::vector<Entry> entries;
  internal::JsonReader json(text, where);
  json.object([&](const std::string& key) {
    if (key != metadata_key) {
      entries.push_back(read_entry(json, key, where));
      return;
    }
    json.object([&](const std::string& name) { metadata[name] = json.string(); });
  });
  json.end();
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  return entries;
}

void check_offsets(const std::vector<Entry>& entries, std::uint64_t data_bytes, const std::string& where) {
  std::int64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at || entry.end < entry.begin)
      throw ParseError(where + ": tensor " + internal::printable(entry.name) + ": expected bytes that begin at " + std::to_string(at) +
                       " without hole or overlap, found [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")");
    at = entry.end;
  }
  if (std::cmp_not_equal(at, data_bytes))
    throw ParseError(where + ": expected " + std::to_string(at) + " bytes of tensors, found " + std::to_string(data_bytes));
}

std::size_t read_header_length(std::string_view bytes, std::uint64_t file_size, const std::string& where) {
  if (bytes.size() < 8) throw ParseError(where + ": expected a safetensors file, found " + std::to_string(bytes.size()) + " bytes");
  std::uint64_t length = 0;
  for (std::size_t at = 8; at > 0; --at) length = length << 8 | static_cast<unsigned char>(bytes[at - 1]);
  const std::uint64_t there = file_size - 8;
  if (length > max_header || length > there)
    throw ParseError(where + ": expected a safetensors header of at most " + std::to_string(std::min<std::uint64_t>(max_header, there)) +
                     " bytes, found " + std::to_string(length));
  return static_cast<std::size_t>(length);
}

}  // namespace

const Tensor* SafeTensors::find(std::string_view name) const noexcept {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return &tensor;
  return nullptr;
}

SafeTensors parse_safetensors(std::string_view bytes, const std::string& where) {
  const std::size_t length = read_header_length(bytes, bytes.size(), where);
  const std::string_view data = bytes.substr(8 + length);
  SafeTensors contents;
  const std::vector<Entry> entries = read_header(bytes.substr(8, length), where, contents.metadata);
  check_offsets(entries, data.size(), where);
  for (const Entry& entry : entries) {
    const auto begin = static_cast<std::size_t>(entry.begin);
    const std::string_view part = data.substr(begin, static_cast<std::size_t>(entry.end) - begin);
    const std::string tensor = where + ": tensor " + internal::printable(entry.name);
    const Tensor stored = internal::from_bytes(entry.dtype, entry.dims, part, tensor);
    contents.tensors.emplace_back(entry.name, entry.integer ? internal::widened(stored, *entry.integer, tensor) : stored);
  }
  return contents;
}

SafeTensors read_safetensors(const std::filesystem::path& path) {
  // The header is compared with the file's size before the file is read.
  const FileStart start = read_file_start(path, 8 + max_header);
  const std::size_t length = read_header_length(start.bytes, start.size, path.string());
  std::map<std::string, std::string> metadata;
  const std::vector<Entry> entries = read_header(std::string_view(start.bytes).substr(8, length), path.string(), metadata);
  check_offsets(entries, start.size - 8 - length, path.string());
  return parse_safetensors(read_file(path), path.string());
}

namespace {

void check_name(const std::string& name, std::set<std::string>& names) {
  if (name == metadata_key || !is_utf8(name))
    throw ArgumentError("safetensors: expected a name in UTF-8 other than __metadata__, found " + internal::printable(name));
  if (!names.insert(name).second)
    throw ArgumentError("safetensors: expected each name once, found " + internal::printable(name) + " twice");
}

/// The length field and the header, padded so that the elements are aligned to 8 bytes.
std::string make_header(const SafeTensors& contents) {
  std::string header = "{";
  const auto separate = [&] { header += header.size() == 1 ? "" : ","; };
  if (!contents.metadata.empty()) {
    std::string text;
    for (const auto& [key, value] : contents.metadata) {
      if (!is_utf8(key) || !is_utf8(value))
        throw ArgumentError("safetensors: expected metadata in UTF-8, found " + internal::printable(key));
      text += (text.empty() ? "" : ",") + internal::json_quoted(key) + ":" + internal::json_quoted(value);
    }
    header += internal::json_quoted(metadata_key) + ":{" + text + "}";
  }
  std::set<std::string> names;
  std::size_t at = 0;
  for (const auto& [name, tensor] : contents.tensors) {
    check_name(name, names);
    separate();
    std::string shape;
    for (const std::int64_t extent : tensor.dims()) shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += internal::json_quoted(name) + ":{\"dtype\":\"" + std::string(code_of(tensor.dtype())) + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + tensor.bytes()) + "]}";
    at += tensor.bytes();
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > max_header)
    throw ArgumentError("safetensors: the header of " + std::to_string(header.size()) + " bytes is above 16 MiB");
  std::string length(8, '\0');
  for (std::size_t byte = 0; byte < 8; ++byte) length[byte] = static_cast<char>(header.size() >> 8 * byte & 0xff);
  return length + header;
}

/// Calls `put(bytes)` with the parts of the file in order.
template <class F>
void format(const SafeTensors& contents, F&& put) {
  put(make_header(contents));
  for (const auto& [name, tensor] : contents.tensors) {
    tensor.check_written();
    const Tensor rows =
        tensor.is_contiguous() && tensor.host_accessible() && tensor.ready().reached() ? tensor : tensor.copy_to(CpuPlace{});
    put(internal::to_bytes(rows));
  }
}

}  // namespace

std::string format_safetensors(const SafeTensors& contents) {
  std::string file;
  format(contents, [&](std::string_view part) { file += part; });
  return file;
}

std::string sha256(const SafeTensors& contents) {
  Sha256 hash;
  format({contents.tensors, {}}, [&](std::string_view part) { hash.add(part); });
  return hash.digits();
}

void write_safetensors(const std::filesystem::path& path, const SafeTensors& contents) {
  AtomicFile file(path);
  format(contents, [&](std::string_view part) { file.write(part); });
  file.commit();
}

}  // namespace millrace
