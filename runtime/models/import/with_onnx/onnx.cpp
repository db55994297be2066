// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/onnx.h>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>

#include <cstring>
#include <limits>
#include <utility>

#include <millrace/runtime/files/internal/descriptor.h>
#include <millrace/runtime/models/import/with_onnx/functions.h>
#include <millrace/runtime/models/import/with_onnx/importer.h>
#include <millrace/runtime/models/import/with_onnx/node_order.h>

namespace millrace {
namespace {

/// Sub-graphs take three levels each.
constexpr int deepest_message = 100;

void check_size(std::uint64_t size, const std::string& name) {
  if (size > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
    throw ParseError(name + ": expected an ONNX model of at most 2 GiB (tensors may lie beside it), found " + std::to_string(size) +
                     " bytes");
}

bool parse(google::protobuf::io::ZeroCopyInputStream& bytes, onnx::ModelProto& model) {
  google::protobuf::io::CodedInputStream stream(&bytes);
  stream.SetRecursionLimit(deepest_message);
  return model.ParseFromCodedStream(&stream) && stream.ConsumedEntireMessage();
}

[[noreturn]] void refuse(const std::string& name) {
  throw ParseError(name + ": expected an ONNX model, found bytes that are no such message");
}

Program import(importing::Source source, onnx::ModelProto& model, const OnnxOptions& options) {
  importing::expand_functions(model, source.name());
  if (model.has_graph()) importing::sort_nodes(*model.mutable_graph(), source.name());
  return importing::Importer(source, options, model).run();
}

}  // namespace

Program parse_onnx(std::string_view bytes, const std::string& name, const OnnxOptions& options) {
  check_size(bytes.size(), name);
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  onnx::ModelProto model;
  if (!parse(stream, model)) refuse(name);
  return import(importing::Source(name), model, options);
}

Program import_onnx(const std::filesystem::path& path, const OnnxOptions& options) {
  std::uint64_t size = 0;
  const internal::Descriptor file = internal::open_regular(path, size);
  check_size(size, path.string());
  // Read as it is parsed: bytes that are no model are noticed where they begin.
  google::protobuf::io::FileInputStream stream(file.get());
  onnx::ModelProto model;
  const bool parsed = parse(stream, model);
  if (stream.GetErrno() != 0) throw IoError(path.string() + ": cannot read: " + std::strerror(stream.GetErrno()));
  if (!parsed) refuse(path.string());
  if (std::cmp_not_equal(stream.ByteCount(), size)) throw IoError(path.string() + ": cannot read: the file changed while it was read");
  return import(importing::Source(path.string(), path.parent_path()), model, options);
}

}  // namespace millrace
