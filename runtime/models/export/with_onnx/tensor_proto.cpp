// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/exporter.h>
#include <millrace/tensor/error.h>

namespace millrace::exporting {

using onnx::TensorProto;

TensorProto::DataType onnx_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return TensorProto::DOUBLE;
    case DType::f32: return TensorProto::FLOAT;
    case DType::f16: return TensorProto::FLOAT16;
    case DType::bf16: return TensorProto::BFLOAT16;
    case DType::i64: return TensorProto::INT64;
    case DType::i32: return TensorProto::INT32;
    case DType::i8: return TensorProto::INT8;
    case DType::u8: return TensorProto::UINT8;
    case DType::boolean: return TensorProto::BOOL;
  }
  throw UnsupportedError("expected a dtype of ONNX, found " + std::string(name_of(dtype)));
}

TensorProto tensor_proto(const Tensor& value, const std::string& name) {
  TensorProto proto;
  if (!name.empty()) proto.set_name(name);
  proto.set_data_type(onnx_type(value.dtype()));
  for (const std::int64_t extent : value.dims()) proto.add_dims(extent);
  const Tensor host = value.copy_to(CpuPlace{});
  proto.set_raw_data(host.raw(), host.bytes());
  return proto;
}

}  // namespace millrace::exporting
