// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace millrace {

/// The rank of a process, the number of ranks, and the place where they meet, as its environment says.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  std::string address = "127.0.0.1";  ///< of rank 0
  std::uint16_t port = 29500;
  std::string source;  ///< the variables that said so: "RANK and WORLD_SIZE"
};

/// A variable of the environment; null: not set.
using GetVariable = std::function<const char*(const char*)>;

/// From RANK and WORLD_SIZE; else OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI's mpirun); else PMI_RANK and PMI_SIZE (MPICH and
/// others): MPI itself is not needed. MASTER_ADDR and MASTER_PORT say where rank 0 listens; without an address it is this machine, which is
/// refused where the launcher says that not all ranks are on it. Nothing when none of the pairs is set. ArgumentError names the variable,
/// what was expected and what was found.
std::optional<RankEnvironment> rank_environment(const GetVariable& variable);
/// The environment of this process.
std::optional<RankEnvironment> rank_environment();

}  // namespace millrace
