// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/fluid.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/elements.h>

namespace millrace {
namespace {

struct Code {
  std::uint64_t number;  // VarType.Type of framework.proto
  DType dtype;
};
constexpr std::array codes = {Code{0, DType::boolean}, Code{2, DType::i32}, Code{3, DType::i64}, Code{4, DType::f16},  Code{5, DType::f32},
                              Code{6, DType::f64},     Code{20, DType::u8}, Code{21, DType::i8}, Code{22, DType::bf16}};

/// Takes bytes from the front of what is left.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, std::string where) : all_(bytes.size()), left_(bytes), where_(std::move(where)) {}

  std::size_t left() const { return left_.size(); }
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw ParseError(where_ + ": expected " + expected + ", found " + found + " before byte " + std::to_string(all_ - left_.size()));
  }

  std::string_view take(std::uint64_t count, const std::string& what) {
    if (count > left_.size())
      throw ParseError(where_ + ": expected " + std::to_string(count) + " bytes of " + what + ", found " + std::to_string(left_.size()) +
                       " left at byte " + std::to_string(all_ - left_.size()));
    const std::string_view taken = left_.substr(0, static_cast<std::size_t>(count));
    left_.remove_prefix(taken.size());
    return taken;
  }

  template <class T>
  T number(const std::string& what) {
    T value{};
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  /// Protobuf's: seven bits a byte, the lowest first, at most ten bytes.
  std::uint64_t varint(const std::string& what) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1, what)[0]);
      if (shift == 63 && byte > 1) fail("a number of 64 bits", "a greater one");
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number of 64 bits", "one of more than ten bytes");
  }

 private:
  std::size_t all_;
  std::string_view left_;
  std::string where_;
};

std::vector<LoD::Level> read_levels(ByteReader& bytes) {
  const auto count = bytes.number<std::uint64_t>("the number of levels of LoD");
  if (count > bytes.left() / sizeof(std::uint64_t)) bytes.fail("as many levels of LoD as there is room for", std::to_string(count));
  std::vector<LoD::Level> levels;
  for (std::uint64_t level = 0; level < count; ++level) {
    const auto size = bytes.number<std::uint64_t>("the size of a level of LoD");
    if (size % sizeof(std::uint64_t) != 0) bytes.fail("a level of whole offsets", std::to_string(size) + " bytes");
    const std::string_view offsets = bytes.take(size, "offsets");
    LoD::Level& made = levels.emplace_back(offsets.size() / sizeof(std::int64_t));
    if (!offsets.empty()) std::memcpy(made.data(), offsets.data(), offsets.size());  // other offsets are negative then, and refused
  }
  return levels;
}

struct Description {
  DType dtype = DType::f32;
  DDim dims;
};

DType dtype_of_code(std::uint64_t number, const std::string& where) {
  for (const Code& code : codes)
    if (code.number == number) return code.dtype;
  throw DTypeError(where + ": expected elements of FP64 FP32 FP16 BF16 INT64 INT32 INT8 UINT8 or BOOL, found Fluid's type " +
                   std::to_string(number));
}

/// message TensorDesc { required Type data_type = 1; repeated int64 dims = 2; }, with the extents packed or not.
Description read_description(std::string_view text, const std::string& where) {
  ByteReader bytes(text, where + ": tensor description");
  const std::string what = "a tensor description";
  std::optional<std::uint64_t> type;
  std::vector<std::int64_t> extents;
  while (bytes.left() > 0) {
    switch (bytes.varint(what)) {
      case 1 << 3: type = bytes.varint(what); break;
      case 2 << 3: extents.push_back(static_cast<std::int64_t>(bytes.varint(what))); break;
      case (2 << 3) + 2: {
        const std::uint64_t size = bytes.varint(what);
        if (size > bytes.left()) bytes.fail("extents within the description", std::to_string(size) + " bytes of them");
        for (const std::size_t rest = bytes.left() - static_cast<std::size_t>(size); bytes.left() > rest;)
          extents.push_back(static_cast<std::int64_t>(bytes.varint(what)));
        break;
      }
      default: bytes.fail("data_type or dims", "another field");
    }
  }
  if (!type) bytes.fail("a data_type", "none");
  return {dtype_of_code(*type, where), internal::file_dims(extents, where)};
}

void expect_version(ByteReader& bytes, const std::string& of) {
  const auto version = bytes.number<std::uint32_t>("the version of " + of);
  if (version != 0) bytes.fail("version 0 of " + of, std::to_string(version));
}

LoDTensor read_tensor(ByteReader& bytes, const std::string& where) {
  expect_version(bytes, "Fluid's LoD");
  std::vector<LoD::Level> levels = read_levels(bytes);
  expect_version(bytes, "Fluid's tensor");
  const auto size = bytes.number<std::int32_t>("the size of a tensor description");
  if (size < 0) bytes.fail("a tensor description", "one of " + std::to_string(size) + " bytes");
  const Description description = read_description(bytes.take(static_cast<std::uint64_t>(size), "a tensor description"), where);
  const auto needed = static_cast<std::uint64_t>(description.dims.elements()) * size_of(description.dtype);
  const std::string_view elements =
      bytes.take(needed, "elements of " + std::string(name_of(description.dtype)) + description.dims.to_string());
  try {
    const LoD lod = levels.empty() ? LoD() : LoD::from_offsets(std::move(levels));
    if (lod.depth() > 0 && description.dims.rank() == 0) bytes.fail("rows below the LoD", "a scalar");
    if (lod.depth() > 0) lod.validate(description.dims[0]);
    return {internal::from_bytes(description.dtype, description.dims, elements, where), lod};
  } catch (const LoDError& error) {
    throw ParseError(where + ": " + error.what());
  }
}

}  // namespace

LoDTensor parse_fluid_tensor(std::string_view bytes, const std::string& where) {
  ByteReader reader(bytes, where);
  LoDTensor tensor = read_tensor(reader, where);
  if (reader.left() > 0) reader.fail("one tensor (read_fluid_tensors takes several)", "more bytes");
  return tensor;
}

std::vector<LoDTensor> parse_fluid_tensors(std::string_view bytes, const std::string& where) {
  ByteReader reader(bytes, where);
  std::vector<LoDTensor> tensors;
  while (reader.left() > 0) tensors.push_back(read_tensor(reader, where));
  return tensors;
}

LoDTensor read_fluid_tensor(const std::filesystem::path& path) { return parse_fluid_tensor(read_file(path), path.string()); }
std::vector<LoDTensor> read_fluid_tensors(const std::filesystem::path& path) { return parse_fluid_tensors(read_file(path), path.string()); }

}  // namespace millrace
