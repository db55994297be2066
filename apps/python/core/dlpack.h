// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The structures of DLPack that this module exchanges. Source: github.com/dmlc/dlpack, include/dlpack/dlpack.h (1.0); the names are ours.
namespace millrace::python::dlpack {

enum DeviceType : std::int32_t { cpu = 1, cuda_host = 3 };
enum TypeCode : std::uint8_t { integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4, boolean = 6 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Array {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major
  std::uint64_t byte_offset;
};

/// In a capsule "dltensor", renamed "used_dltensor" by who takes it.
struct Managed {
  Array array;
  void* context;
  void (*deleter)(Managed*);
};

/// In a capsule "dltensor_versioned", renamed "used_dltensor_versioned".
struct Versioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Array array;
};
inline constexpr std::uint64_t read_only = 1;
inline constexpr std::uint64_t copied = 2;

}  // namespace millrace::python::dlpack
