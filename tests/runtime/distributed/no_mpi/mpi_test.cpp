// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/mpi.h>

#include <doctest/doctest.h>

using namespace millrace;

TEST_CASE("a build without MPI says so") {
  CHECK(mpi_status() == "not in this build");
  CHECK_THROWS_WITH_AS(make_mpi_communicator(),
                       "communicator 'mpi': this build has no MPI: build with MILLRACE_MPI=ON and the Debian packages libopenmpi-dev and "
                       "openmpi-bin",
                       UnsupportedError);
}
