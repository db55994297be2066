// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <millrace/tensor/device.h>

namespace millrace::cuda {

/// A CUDA device of one stream, for what is recorded: outside of a recording its stream is `stream` itself. Work that is enqueued while
/// something is recorded runs with the graph, not now; its memory belongs to the recording; a copy to the host, or one of the host's
/// own accord, is an UnsupportedError. One recording at a time, in the thread that asks for it.
class RecordingDevice : public Device {};

/// UnsupportedError where the build has no CUDA or `device` is none of CUDA's. `stream`: one of its ring, by index.
std::shared_ptr<RecordingDevice> make_recording_device(std::shared_ptr<Device> device, std::size_t stream);

}  // namespace millrace::cuda
