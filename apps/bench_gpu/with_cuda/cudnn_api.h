// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <bench_gpu/with_cuda/shared_library.h>

namespace millrace::bench {

/// As much of cuDNN's C interface (versions 8 and 9) as an LSTM forward needs, found when it is first wanted. Names and numbers are those of
/// cuDNN's documentation.
struct Cudnn {
  using Status = int;
  using Handle = struct CudnnHandle*;
  using Rnn = struct CudnnRnn*;
  using RnnData = struct CudnnRnnData*;
  using TensorDesc = struct CudnnTensor*;
  using Dropout = struct CudnnDropout*;

  enum Algorithm { standard = 0, persist_static = 1, persist_dynamic = 2, persist_static_small_h = 3 };
  enum DataType { data_float = 0, data_half = 2, data_bfloat16 = 9 };
  enum MathType { default_math = 0, tensor_op_math = 1, fma_math = 3 };
  static constexpr int inference = 0, lstm = 2, double_bias = 2, unidirectional = 0, linear_input = 0, packed_sequences = 1;

  std::size_t (*version)() = nullptr;
  const char* (*text)(Status) = nullptr;
  Status (*create)(Handle*) = nullptr;
  Status (*destroy)(Handle) = nullptr;
  Status (*set_stream)(Handle, cudaStream_t) = nullptr;
  Status (*create_rnn)(Rnn*) = nullptr;
  Status (*destroy_rnn)(Rnn) = nullptr;
  Status (*set_rnn)(Rnn, int algorithm, int cell, int bias, int direction, int input, int data, int math, int math_type,
                    std::int32_t features, std::int32_t hidden, std::int32_t projection, std::int32_t layers, Dropout,
                    std::uint32_t flags) = nullptr;
  Status (*build_dynamic)(Handle, Rnn, int rows) = nullptr;
  Status (*create_data)(RnnData*) = nullptr;
  Status (*destroy_data)(RnnData) = nullptr;
  Status (*set_data)(RnnData, int data, int layout, int steps, int rows, int features, const int* lengths, void* padding) = nullptr;
  Status (*create_tensor)(TensorDesc*) = nullptr;
  Status (*destroy_tensor)(TensorDesc) = nullptr;
  Status (*set_tensor)(TensorDesc, int data, int rank, const int* dims, const int* strides) = nullptr;
  Status (*create_dropout)(Dropout*) = nullptr;
  Status (*destroy_dropout)(Dropout) = nullptr;
  Status (*set_dropout)(Dropout, Handle, float, void*, std::size_t, unsigned long long) = nullptr;
  Status (*weight_bytes)(Handle, Rnn, std::size_t*) = nullptr;
  Status (*work_bytes)(Handle, Rnn, int mode, RnnData, std::size_t* work, std::size_t* reserve) = nullptr;
  Status (*weight)(Handle, Rnn, std::int32_t layer, std::size_t bytes, const void* weights, std::int32_t which, TensorDesc matrix,
                   void** matrix_at, TensorDesc bias, void** bias_at) = nullptr;
  Status (*forward)(Handle, Rnn, int mode, const std::int32_t* lengths, RnnData x_desc, const void* x, RnnData y_desc, void* y,
                    TensorDesc h_desc, const void* hx, void* hy, TensorDesc c_desc, const void* cx, void* cy, std::size_t weight_bytes,
                    const void* weights, std::size_t work_bytes, void* work, std::size_t reserve_bytes, void* reserve) = nullptr;

  std::string missing;  ///< why it cannot be used; empty when it can

  Cudnn() {
    const SharedLibrary library({"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"});
    if (!library) {
      missing = library.error();
      return;
    }
    const auto want = [&](const char* name, auto& function) {
      if (!library.find(name, function) && missing.empty()) missing = std::string("cuDNN has no ") + name;
    };
    want("cudnnGetVersion", version);
    want("cudnnGetErrorString", text);
    want("cudnnCreate", create);
    want("cudnnDestroy", destroy);
    want("cudnnSetStream", set_stream);
    want("cudnnCreateRNNDescriptor", create_rnn);
    want("cudnnDestroyRNNDescriptor", destroy_rnn);
    want("cudnnSetRNNDescriptor_v8", set_rnn);
    want("cudnnBuildRNNDynamic", build_dynamic);
    want("cudnnCreateRNNDataDescriptor", create_data);
    want("cudnnDestroyRNNDataDescriptor", destroy_data);
    want("cudnnSetRNNDataDescriptor", set_data);
    want("cudnnCreateTensorDescriptor", create_tensor);
    want("cudnnDestroyTensorDescriptor", destroy_tensor);
    want("cudnnSetTensorNdDescriptor", set_tensor);
    want("cudnnCreateDropoutDescriptor", create_dropout);
    want("cudnnDestroyDropoutDescriptor", destroy_dropout);
    want("cudnnSetDropoutDescriptor", set_dropout);
    want("cudnnGetRNNWeightSpaceSize", weight_bytes);
    want("cudnnGetRNNTempSpaceSizes", work_bytes);
    want("cudnnGetRNNWeightParams", weight);
    want("cudnnRNNForward", forward);
  }

  std::string version_text() const {
    const std::size_t v = version();
    return v >= 90000 ? std::to_string(v / 10000) + "." + std::to_string(v % 10000 / 100) + "." + std::to_string(v % 100)
                      : std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 100) + "." + std::to_string(v % 100);
  }
};

}  // namespace millrace::bench
