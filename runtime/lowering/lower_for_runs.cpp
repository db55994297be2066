// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/lower_for_runs.h>

#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/lowering/join_arithmetic.h>
#include <millrace/runtime/lowering/join_attention.h>
#include <millrace/runtime/lowering/join_bytes.h>
#include <millrace/runtime/lowering/join_convolutions.h>
#include <millrace/runtime/lowering/join_filters.h>
#include <millrace/runtime/lowering/join_gathers.h>
#include <millrace/runtime/lowering/join_integers.h>
#include <millrace/runtime/lowering/join_matrices.h>
#include <millrace/runtime/lowering/join_picks.h>
#include <millrace/runtime/lowering/join_windows.h>
#include <millrace/runtime/lowering/move_bytes.h>
#include <millrace/runtime/lowering/skip_repacking.h>
#include <millrace/runtime/lowering/skip_views.h>
#include <millrace/runtime/program/fold_constants.h>

namespace millrace {

bool lower_for_runs(Program& program, const Place& place, bool join_loops) {
  fold_constants(program);
  bool joined = false;
  if (join_loops && place.is_cpu()) {
    joined = join_filters(program);
    joined = join_matrices(program) || joined;
  }
  skip_views(program);
  if (place.is_cpu()) join_picks(program);
  drop_unread(program);
  if (place.is_cpu()) {
    join_windows(program);
    join_attention(program);
    take_integers(program);
    take_byte_sums(program);
    join_weighted_gathers(program);
    drop_unread(program);
    join_arithmetic(program);
    move_bytes(program);
    join_bytes(program);
    join_gathers(program);
    join_integers(program);
    join_convolutions(program);
  }
  skip_repacking(program);
  return joined;
}

}  // namespace millrace
