// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/placement.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/lowering/array_classes.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace::detail {
namespace {

constexpr const char* sub_blocks[] = {"sub_block", "then_block", "else_block"};

/// Calls `visit(op)` for an op and all ops of its blocks, and `hand_back(var)` for what these blocks hand back.
template <class Visit, class HandBack>
void walk(const Program& program, const Op& op, const Visit& visit, const HandBack& hand_back) {
  visit(op);
  for (const char* attribute : sub_blocks) {
    if (!op.attributes.has(attribute)) continue;
    const Block& block = program.block(op.attributes.get<BlockId>(attribute).index);
    for (const Op& inner : block.ops) walk(program, inner, visit, hand_back);
    for (const VarId result : block.results) hand_back(result);
  }
}

/// The arrays that one op of block 0 touches, by class.
struct Touched {
  std::set<std::size_t> reads, writes, makes;
};

/// Ops that must be on one rank, as sets: each op knows another one of its set, or itself.
class Units {
 public:
  explicit Units(std::size_t ops) : parent_(ops), why_(ops) { std::iota(parent_.begin(), parent_.end(), std::size_t{0}); }
  std::size_t of(std::size_t op) const {
    while (parent_[op] != op) op = parent_[op];
    return op;
  }
  void unite(std::size_t a, std::size_t b, const std::string& why) {
    a = of(a);
    b = of(b);
    if (a == b) return;
    parent_[std::max(a, b)] = std::min(a, b);
    std::string& said = why_[std::min(a, b)];
    if (said.empty()) said = why_[std::max(a, b)].empty() ? why : why_[std::max(a, b)];
  }
  /// The reason for the place of a set.
  std::string& why(std::size_t op) { return why_[of(op)]; }

 private:
  std::vector<std::size_t> parent_;
  std::vector<std::string> why_;
};

class Placer {
 public:
  Placer(const Program& program, int ranks)
      : program_(program), ranks_(ranks), ops_(program.block(0).ops), arrays_(program), uses_(uses_of_ops(program)), units_(ops_.size()) {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
    for (const Op& op : ops_) touched_.push_back(touch(op));
    for (const Program::Port& port : program.inputs()) fed_.insert(port.var);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (const std::size_t array : touched_[i].writes) writers_[array].push_back(i);
      for (const std::size_t array : touched_[i].makes) owners_[array].push_back(i);
    }
  }

  Placement run() {
    keep_together();
    for (std::size_t i = 0; i < ops_.size(); ++i) members_[units_.of(i)].push_back(i);
    find_loops();
    find_stages();
    Placement made;
    made.rank_of_op.assign(ops_.size(), unplaced);
    deal_loops(made);
    place_rest(made);
    return made;
  }

 private:
  static constexpr int unplaced = -1;

  std::size_t class_of(VarId var) const { return arrays_.id(var); }
  bool is_array(VarId var) const { return var != no_var && program_.var(var).type.is_array(); }

  Touched touch(const Op& op) const {
    Touched made;
    walk(
        program_, op,
        [&](const Op& inner) {
          for (const VarId input : inner.inputs)
            if (is_array(input)) made.reads.insert(class_of(input));
          for (const VarId output : inner.outputs)
            if (is_array(output)) made.makes.insert(class_of(output));
          const auto& stores = program_.registry().at(inner.type).stores;
          if (stores) made.writes.insert(class_of(inner.inputs.at(stores->first)));
          // A loop may write a carried array under another name.
          if (inner.type == "while")
            for (const VarId input : inner.inputs)
              if (is_array(input)) made.writes.insert(class_of(input));
        },
        [&](VarId result) {
          if (is_array(result)) made.makes.insert(class_of(result));
        });
    return made;
  }

  // ---- What stays together ----

  /// Whether all slots of all arrays of a class are numbered from the start: such arrays may go to other ranks.
  bool is_fixed(std::size_t array, VarId var) const {
    const std::vector<VarId>& makers = arrays_.makers(var);
    return !makers.empty() && std::all_of(makers.begin(), makers.end(), [&](VarId maker) {
      const auto made = makers_.find(maker);
      if (made == makers_.end()) return arrays_.home(array) != 0;  // an array of a loop's own, or one that is fed
      const Attributes& attributes = ops_[made->second].attributes;
      return ops_[made->second].type != "tensor_array" || (!attributes.has("window") && !attributes.get_or("growable", false));
    });
  }

