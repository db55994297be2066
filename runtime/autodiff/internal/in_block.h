// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/builder/var.h>

namespace millrace::autodiff {

/// The builder calls of `make` append to block `block` of the program that is being built. Gives what `make` returns.
template <class F>
auto in_block(int block, F&& make) {
  const build::BlockGuard at(build::Guard::current(), block);
  return make();
}

}  // namespace millrace::autodiff
