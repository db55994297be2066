// SPDX-License-Identifier: Apache-2.0
// The work of each block in a sequence of LSTM steps: integers and an estimate, no device.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/cuda/recurrent_costs.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using Group = LstmSchedule::Group;
using cuda::lstm_pieces;

using Costs = cuda::RecurrentCosts;

/// Whether tensor cores make the products, in the steps of mma.cuh.
bool is_by_mma(const LstmDesc& desc, const LstmLimits& limits) { return desc.dtype != DType::f32 || limits.tf32; }

bool can_hold(const LstmDesc& desc, const LstmLimits& limits) {
  return limits.registers && (desc.dtype == DType::f16 || desc.dtype == DType::bf16) && cuda::has_usual_functions(desc);
}

struct Work {
  const LstmDesc& desc;
  bool tf32, by_mma;
  std::int64_t unit_blocks, chunks, chains, tiles;

  Work(const LstmDesc& of, std::int64_t rows, const LstmLimits& limits)
      : desc(of),
        tf32(limits.tf32),
        by_mma(is_by_mma(of, limits)),
        unit_blocks(lstm_pieces(of.hidden, 8)),
        chunks(lstm_pieces(of.hidden, cuda::lstm_chunk(of.dtype))),
        chains(lstm_pieces(of.hidden, cuda::lstm_chain(of.dtype, limits.tf32))),
        tiles(std::max<std::int64_t>(1, lstm_pieces(rows, 8))) {}

  /// The blocks of units that one block has, and the tiles of rows that one group has.
  std::int64_t units_of(const LstmSchedule& of) const { return lstm_pieces(unit_blocks, of.blocks); }
  std::int64_t tiles_of(const LstmSchedule& of) const { return lstm_pieces(tiles, of.groups); }

  /// How often the warps of a block come by: each slab of rows that is staged has its own products, which the warps share.
  double rounds_of(const LstmSchedule& of) const {
    const std::int64_t at_once = of.warps / of.ways, mine = tiles_of(of);
    const auto rounds = [&](std::int64_t staged) { return lstm_pieces(units_of(of) * lstm_pieces(staged, of.wide), at_once); };
    const std::int64_t rest = mine % of.staged;
    return static_cast<double>(mine / of.staged * rounds(of.staged) + (rest > 0 ? rounds(rest) : 0));
  }

  /// With weights in registers.
  double estimate_held(const LstmSchedule& of) const {
    const auto mine = static_cast<double>(tiles_of(of));
    const cuda::HeldParts parts = cuda::held_parts(desc.hidden, of.blocks, tiles_of(of), of.staged, std::int64_t{of.held} * of.warps);
    const std::int64_t items = parts.units * tiles_of(of);
    const auto held = static_cast<double>(std::min<std::int64_t>(lstm_pieces(parts.pairs, of.warps), of.held));
    const auto shared = static_cast<double>(std::max<std::int64_t>(0, parts.pairs - std::int64_t{of.held} * of.warps));
    const std::int64_t twos = tiles_of(of) / 2, ones = tiles_of(of) % 2;
    const double product = static_cast<double>(twos + ones) * (Costs::held_pass + shared * Costs::shared_pair) +
                           (static_cast<double>(twos) * Costs::two_pairs + static_cast<double>(ones) * Costs::one_pair) * held;
    const double chained = static_cast<double>(chains) * Costs::held_chain;
    const double pointwise =
        items * 2 <= of.warps ? Costs::one_row + chained : static_cast<double>(lstm_pieces(items, of.warps)) * (Costs::two_rows + chained);
    const double slabs = std::ceil(mine / of.staged);
    double rest = Costs::held_block;
    if (of.group == Group::cluster) rest = Costs::held_cluster + Costs::held_peer * of.blocks + mine * Costs::held_cluster_tile;
    if (of.group == Group::grid) rest = Costs::held_grid + mine * Costs::held_grid_tile;
    return (product + pointwise + slabs * Costs::held_slab + rest) * Costs::clock;
  }