  void keep_together() {
    std::map<std::size_t, VarId> seen;  // a var of each class that block 0 knows
    for (std::size_t var = 0; var < program_.vars().size(); ++var)
      if (is_array(static_cast<VarId>(var)) && program_.var(static_cast<VarId>(var)).block == 0)
        seen.emplace(class_of(static_cast<VarId>(var)), static_cast<VarId>(var));
    for (const auto& [array, var] : seen) {
      const std::string& name = program_.var(var).name;
      const bool fixed = is_fixed(array, var);
      std::vector<std::size_t> together = owners_[array];
      for (const std::size_t writer : writers_[array]) together.push_back(writer);
      const std::size_t last = together.empty() ? 0 : *std::max_element(together.begin(), together.end());
      for (std::size_t op = 0; op < ops_.size(); ++op)
        if (touched_[op].reads.contains(array) && (!fixed || op < last)) together.push_back(op);
      const std::string why = fixed ? fmt::format("they work on array '{}' together", name)
                                    : fmt::format("array '{}' has no fixed size, and stays where it is made", name);
      for (const std::size_t op : together) units_.unite(together[0], op, why);
    }
    for (const Program::Port& port : program_.inputs()) {
      if (!is_array(port.var)) continue;
      for (std::size_t op = 0; op < ops_.size(); ++op) {
        if (!touched_[op].reads.contains(class_of(port.var)) && !touched_[op].makes.contains(class_of(port.var))) continue;
        units_.why(op) = fmt::format("it works on array '{}', which is fed on rank 0", port.name);
        at_home_.insert(op);
      }
    }
  }

  // ---- Loops ----

  static bool is_loop(const Program& program, const Op& op) {
    bool found = false;
    walk(program, op, [&](const Op& inner) { found = found || inner.type == "while"; }, [](VarId) {});
    return found;
  }

  /// Weights and literals that an iteration reads, and inputs of known extents, as which a trainer feeds weights.
  std::set<VarId> weights_read(const Op& op) const {
    std::set<VarId> weights;
    walk(
        program_, op,
        [&](const Op& inner) {
          for (const VarId input : inner.inputs)
            if (input != no_var && (program_.constant(input) != nullptr || (fed_.contains(input) && program_.var(input).type.is_static())))
              weights.insert(input);
        },
        [](VarId) {});
    return weights;
  }
  std::int64_t elements_of(VarId weight) const { return program_.var(weight).type.shape->elements(); }

  std::int64_t weights_of(const Op& op) const {
    std::int64_t sum = 1;
    for (const VarId var : weights_read(op)) sum += elements_of(var);
    return sum;
  }

  std::string name_of(const Op& op) const {
    const std::string first = op.outputs.empty() ? op.label : program_.var(op.outputs[0]).name;
    const int block = op.attributes.get<BlockId>(op.type == "while" ? "sub_block" : "then_block").index;
    return fmt::format("{} {}{}", op.type, block, first.empty() ? "" : " (" + first + ")");
  }

