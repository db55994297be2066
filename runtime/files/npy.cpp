// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/npy.h>

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/internal/elements.h>
#include <millrace/runtime/files/internal/printable.h>

namespace millrace {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t max_header = 64 * 1024;  // NumPy's own limit is 10,000 characters

struct Code {
  std::string_view text;
  DType dtype;
};
constexpr std::array codes = {Code{"f8", DType::f64}, Code{"f4", DType::f32}, Code{"f2", DType::f16}, Code{"i8", DType::i64},
                              Code{"i4", DType::i32}, Code{"i1", DType::i8},  Code{"u1", DType::u8},  Code{"b1", DType::boolean}};

struct WideCode {
  std::string_view text;
  internal::FileInteger integer;
};
constexpr std::array wide_codes = {WideCode{"i2", internal::FileInteger::i16}, WideCode{"u2", internal::FileInteger::u16},
                                   WideCode{"u4", internal::FileInteger::u32}, WideCode{"u8", internal::FileInteger::u64}};

struct Header {
  DType dtype = DType::f32;                      ///< as which elements are read
  std::optional<internal::FileInteger> integer;  ///< which they are, where that is no dtype
  bool swapped = false;
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

/// Reads the one Python literal that a header is: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Header read() {
    expect('{');
    while (!take('}')) {
      entry();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    blanks();
    if (at_ != text_.size()) fail("the end of the header");
    if (!descr_ || !fortran_ || !shape_) fail("the keys descr, fortran_order and shape");
    Header header;
    header.fortran = *fortran_;
    header.shape = *shape_;
    decode(*descr_, header);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw ParseError(where_ + ": expected " + expected + " in the npy header, found " +
                     (at_ < text_.size() ? "something else at character " + std::to_string(at_) : std::string("its end")));
  }

  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool take(char wanted) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "'");
  }
  bool take_word(std::string_view word) {
    blanks();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string_view quoted() {
    blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("a quoted word");
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\\') ++at_;
    if (at_ >= text_.size() || text_[at_] != quote) fail("the end of a quoted word");
    return text_.substr(begin, at_++ - begin);
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) fail("True or False");
    return false;
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!take(')')) {
      blanks();
      std::int64_t extent = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) fail("an extent");
      at_ = static_cast<std::size_t>(end - text_.data());
      extents.push_back(extent);
      if (!take(',')) {
        if (extents.size() == 1) fail("','");  // (3) is a number, (3,) a tuple
        expect(')');
        break;
      }
    }
    return extents;
  }

  void entry() {
    const std::string_view key = quoted();
    expect(':');
    if (key == "descr" && !descr_) {
      blanks();
      if (at_ < text_.size() && text_[at_] == '[') throw DTypeError(where_ + ": expected one element type, found a structured npy type");
      descr_ = quoted();
    } else if (key == "fortran_order" && !fortran_) {
      fortran_ = boolean();
    } else if (key == "shape" && !shape_) {
      shape_ = tuple();
    } else {
      fail("each of the keys descr, fortran_order and shape once");
    }
  }

  void decode(std::string_view descr, Header& header) const {
    const char order = descr.empty() ? '\0' : descr[0];
    const std::string_view kind = order == '<' || order == '>' || order == '|' || order == '=' ? descr.substr(1) : descr;
    for (const Code& code : codes) {
      if (kind != code.text) continue;
      header.dtype = code.dtype;
      header.swapped = order == '>' && size_of(code.dtype) > 1;
      return;
    }
    for (const WideCode& code : wide_codes) {
      if (kind != code.text) continue;
      header.integer = code.integer;
      header.dtype = internal::stored_as(code.integer);
      header.swapped = order == '>';
      return;
    }
    throw DTypeError(where_ + ": expected npy elements of f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 or b1, found " + internal::printable(descr) +
                     " (npy has no code for bf16)");
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::optional<std::string_view> descr_;
  std::optional<bool> fortran_;
  std::optional<std::vector<std::int64_t>> shape_;
};

/// Bytes of the little-endian length field, and the length.
struct Preamble {
  std::size_t begin = 0;
  std::size_t length = 0;
};