  double estimate(const LstmSchedule& of) const {
    if (of.held > 0) return estimate_held(of);
    const auto mine = static_cast<double>(tiles_of(of));
    const auto units = static_cast<double>(units_of(of));
    const auto products = units * mine * static_cast<double>(chunks);
    const double rounds = rounds_of(of);
    const double chain = static_cast<double>(lstm_pieces(chains, of.ways)) * static_cast<double>(std::min(chunks * chains, chunks)) /
                         static_cast<double>(chains) * (by_mma ? Costs::mma_latency : 8 * Costs::fma_latency) * of.wide;
    const double arithmetic = std::max(products * (by_mma ? Costs::mma : Costs::fma), rounds * chain + Costs::product_start) * Costs::clock;
    const double staging = mine * static_cast<double>(chunks * cuda::lstm_state_bytes) * Costs::cache_rate +
                           static_cast<double>(lstm_pieces(tiles_of(of), of.staged)) * Costs::second_cache;
    const double streaming = units * static_cast<double>(chunks - of.resident) * std::ceil(mine / of.wide) *
                             static_cast<double>(cuda::lstm_weight_bytes) * Costs::cache_rate;
    const double meeting = of.group == Group::block ? Costs::block : of.group == Group::cluster ? Costs::cluster : Costs::grid;
    const double pointwise = rounds * Costs::pointwise(of.wide, cuda::lstm_approximates(desc.dtype));
    const double outputs = Costs::outputs(of.wide);
    const double leaving = rounds > 1 ? meeting + rounds * outputs : std::max(meeting, outputs);
    return Costs::asking + leaving + staging + streaming + arithmetic + pointwise;
  }
};

/// Chooses the contents of shared memory for the given rows of a warp and staged rows. False when not even one piece of h fits.
bool fill_shared(LstmSchedule& made, const Work& work, const LstmLimits& limits) {
  const std::int64_t units = work.units_of(made);
  const std::int64_t tiles = std::min<std::int64_t>(work.tiles_of(made), made.staged);
  made.ways = 1;
  while (made.wide == 1 && made.ways * 2 <= made.warps && made.ways < work.chains && units * tiles * made.ways * 2 <= made.warps)
    made.ways *= 2;
  const auto fits = [&] {
    return cuda::lstm_shared_bytes(made, work.desc.dtype, work.tf32, work.desc.hidden, work.tiles) <= limits.shared_bytes;
  };
  made.resident = work.chunks;
  while (!fits() && made.resident > 0) --made.resident;
  if (!fits() && made.ways > 1) made.ways = 1;
  return fits();
}

/// The rest of a schedule whose blocks and groups are chosen: as many rows staged as there are, or fewer so that more weights stay, and one tile or
/// four for a warp, which then loads a weight once for four. The cheapest, or none when not even one piece of h fits.
std::optional<LstmSchedule> complete(const LstmSchedule& chosen, const Work& work, const LstmLimits& limits) {
  constexpr std::int64_t most_staged = 32;
  const std::int64_t mine = std::min(work.tiles_of(chosen), most_staged);
  std::optional<LstmSchedule> best;
  for (const int wide : {4, 1}) {
    if (wide > 1 && (!work.by_mma || mine < wide)) continue;
    const auto all = static_cast<int>(lstm_pieces(mine, wide)) * wide;
    for (int staged = all; staged >= wide; staged = staged == wide ? 0 : std::max(wide, staged / 2 / wide * wide)) {
      LstmSchedule made = chosen;
      made.wide = wide;
      made.staged = staged;
      if (!fill_shared(made, work, limits)) continue;
      made.step_ns = work.estimate(made);
      if (!best || made.step_ns < best->step_ns) best = made;
    }
  }
  return best;
}

/// Completes a schedule with weights in registers.
std::optional<LstmSchedule> complete_held(const LstmSchedule& chosen, const Work& work, const LstmLimits& limits) {
  std::optional<LstmSchedule> best;
  for (const int held : {1, 2})
    for (std::int64_t staged = work.tiles_of(chosen); staged > 0; staged /= 2) {
      LstmSchedule made = chosen;
      made.held = held;
      made.staged = static_cast<int>(staged);
      if (cuda::lstm_shared_bytes(made, work.desc.dtype, work.tf32, work.desc.hidden, work.tiles) > limits.shared_bytes) continue;
      made.step_ns = work.estimate(made);
      if (!best || made.step_ns < best->step_ns) best = made;
    }
  return best;
}

std::string_view name_of(Group group) { return group == Group::block ? "block" : group == Group::cluster ? "cluster" : "grid"; }

