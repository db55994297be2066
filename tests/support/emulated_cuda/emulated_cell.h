// SPDX-License-Identifier: Apache-2.0
// The code of a generated cell on the host: the compiler of this build makes a shared library of the same source, which is loaded here.
#pragma once

#include <string>

namespace millrace::cuda {
struct CellArguments;
class Warp;
}  // namespace millrace::cuda

namespace emulated_cell {

/// The work of one warp.
using Kernel = void (*)(const millrace::cuda::CellArguments&, millrace::cuda::Warp&);
/// `image`: the bytes of a shared library, which stays loaded.
Kernel load(const std::string& image);

}  // namespace emulated_cell
