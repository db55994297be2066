// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include <millrace/streaming/config/stream_config.h>
#include <millrace/tensor/lod_tensor.h>

namespace millrace::app {

/// The files of `--input NAME=FILE` with the levels of `--lod NAME=[[…]]`. A .wav becomes the rows that a server would make of it, through
/// the [audio] of `config`; anything else is read as .npy. UsageError for flags that are malformed; ArgumentError, LoDError and those of
/// the readers name the file.
std::map<std::string, LoDTensor> read_feeds(const std::vector<std::string>& inputs, const std::vector<std::string>& lods,
                                            const StreamConfig& config);

}  // namespace millrace::app
