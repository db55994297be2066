// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/mpi.h>

namespace millrace {

std::string mpi_status() { return "not in this build"; }

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  throw UnsupportedError("communicator '" + options.name +
                         "': this build has no MPI: build with MILLRACE_MPI=ON and the Debian packages libopenmpi-dev and openmpi-bin");
}

}  // namespace millrace