Preamble read_preamble(std::string_view bytes, const std::string& where) {
  if (bytes.size() < 8 || !bytes.starts_with(magic)) throw ParseError(where + ": expected an npy file, found other bytes at its start");
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at])); };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3) throw ParseError(where + ": expected npy version 1 to 3, found " + std::to_string(version));
  Preamble preamble;
  preamble.begin = version == 1 ? 10 : 12;
  if (bytes.size() < preamble.begin) throw ParseError(where + ": expected an npy header, found the end of the file");
  for (std::size_t at = preamble.begin; at > 8; --at) preamble.length = preamble.length << 8 | byte(at - 1);
  if (preamble.length > max_header)
    throw ParseError(where + ": expected an npy header of at most " + std::to_string(max_header) + " bytes, found " +
                     std::to_string(preamble.length));
  if (preamble.length > bytes.size() - preamble.begin)
    throw ParseError(where + ": expected an npy header of " + std::to_string(preamble.length) + " bytes, found " +
                     std::to_string(bytes.size() - preamble.begin));
  return preamble;
}

/// Fortran order is the row-major order of the transpose.
Tensor from_fortran(const Header& header, std::string_view data, const std::string& where) {
  const std::vector<std::int64_t> reversed(header.shape.rbegin(), header.shape.rend());
  const Tensor transposed = internal::from_bytes(header.dtype, internal::file_dims(reversed, where), data, where);
  std::vector<int> axes;
  for (int axis = transposed.rank() - 1; axis >= 0; --axis) axes.push_back(axis);
  return transposed.permute(axes).copy_to(CpuPlace{});
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& where) {
  const Preamble preamble = read_preamble(bytes, where);
  const Header header = HeaderReader(bytes.substr(preamble.begin, preamble.length), where).read();
  const std::string_view data = bytes.substr(preamble.begin + preamble.length);
  Tensor tensor = header.fortran && header.shape.size() > 1
                      ? from_fortran(header, data, where)
                      : internal::from_bytes(header.dtype, internal::file_dims(header.shape, where), data, where);
  if (header.swapped) internal::swap_bytes(tensor);
  return header.integer ? internal::widened(tensor, *header.integer, where) : tensor;
}

Tensor read_npy(const std::filesystem::path& path) {
  // The header is compared with the file's size before the file is read.
  const std::string where = path.string();
  const FileStart start = read_file_start(path, 12 + max_header);
  const Preamble preamble = read_preamble(start.bytes, where);
  const Header header = HeaderReader(std::string_view(start.bytes).substr(preamble.begin, preamble.length), where).read();
  internal::check_bytes(header.dtype, internal::file_dims(header.shape, where), start.size - preamble.begin - preamble.length, where);
  return parse_npy(read_file(path), where);
}

namespace {

std::string make_header(const Tensor& tensor) {
  if (tensor.dtype() == DType::bf16)
    throw DTypeError("npy: expected a dtype that npy has a code for, found bf16: cast to f32 first, or write safetensors");
  std::string_view kind;
  for (const Code& code : codes)
    if (code.dtype == tensor.dtype()) kind = code.text;
  std::string header = "{'descr': '";
  header += size_of(tensor.dtype()) == 1 ? '|' : '<';
  header += kind;
  header += "', 'fortran_order': False, 'shape': (";
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    if (axis > 0) header += ' ';
    header += std::to_string(tensor.dim(axis)) + ',';
  }
  if (tensor.rank() > 1) header.pop_back();
  header += "), }";
  // NumPy aligns the elements to 64 bytes.
  const std::size_t before = 10;
  header.append((64 - (before + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string file(magic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return file + header;
}

Tensor row_major_on_host(const Tensor& tensor) {
  tensor.check_written();
  return tensor.is_contiguous() && tensor.host_accessible() && tensor.ready().reached() ? tensor : tensor.copy_to(CpuPlace{});
}

}  // namespace

std::string format_npy(const Tensor& tensor) {
  std::string file = make_header(tensor);
  const Tensor rows = row_major_on_host(tensor);
  file += internal::to_bytes(rows);
  return file;
}

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  const std::string header = make_header(tensor);
  const Tensor rows = row_major_on_host(tensor);
  AtomicFile file(path);
  file.write(header);
  file.write(internal::to_bytes(rows));
  file.commit();
}

}  // namespace millrace
