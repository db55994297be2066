// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/stream.h>

namespace millrace {

void StreamRef::defer(std::unique_ptr<Stream::Work> work) const {
  if (origin_ != nullptr) work->origin = origin_->describe();
  stream_->push(std::move(work));
}

}  // namespace millrace
