// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include <millrace/kernels/cpu/conv_ending.h>

namespace millrace::cpu {

/// One plane of a depthwise convolution: out[r·columns + c] = Σ_{t1, t2} weights[t1·taps2 + t2] · plane[(r·stride + t1·dilation)·row + offsets[t2] + c]
/// (+ bias), then relu where asked, then the ending; the dot product of kernels/gemm.h, of one block of k. Two vectors behind the last element of the plane may be read.
template <class T>
struct DepthwiseCall {
  const T* plane = nullptr;
  std::int64_t row = 0;  ///< elements from a row of the plane to the next
  std::int64_t stride = 1, dilation = 1;
  const std::int64_t* offsets = nullptr;  ///< of each tap along a row
  std::int64_t taps1 = 1, taps2 = 1;
  const T* weights = nullptr;
  const T* bias = nullptr;  ///< one element, or null
  bool relu = false;
  ConvEnding<T> ending;
  T* out = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t first = 0,
               last =
                   std::numeric_limits<std::int64_t>::max();  ///< rows of the plane that are read; the others are zeros that change no sum
};

/// For the instruction set of this machine.
void depthwise_plane(const DepthwiseCall<float>& call);
void depthwise_plane(const DepthwiseCall<double>& call);

/// As many planes as a vector has lanes, a channel in each lane: element (r, c) of all planes is the vector at plane[(r·width + c)·lanes].
///   out[(r·columns + c)·lanes] = Σ_{t1, t2} weights[(t1·taps2 + t2)·lanes] · plane[((r·down.stride + t1·down.dilation)·width + c·along.stride + t2·along.dilation)·lanes]
/// (+ bias), then relu where asked, then the ending, with the bits of depthwise_plane.
template <class T>
struct DepthwiseLanes {
  struct Axis {
    std::int64_t stride = 1, dilation = 1, taps = 1;
  };
  const T* plane = nullptr;
  std::int64_t width = 0;
  Axis down, along;
  const T* weights = nullptr;
  const T* bias = nullptr;  ///< a vector, or null
  bool relu = false;
  ConvEnding<T> ending;
  T* out = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t first = 0, last = 0;  ///< as in DepthwiseCall
};
void depthwise_lanes(const DepthwiseLanes<float>& call);
void depthwise_lanes(const DepthwiseLanes<double>& call);

/// Rows of a plane on their way between zeros: element i of a row goes to place p = before + i, which lies at to[p % phases · phase_step + p / phases].
/// With one phase, zeros are written behind the last element of a row, less than a vector of them.
template <class T>
struct PlaneCopy {
  const T* from = nullptr;
  std::int64_t from_row = 0;  ///< elements from a row to the next
  std::int64_t rows = 0, columns = 0;
  std::int64_t before = 0, phases = 1, phase_step = 0;
  std::int64_t to_row = 0;  ///< elements from a row of `to` to the next
  T* to = nullptr;          ///< of the first row
};
void split_phases(const PlaneCopy<float>& copy);
void split_phases(const PlaneCopy<double>& copy);

/// Places of a panel that lie side by side in x: `count` of them from place `first` of the panel on, the first at x[start].
struct PlaceRun {
  std::int64_t first, start, count;
};
/// panel[k·width + run.first + i] = x[offsets[k] + run.start + i] for each k and each of `count` runs.
void pack_runs(const float* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
               float* panel);
void pack_runs(const double* x, const std::int64_t* offsets, std::int64_t k, const PlaceRun* runs, std::int64_t count, std::int64_t width,
               double* panel);

}  // namespace millrace::cpu
