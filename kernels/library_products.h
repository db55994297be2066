// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/kernels/gemm.h>
#include <millrace/tensor/device.h>

/// Products of matrices by a vendor's library (cuBLASLt), beside our own kernels, which always exist. A device takes the library for a product
/// x[M, K] · W[K, N] only where a **probe** on that device showed that one of its algorithms has the bits of our kernels. A probe is made for each
/// dtype, K, N and order of W, the first time that such a product is large enough to gain (2²⁰ multiply-adds). The algorithms that cuBLASLt proposes
/// (at most 16, without split K and reductions) run over row counts of 1 to 4096, on random numbers with signed zeros, subnormals and infinities among
/// them. All bytes of each result are compared with ours. The first algorithm that differs nowhere serves every M from then on, 4096 rows at a time at
/// most. For up to 32 and 256 rows the first of four that are proposed for few rows, and differ nowhere up to there, serves. Without one ours does. So it changes no result, and a
/// probe that is not taken costs speed alone. A probe takes a minute or one algorithm more at the very most, and 512 MiB at most (else ours is kept),
/// during which the caller of the first such product waits; a device probes 64 products at most. Nothing is probed while a graph is recorded: products that are
/// not known by then are ours. The library is loaded when the first product is large enough. `CudaOptions::library_products`, or MILLRACE_CUBLASLT=off
/// in the environment, keeps ours everywhere. On a device that multiplies f32 as tf32 (`CudaOptions::tf32`) products of f32 are ours, unprobed.
namespace millrace {

/// For people, a line for each product that was probed on the device: "f32 [M, 256] x [256, 1024]: cuBLASLt, algorithm 3 of 7 …" or "…: ours, …"
/// with the reason. Empty where there was none, and on places without such a library. Thread-safe.
std::vector<std::string> library_products(Device& device);

/// Runs a product of that plan and matrix which is large enough to be probed, for callers that record graphs of smaller ones later. The first call for a
/// shape takes the time and the memory of a probe. Products with a k or n below 32, which are never the library's, are not run.
void probe_library_product(const GemmPlan& plan, const PackedMatrix& w, StreamRef stream);

/// "cuBLASLt 13.0.2", or why there is none here. Loads the library.
std::string library_products_status();

/// The arithmetic of products on CUDA devices, a line for each dtype that differs, with the id of its arithmetic. Empty in a build without CUDA.
std::vector<std::string> cuda_arithmetic_ids();

}  // namespace millrace