std::vector<LstmSchedule> candidates(const Work& work, const LstmLimits& limits) {
  std::vector<LstmSchedule> made;
  const auto add = [&](Group group, std::int64_t blocks, std::int64_t groups) {
    LstmSchedule one;
    one.group = group;
    one.blocks = static_cast<int>(blocks);
    one.groups = static_cast<int>(std::min(groups, work.tiles));
    if (one.groups < 1 || one.blocks < 1) return;
    if (can_hold(work.desc, limits) && blocks <= work.chunks)
      if (const std::optional<LstmSchedule> whole = complete_held(one, work, limits)) made.push_back(*whole);
    if (const std::optional<LstmSchedule> whole = complete(one, work, limits)) made.push_back(*whole);
  };
  add(Group::block, 1, limits.multiprocessors);
  for (const auto& [blocks, most] : limits.clusters)
    if (blocks <= work.unit_blocks) add(Group::cluster, blocks, most);
  for (std::int64_t groups = 1; limits.cooperative && groups <= 16; groups *= 2) {
    const std::int64_t blocks = std::min<std::int64_t>(limits.multiprocessors / groups, work.unit_blocks);
    if (blocks > 1) add(Group::grid, blocks, groups);
    // Weights in registers go by 16 units: as many of these for each block.
    const std::int64_t even = lstm_pieces(work.chunks, lstm_pieces(work.chunks, std::max<std::int64_t>(1, blocks)));
    if (even > 1 && even != blocks) add(Group::grid, even, groups);
  }
  return made;
}

}  // namespace

std::int64_t cuda::lstm_shared_bytes(const LstmSchedule& schedule, DType dtype, bool tf32, std::int64_t hidden, std::int64_t tiles) {
  if (schedule.held > 0)
    return held_parts(hidden, schedule.blocks, lstm_pieces(tiles, schedule.groups), schedule.staged,
                      std::int64_t{schedule.held} * schedule.warps)
        .bytes;
  const std::int64_t units = lstm_pieces(lstm_pieces(hidden, 8), schedule.blocks);
  const std::int64_t chunks = lstm_pieces(hidden, lstm_chunk(dtype));
  const std::int64_t chains = lstm_pieces(hidden, lstm_chain(dtype, tf32));
  const std::int64_t sums = schedule.ways > 1 ? chains * (schedule.warps / schedule.ways) * 32 * 8 * 4 : 0;
  return units * schedule.resident * lstm_weight_bytes + schedule.staged * chunks * lstm_state_bytes + sums;
}

std::string LstmSchedule::to_string() const {
  if (held > 0)
    return fmt::format("{} group{} of {} block{} ({}), {} warps a block, {} chains a warp in registers, {} rows at once", groups,
                       groups == 1 ? "" : "s", blocks, blocks == 1 ? "" : "s", name_of(group), warps, held, 8 * staged);
  return fmt::format("{} group{} of {} block{} ({}), {} warps a block, {} to a product, {} rows a warp, {} rows staged, {} pieces resident",
                     groups, groups == 1 ? "" : "s", blocks, blocks == 1 ? "" : "s", name_of(group), warps, ways, 8 * wide, 8 * staged,
                     resident);
}

LstmLimits LstmLimits::without(int reserved) const {
  LstmLimits left = *this;
  left.multiprocessors = std::max(1, multiprocessors - std::max(0, reserved));
  for (auto& [blocks, most] : left.clusters) most = std::min(most, left.multiprocessors / blocks);
  std::erase_if(left.clusters, [](const auto& one) { return one.second < 1; });
  return left;
}

LstmLimits LstmLimits::share(int among) const {
  LstmLimits part = *this;
  part.multiprocessors = std::max(1, multiprocessors / among);
  for (auto& [blocks, most] : part.clusters) most = std::min(most / among, part.multiprocessors / blocks);
  std::erase_if(part.clusters, [](const auto& one) { return one.second < 1; });
  return part;
}

