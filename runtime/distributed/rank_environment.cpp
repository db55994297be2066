// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/rank_environment.h>

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr int most_ranks = 1 << 16;

struct Launcher {
  const char* rank;
  const char* size;
  const char* on_this_machine;  ///< how many of the ranks are; may be null
};
constexpr Launcher launchers[] = {{"RANK", "WORLD_SIZE", nullptr},
                                  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                  {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}};

std::string text_of(const GetVariable& variable, const char* name) {
  const char* text = variable(name);
  return text == nullptr ? std::string() : std::string(text);
}

int number_of(const GetVariable& variable, const char* name, int least, int most) {
  const std::string text = text_of(variable, name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < least || value > most)
    throw ArgumentError(fmt::format("{}: expected a number from {} to {}, found '{}'", name, least, most, text));
  return value;
}

void find_meeting_place(const GetVariable& variable, const Launcher& launcher, RankEnvironment& made) {
  const std::string address = text_of(variable, "MASTER_ADDR");
  const bool told = launcher.on_this_machine != nullptr && variable(launcher.on_this_machine) != nullptr;
  if (!address.empty())
    made.address = address;
  else if (told && number_of(variable, launcher.on_this_machine, 1, most_ranks) != made.world_size)
    throw ArgumentError(fmt::format("MASTER_ADDR: expected the address of rank 0, found none, and {} says that {} of {} ranks are here",
                                    launcher.on_this_machine, text_of(variable, launcher.on_this_machine), made.world_size));
  if (variable("MASTER_PORT") != nullptr) made.port = static_cast<std::uint16_t>(number_of(variable, "MASTER_PORT", 1, 65535));
}

}  // namespace

std::optional<RankEnvironment> rank_environment(const GetVariable& variable) {
  for (const Launcher& launcher : launchers) {
    const bool rank = variable(launcher.rank) != nullptr, size = variable(launcher.size) != nullptr;
    if (!rank && !size) continue;
    if (rank != size)
      throw ArgumentError(
          fmt::format("expected {} and {} together, found {} alone", launcher.rank, launcher.size, rank ? launcher.rank : launcher.size));
    RankEnvironment made;
    made.source = fmt::format("{} and {}", launcher.rank, launcher.size);
    made.world_size = number_of(variable, launcher.size, 1, most_ranks);
    made.rank = number_of(variable, launcher.rank, 0, made.world_size - 1);
    find_meeting_place(variable, launcher, made);
    return made;
  }
  return std::nullopt;
}

std::optional<RankEnvironment> rank_environment() {
  return rank_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace millrace
