// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's runtime as the sources below with_cuda/ use, on the host: each stream is a thread that takes what was enqueued in order, so
// that what they do with streams, events, memory and words runs where there is no device, under sanitizers too. Written from CUDA's
// documentation. Kernels are loops (each_index.cuh), which the caller enqueues through `emulated::enqueue`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "any_order.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaHostAllocPortable = 1,
                          cudaHostAllocMapped = 2;
inline constexpr unsigned long long cudaEnableDefault = 0;

struct EmulatedStream;
struct EmulatedEvent;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;

struct EmulatedGraph;
struct EmulatedNode;
struct EmulatedExec;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphNode_t = EmulatedNode*;
using cudaGraphExec_t = EmulatedExec*;
using cudaGraphConditionalHandle = unsigned long long;
struct cudaGraphEdgeData;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaGraphNodeType { cudaGraphNodeTypeKernel, cudaGraphNodeTypeConditional = 13 };
enum cudaGraphConditionalNodeType { cudaGraphCondTypeIf, cudaGraphCondTypeWhile };
inline constexpr unsigned cudaGraphCondAssignDefault = 1;
struct cudaConditionalNodeParams {
  cudaGraphConditionalHandle handle;
  cudaGraphConditionalNodeType type;
  unsigned size;
  cudaGraph_t* phGraph_out;
};
struct cudaGraphNodeParams {
  cudaGraphNodeType type;
  cudaConditionalNodeParams conditional;
};

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t code);
const char* cudaGetErrorString(cudaError_t code);
cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
struct cudaFuncAttributes {
  std::size_t sharedSizeBytes;
};
/// Kernels are loops here: none lists itself.
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaErrorInvalidValue; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result);

// graph.cpp
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph, unsigned value, unsigned flags);
cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges,
                             std::size_t count, cudaGraphNodeParams* params);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData* edges, std::size_t count, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value);

namespace emulated {

/// Where a stream's work goes while it is captured: null for all others.
cudaGraph_t captured_by(cudaStream_t stream);
void add_node(cudaGraph_t graph, std::function<void()> work);
/// The number of graphs that were instantiated so far, and of nodes of graphs that have run.
std::size_t instantiated();
std::size_t nodes_run();
/// Sets the result of the next launches of graphs, and of kernels whose blocks meet.
void fail_launches(cudaError_t code);
void refuse_grids(cudaError_t code);
cudaError_t grids_give();

/// A kernel's launch on the emulated runtime.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// The same for one that says, by the function it is given, when all of its blocks run: the launch-completion event.
void enqueue(cudaStream_t stream, cudaEvent_t begun, std::function<void(const std::function<void()>&)> work);
/// Whether a kernel trapped on the stream's device.
cudaError_t status_of(cudaStream_t stream);
/// Whether the runtime gave this memory out: devices see it then.
bool is_of_cuda(const void* pointer);
/// stream_words.cpp: cuStreamWriteValue64 and cuStreamWaitValue64, what they say from now on, and how often a stream was asked to wait.
void* write_entry();
void* wait_entry();
void answer_writes(cudaError_t code);
void answer_waits(cudaError_t code);
std::size_t waits_enqueued();
/// For a kernel: it ends as one that trapped does. Nothing runs on its device any more, and every call that asks says so, in this process for
/// ever.
void trap();
/// Lets no stream finish a piece of work before it took so many microseconds.
void slow_down(int microseconds);

}  // namespace emulated