namespace {

/// Nanoseconds of a step of so many sequences. Groups run one behind the other where there is no room for all.
double time_of(const LstmSchedule& schedule, int sequences, const LstmLimits& limits) {
  int room = limits.multiprocessors / schedule.blocks;
  if (schedule.group == Group::cluster)
    for (const auto& [blocks, most] : limits.clusters)
      if (blocks == schedule.blocks) room = most;
  return schedule.step_ns * std::max(1.0, static_cast<double>(sequences) * schedule.groups / room);
}

/// The schedule of a sequence that is alone.
LstmSchedule schedule_one(const LstmDesc& desc, std::int64_t rows, const LstmLimits& limits) {
  const Work work(desc, rows, limits);
  const std::vector<LstmSchedule> all = candidates(work, limits);
  if (all.empty())
    throw UnsupportedError(
        fmt::format("lstm sequence: expected shared memory for h of {} units, found {} bytes a block", desc.hidden, limits.shared_bytes));
  const auto cheaper = [](const LstmSchedule& a, const LstmSchedule& b) { return a.step_ns < b.step_ns; };
  LstmSchedule best = *std::min_element(all.begin(), all.end(), cheaper);
  const std::int64_t own = work.units_of(best) * work.chunks * cuda::lstm_weight_bytes;
  best.reason = fmt::format("H {} × {} rows of {}: {}; ", desc.hidden, rows,
                            limits.tf32 && desc.dtype == DType::f32 ? "tf32" : name_of(desc.dtype), best.to_string());
  best.reason += best.held > 0                  ? std::string("weights stay in registers and shared memory")
                 : best.resident == work.chunks ? fmt::format("a block's {} bytes of weights stay in shared memory", own)
                                                : fmt::format(
                                                      "of a block's {} bytes of weights {} stay in shared memory, the rest is read each "
                                                      "step",
                                                      own, work.units_of(best) * best.resident * cuda::lstm_weight_bytes);
  best.reason += fmt::format("; estimated {:.0f} ns a step", best.step_ns);
  for (const Group group : {Group::block, Group::cluster, Group::grid}) {
    const LstmSchedule* other = nullptr;
    for (const LstmSchedule& one : all)
      if (one.group == group && (other == nullptr || cheaper(one, *other))) other = &one;
    if (group != best.group && other != nullptr) best.reason += fmt::format(", by {} {:.0f}", name_of(group), other->step_ns);
  }
  return best;
}

}  // namespace

LstmSchedule schedule_lstm(const LstmDesc& desc, std::int64_t rows, const LstmLimits& limits, int beside) {
  LstmSchedule best = schedule_one(desc, rows, limits);
  constexpr int most_shares = 8;
  for (int among = 2; among <= std::min(beside, most_shares); ++among) {
    LstmSchedule other = schedule_one(desc, rows, limits.share(among));
    if (time_of(other, beside, limits) < time_of(best, beside, limits)) best = std::move(other);
  }
  return best;
}

void check_schedule(const LstmSchedule& schedule, const LstmDesc& desc, const LstmLimits& limits, std::int64_t rows) {
  const auto refuse = [&](const std::string& why) {
    throw ArgumentError("lstm sequence: expected " + why + ", found " + schedule.to_string());
  };
  if (schedule.blocks < 1 || schedule.groups < 1 || schedule.resident < 0 ||
      schedule.resident > lstm_pieces(desc.hidden, cuda::lstm_chunk(desc.dtype)))
    refuse("blocks, groups and as many pieces as there are");
  if (schedule.warps < 1 || schedule.warps > 8 || schedule.ways < 1 || schedule.warps % schedule.ways != 0)
    refuse("1 to 8 warps, and ways that divide them");
  if ((schedule.wide != 1 && schedule.wide != 4) || (schedule.wide > 1 && (schedule.ways > 1 || !is_by_mma(desc, limits))))
    refuse("8 rows a warp, or 32 of a narrow dtype or tf32 with one way");
  if (schedule.staged < schedule.wide || schedule.staged % schedule.wide != 0) refuse("a multiple of a warp's rows to be staged");
  if (schedule.held < 0 || schedule.held > 2) refuse("0 to 2 chains of a warp in registers");
  if (schedule.held > 0 && (!can_hold(desc, limits) || schedule.warps != cuda::held_warps || schedule.ways > 1 || schedule.wide > 1 ||
                            schedule.blocks > lstm_pieces(desc.hidden, 16)))
    refuse(
        "no weights in registers, but for f16 and bf16, the usual functions, 8 warps, no more than a block "
        "each 16 units");
  if (cuda::lstm_shared_bytes(schedule, desc.dtype, limits.tf32, desc.hidden, lstm_pieces(rows, 8)) > limits.shared_bytes)
    refuse(fmt::format("no more than {} bytes of shared memory", limits.shared_bytes));
  if (schedule.group == Group::block && schedule.blocks != 1) refuse("one block");
  const auto known = [&](const auto& one) { return one.first == schedule.blocks && schedule.groups <= one.second; };
  if (schedule.group == Group::cluster && std::none_of(limits.clusters.begin(), limits.clusters.end(), known))
    refuse("a size of cluster that the device has, and no more than are there at once");
  if (schedule.group == Group::grid && (!limits.cooperative || std::int64_t{schedule.blocks} * schedule.groups > limits.multiprocessors))
    refuse(fmt::format("no more than {} blocks that wait for one another", limits.cooperative ? limits.multiprocessors : 0));
}

}  // namespace millrace