  void find_loops() {
    std::map<std::size_t, std::size_t> place;
    std::vector<int> count;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (!is_loop(program_, ops_[i])) continue;
      const auto [at, fresh] = place.emplace(units_.of(i), loops_.size());
      if (fresh) {
        loops_.push_back({{}, name_of(ops_[i]), 0, 0, 0, units_.why(i)});
        first_op_.push_back(i);
        count.push_back(0);
      }
      ++count[at->second];
      Partition::Loop& loop = loops_[at->second];
      for (const char* attribute : sub_blocks)
        if (ops_[i].attributes.has(attribute)) loop.blocks.push_back(ops_[i].attributes.get<BlockId>(attribute).index);
      loop.weights += weights_of(ops_[i]);
    }
    // Alone in its set, a loop is not kept anywhere by the ops that make its arrays.
    for (std::size_t i = 0; i < loops_.size(); ++i)
      if (count[i] < 2 && !is_at_home(first_op_[i])) loops_[i].kept.clear();
  }

  bool is_at_home(std::size_t op) const {
    return std::any_of(at_home_.begin(), at_home_.end(), [&](std::size_t kept) { return units_.of(kept) == units_.of(op); });
  }

  /// A loop is behind those whose results it needs whole, and beside those whose slots it reads.
  void find_stages() {
    std::vector<int> begins(ops_.size(), 0), ends(ops_.size(), 0);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (const VarId var : uses_[i]) {
        if (const auto maker = makers_.find(var); maker != makers_.end()) begins[i] = std::max(begins[i], ends[maker->second]);
        if (!is_array(var) || ops_[i].type == "tensor_array_size") continue;
        for (const std::size_t writer : writers_[class_of(var)]) {
          if (writer >= i) continue;
          const bool beside = ops_[i].type == "while" && ops_[writer].type == "while";
          begins[i] = std::max(begins[i], beside ? begins[writer] : ends[writer]);
        }
      }
      ends[i] = begins[i] + (is_loop(program_, ops_[i]) ? 1 : 0);
    }
    for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i].stage = begins[first_op_[i]];
  }

  /// The loop of an earlier stage with which a loop shares most elements of its matrices, as a backward loop does with its forward loop, whose kept
  /// values it reads; itself where there is none.
  std::size_t companion_of(std::size_t loop) const {
    const auto matrices = [&](std::size_t of) {
      std::set<VarId> found = weights_read(ops_[first_op_[of]]);
      std::erase_if(found, [&](VarId var) { return program_.var(var).type.rank() < 2; });
      return found;
    };
    const std::set<VarId> own = matrices(loop);
    std::size_t best = loop;
    std::int64_t most = 0;
    for (std::size_t other = 0; other < loops_.size(); ++other) {
      if (loops_[other].stage >= loops_[loop].stage) continue;
      std::int64_t shared = 0;
      for (const VarId var : matrices(other)) shared += own.contains(var) ? elements_of(var) : 0;
      if (shared > most) {
        most = shared;
        best = other;
      }
    }
    return best;
  }

  /// Neighbours, in at most `groups` groups of about the same weight: for each loop the number of its group.
  static std::vector<std::size_t> in_groups(const std::vector<std::int64_t>& weights, std::size_t groups) {
    const auto cut = [&](std::int64_t most) {
      std::vector<std::size_t> made;
      std::size_t group = 0;
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::size_t left = weights.size() - i;
        if (sum > 0 && (sum + weights[i] > most || left < groups - group)) {
          ++group;
          sum = 0;
        }
        sum += weights[i];
        made.push_back(group);
      }
      return made;
    };
    std::int64_t least = *std::max_element(weights.begin(), weights.end());
    std::int64_t most = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    while (least < most) {
      const std::int64_t middle = least + (most - least) / 2;
      if (cut(middle).back() < groups)
        most = middle;
      else
        least = middle + 1;
    }
    return cut(most);
  }

  void deal_loops(Placement& made) {
    std::vector<std::int64_t> load(static_cast<std::size_t>(ranks_), 0);
    std::map<int, std::vector<std::size_t>> stages;
    for (std::size_t i = 0; i < loops_.size(); ++i) {
      if (is_at_home(first_op_[i]))
        load[0] += loops_[i].weights;
      else
        stages[loops_[i].stage].push_back(i);
    }
    for (auto& [stage, loops] : stages) {
      std::erase_if(loops, [&](std::size_t loop) {
        const std::size_t companion = companion_of(loop);
        if (companion == loop) return false;
        loops_[loop].rank = loops_[companion].rank;
        load[static_cast<std::size_t>(loops_[loop].rank)] += loops_[loop].weights;
        return true;
      });
      if (loops.empty()) continue;
      std::vector<std::int64_t> weights;
      for (const std::size_t loop : loops) weights.push_back(loops_[loop].weights);
      const std::vector<std::size_t> groups = in_groups(weights, std::min(loops.size(), static_cast<std::size_t>(ranks_)));
      std::vector<std::size_t> order(load.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return std::pair(load[a], a) < std::pair(load[b], b); });
      order.resize(groups.back() + 1);
      std::sort(order.begin(), order.end());
      for (std::size_t i = 0; i < loops.size(); ++i) {
        loops_[loops[i]].rank = static_cast<int>(order[groups[i]]);
        load[order[groups[i]]] += weights[i];
      }
    }
    for (std::size_t i = 0; i < loops_.size(); ++i) place_unit(made, first_op_[i], loops_[i].rank);
    made.loops = loops_;
  }

  // ---- The rest ----

  /// The rank that all of them have, among those that have one.
  static int common(const std::set<int>& ranks) { return ranks.size() == 1 ? *ranks.begin() : unplaced; }

  /// Whether an op makes tensors of known extents from any number of rows, as the gradient of a weight is: such an op is where the rows are, and its
  /// result goes to its readers.
  bool summarises(std::size_t op) const {
    const auto is_small = [&](VarId var) { return program_.var(var).type.is_tensor() && program_.var(var).type.is_static(); };
    return !ops_[op].outputs.empty() && std::all_of(ops_[op].outputs.begin(), ops_[op].outputs.end(), is_small) &&
           !std::all_of(uses_[op].begin(), uses_[op].end(), is_small);
  }

  /// Elements of a row (or of a row of a slot) of a value with any number of rows; 0 of others.
  std::int64_t row_width(VarId var) const {
    const VarType& type = program_.var(var).type;
    if (!(type.is_tensor() || type.is_array()) || !type.shape || (type.is_tensor() && type.is_static())) return 0;
    std::int64_t width = 1;
    for (int axis = 0; axis < type.shape->rank(); ++axis) width *= (*type.shape)[axis] == DDim::unknown ? 1 : (*type.shape)[axis];
    return width;
  }

  void place_rest(Placement& made) {
    std::vector<std::set<int>> readers(ops_.size());  // ranks
    for (const Program::Port& port : program_.outputs())
      if (const auto maker = makers_.find(port.var); maker != makers_.end()) readers[maker->second].insert(0);
    std::vector<std::size_t> open;
    for (std::size_t i = ops_.size(); i-- > 0;) {
      int& rank = made.rank_of_op[i];
      if (ops_[i].type == "constant") continue;
      if (rank == unplaced && is_at_home(i)) rank = 0;
      if (rank == unplaced && !summarises(i)) rank = common(readers[i]);
      if (rank == unplaced) open.push_back(i);
      if (rank != unplaced) place_unit(made, i, rank);
      if (rank == unplaced) continue;
      for (const VarId var : uses_[i])
        if (const auto maker = makers_.find(var); maker != makers_.end()) readers[maker->second].insert(rank);
    }
    // Needed on several ranks, or nowhere, or small: where what they need is made, in the order of the program.
    for (std::size_t k = open.size(); k-- > 0;) {
      const std::size_t i = open[k];
      if (made.rank_of_op[i] != unplaced) continue;
      std::map<int, std::int64_t> sources;  // how wide the rows are that a rank makes of what is needed
      for (const VarId var : uses_[i])
        if (const auto maker = makers_.find(var); maker != makers_.end() && made.rank_of_op[maker->second] != unplaced)
          sources[made.rank_of_op[maker->second]] += row_width(var);
      int best = 0;
      for (const auto& [rank, width] : sources)
        if (!sources.contains(best) || width > sources.at(best)) best = rank;
      place_unit(made, i, best);
    }
  }

  void place_unit(Placement& made, std::size_t op, int rank) {
    for (const std::size_t other : members_.at(units_.of(op))) made.rank_of_op[other] = rank;
  }

  const Program& program_;
  const int ranks_;
  const std::vector<Op>& ops_;
  const ArrayClasses arrays_;
  const std::vector<std::vector<VarId>> uses_;
  Units units_;
  std::map<std::size_t, std::vector<std::size_t>> members_;  // of each unit
  std::map<VarId, std::size_t> makers_;
  std::vector<Touched> touched_;
  std::map<std::size_t, std::vector<std::size_t>> writers_;  // of a class
  std::map<std::size_t, std::vector<std::size_t>> owners_;   // ops that make arrays of it, or hand them on under another name
  std::set<std::size_t> at_home_;
  std::set<VarId> fed_;
  std::vector<Partition::Loop> loops_;
  std::vector<std::size_t> first_op_;  // of each loop
};

}  // namespace

std::vector<std::vector<VarId>> uses_of_ops(const Program& program) {
  std::vector<std::vector<VarId>> uses;
  for (const Op& op : program.block(0).ops) {
    std::set<VarId> found;
    const auto use = [&](VarId var) {
      if (var != no_var && program.var(var).block == 0 && program.constant(var) == nullptr) found.insert(var);
    };
    walk(
        program, op,
        [&](const Op& inner) {
          for (const VarId input : inner.inputs) use(input);
        },
        use);
    uses.emplace_back(found.begin(), found.end());
  }
  return uses;
}

Placement place_ops(const Program& program, int ranks) { return Placer(program, ranks).run(); }

}  // namespace millrace::detail
