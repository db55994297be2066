// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/import/onnx.h>

#include <google/protobuf/io/coded_stream.h>

#include <limits>

#include <millrace/runtime/import/file.h>
#include <millrace/runtime/import/with_onnx/importer.h>

namespace millrace {
namespace {

/// Sub-graphs take three levels each.
constexpr int deepest_message = 100;

onnx::ModelProto parse(std::string_view bytes, const std::string& name) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw ParseError(name + ": expected an ONNX model of at most 2 GiB (tensors may lie beside it), found " + std::to_string(bytes.size()) +
                     " bytes");
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  stream.SetRecursionLimit(deepest_message);
  onnx::ModelProto model;
  if (!model.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage())
    throw ParseError(name + ": expected an ONNX model, found bytes that are no such message");
  return model;
}

Program import(importing::Source source, const onnx::ModelProto& model, const OnnxOptions& options) {
  return importing::Importer(source, options, model).run();
}

}  // namespace

Program parse_onnx(std::string_view bytes, const std::string& name, const OnnxOptions& options) {
  return import(importing::Source(name), parse(bytes, name), options);
}

Program import_onnx(const std::filesystem::path& path, const OnnxOptions& options) {
  const onnx::ModelProto model = parse(read_file(path), path.string());
  return import(importing::Source(path.string(), path.parent_path()), model, options);
}

}  // namespace millrace
