// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cpu/cast.h>

namespace millrace::cpu {

/// Fills the room that `internal::wide_room` made for `x`, and the way back; nothing when they are the same.
inline void widen(const Tensor& x, const Tensor& room, ThreadTeam& team) {
  if (x.dtype() != room.dtype()) cast(x, room, team);
}
inline void narrow(const Tensor& room, const Tensor& out, ThreadTeam& team) {
  if (room.dtype() != out.dtype()) cast(room, out, team);
}

}  // namespace millrace::cpu
