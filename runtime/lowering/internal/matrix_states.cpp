// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/internal/matrix_states.h>

#include <algorithm>
#include <string>
#include <utility>

namespace millrace {
namespace {

/// Whether `vector` has the extents of `matrix` but for 1 along the axis `stretched`, counted from the last one, 0.
bool fits(const DDim& vector, const DDim& matrix, int stretched) {
  if (vector.rank() != matrix.rank()) return false;
  for (int axis = 1; axis < matrix.rank(); ++axis)
    if (vector[axis] != (axis == matrix.rank() - 1 - stretched ? 1 : matrix[axis])) return false;
  return true;
}
bool over_keys(const DDim& vector, const DDim& matrix) { return fits(vector, matrix, 0); }
bool over_values(const DDim& vector, const DDim& matrix) { return fits(vector, matrix, 1); }

bool same(const DDim& a, const DDim& b) { return a.rank() == b.rank() && std::equal(a.begin() + 1, a.end(), b.begin() + 1); }

/// `dims` with 1 in the place of the keys too.
DDim number_of(DDim dims) {
  dims[-1] = dims[-2] = 1;
  return dims;
}

}  // namespace

MatrixStates::MatrixStates(const Program& step, DType dtype) : step_(step), dtype_(dtype) {
  const std::vector<Op>& ops = step.block(0).ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const VarId input : ops[i].inputs) readers_[input].push_back(i);
    for (const VarId output : ops[i].outputs) makers_[output] = i;
  }
  for (const Program::Port& port : step.outputs()) readers_[port.var].push_back(ops.size());
  std::vector<Fold> folds;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (const auto fold = fold_at(i)) folds.push_back(*fold);
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].type == "add") find_update(i, folds);
  for (const Fold& fold : folds) {
    if (gone_.contains(fold.product)) continue;  // of an update
    gone_.insert(fold.product);
    members_[fold.reduce] = {.state = fold.matrix, .key = fold.vector, .read = op(fold.reduce).outputs[0]};
    if (fold.reshape) gone_.insert(*fold.reshape);
  }
  join_decays();
  join_reads();
}

MatrixStates::Place MatrixStates::place(std::size_t op) const {
  if (members_.contains(op)) return Place::member;
  return gone_.contains(op) ? Place::none : Place::op;
}

/// Extents of rows of numbers, of which the rows alone are not known; nothing for others.
const DDim* MatrixStates::dims(VarId var) const {
  if (var == no_var) return nullptr;
  const VarType& type = step_.var(var).type;
  if (!type.shape || type.rank() < 3 || type.dtype != dtype_ || (*type.shape)[0] != DDim::unknown) return nullptr;
  const bool known = std::all_of(type.shape->begin() + 1, type.shape->end(), [](std::int64_t extent) { return extent != DDim::unknown; });
  return known ? &*type.shape : nullptr;
}

std::optional<std::size_t> MatrixStates::made_by(VarId var, const char* type) const {
  const auto found = makers_.find(var);
  return found != makers_.end() && op(found->second).type == type ? std::optional(found->second) : std::nullopt;
}

bool MatrixStates::read_once(VarId var) const {
  const auto found = readers_.find(var);
  return found != readers_.end() && found->second.size() == 1;
}

std::optional<MatrixStates::Fold> MatrixStates::fold_at(std::size_t reduce) const {
  const Op& fold = op(reduce);
  if (fold.type != "reduce" || fold.attributes.get<std::string>("kind") != "sum") return std::nullopt;
  const VarId folded = fold.inputs[0];
  const DDim* const whole = dims(folded);
  const std::optional<std::size_t> product = made_by(folded, "mul");
  const auto axes = fold.attributes.get_or("axes", std::vector<std::int64_t>{});
  if (whole == nullptr || !product || !read_once(folded) || axes.size() != 1) return std::nullopt;
  if ((axes[0] < 0 ? axes[0] + whole->rank() : axes[0]) != whole->rank() - 2) return std::nullopt;
  const std::vector<VarId>& factors = op(*product).inputs;
  for (const auto& [matrix, vector] : {std::pair(factors[0], factors[1]), std::pair(factors[1], factors[0])}) {
    const DDim* const form = dims(matrix);
    const DDim* const keys = dims(vector);
    if (form == nullptr || keys == nullptr || !over_keys(*keys, *whole)) continue;
    // One matrix for several queries, or for one: [.., 1, keys, values], out of [.., keys, values].
    if (const std::optional<std::size_t> reshape = made_by(matrix, "reshape"); reshape && read_once(matrix) && whole->rank() > 3) {
      DDim shared = *whole;
      shared[-3] = 1;
      const VarId from = op(*reshape).inputs[0];
      const DDim* const before = dims(from);
      if (same(*form, shared) && before != nullptr && same(*before, shared.erased(shared.rank() - 3)))
        return Fold{*product, reduce, reshape, from, vector};
    }
    if (same(*form, *whole)) return Fold{*product, reduce, std::nullopt, matrix, vector};
  }
  return std::nullopt;
}

std::optional<MatrixStates::Outer> MatrixStates::outer_of(VarId term, const DDim& form) const {
  const std::optional<std::size_t> product = made_by(term, "mul");
  if (!product || !read_once(term)) return std::nullopt;
  const std::vector<VarId>& factors = op(*product).inputs;
  for (const auto& [key, added] : {std::pair(factors[0], factors[1]), std::pair(factors[1], factors[0])}) {
    const DDim* const keys = dims(key);
    const DDim* const values = dims(added);
    if (keys != nullptr && values != nullptr && over_keys(*keys, form) && over_values(*values, form)) return Outer{*product, key, added};
  }
  return std::nullopt;
}

/// An addition of a matrix and a product of vectors, and the first fold that reads it.
void MatrixStates::find_update(std::size_t add, const std::vector<Fold>& folds) {
  const VarId next = op(add).outputs[0];
  const DDim* const form = dims(next);
  if (form == nullptr) return;
  const auto fold = std::find_if(folds.begin(), folds.end(), [next](const Fold& each) { return each.matrix == next; });
  if (fold == folds.end()) return;
  // Nothing else may read the matrix before it is there.
  for (const std::size_t reader : readers_.at(next))
    if (reader <= fold->reduce && reader != fold->product && fold->reshape != std::optional(reader)) return;
  const std::vector<VarId>& terms = op(add).inputs;
  for (const auto& [state, term] : {std::pair(terms[0], terms[1]), std::pair(terms[1], terms[0])}) {
    const DDim* const before = dims(state);
    const std::optional<Outer> outer = outer_of(term, *form);
    if (!outer || before == nullptr || !same(*before, *form)) continue;
    members_[fold->reduce] = {
        .state = state, .key = outer->key, .added = outer->added, .query = fold->vector, .next = next, .read = op(fold->reduce).outputs[0]};
    gone_.insert({add, outer->product, fold->product});
    if (fold->reshape) gone_.insert(*fold->reshape);
    return;
  }
}

/// A state that is a product with a decay stays one where all that read it multiply it on their way.
void MatrixStates::join_decays() {
  std::map<VarId, std::vector<Member*>> by_state;
  for (auto& [at, member] : members_) by_state[member.state].push_back(&member);
  for (auto& [state, members] : by_state) {
    const std::optional<std::size_t> product = made_by(state, "mul");
    if (!product || gone_.contains(*product)) continue;
    const auto is_theirs = [this](std::size_t reader) { return reader < step_.block(0).ops.size() && gone_.contains(reader); };
    const std::vector<std::size_t>& readers = readers_.at(state);
    if (!std::all_of(readers.begin(), readers.end(), is_theirs)) continue;
    // With one value a matrix may be a vector of another.
    const auto has_vector = [state = state](const auto& each) {
      const Member& member = each.second;
      return member.key == state || member.added == state || member.query == state || member.decay == state;
    };
    if (std::any_of(members_.begin(), members_.end(), has_vector)) continue;
    const DDim& form = *dims(state);
    const std::vector<VarId>& factors = op(*product).inputs;
    for (const auto& [matrix, decay] : {std::pair(factors[0], factors[1]), std::pair(factors[1], factors[0])}) {
      const DDim* const whole = dims(matrix);
      const DDim* const part = dims(decay);
      if (whole == nullptr || part == nullptr || !same(*whole, form) || (!over_keys(*part, form) && !same(*part, number_of(form))))
        continue;
      for (Member* const member : members) {
        member->state = matrix;
        member->decay = decay;
      }
      gone_.insert(*product);
      break;
    }
  }
}

/// Updates by a correction, the difference of a value and the read of its key: the read becomes part of the update.
void MatrixStates::join_reads() {
  for (auto& [at, update] : members_) {
    if (update.added == no_var || !read_once(update.added)) continue;
    const DDim& form = *dims(update.state);
    std::vector<std::size_t> gone;
    VarId difference = update.added, rate = no_var;
    if (const std::optional<std::size_t> product = made_by(update.added, "mul")) {
      const std::vector<VarId>& factors = op(*product).inputs;
      for (const auto& [number, other] : {std::pair(factors[0], factors[1]), std::pair(factors[1], factors[0])}) {
        const DDim* const extents = dims(number);
        if (extents == nullptr || extents->rank() != form.rank()) continue;
        if (!same(*extents, number_of(form)) && extents->slice(1, extents->rank()).elements() != 1) continue;
        if (!made_by(other, "sub") || !read_once(other)) continue;
        difference = other;
        rate = number;
        gone.push_back(*product);
        break;
      }
    }
    const std::optional<std::size_t> sub = made_by(difference, "sub");
    if (!sub) continue;
    const VarId value = op(*sub).inputs[0], read = op(*sub).inputs[1];
    const DDim *const values = dims(value), *const given = dims(read);
    const auto found = std::find_if(members_.begin(), members_.end(), [&, &update = update](const auto& each) {
      const Member& member = each.second;
      return member.read == read && member.added == no_var && member.state == update.state && member.decay == update.decay &&
             member.key == update.key;
    });
    if (found == members_.end() || !read_once(read) || values == nullptr || given == nullptr || !over_values(*values, form) ||
        !same(*given, *values))
      continue;
    gone.push_back(*sub);
    gone.push_back(found->first);
    gone_.insert(gone.begin(), gone.end());
    members_.erase(found);
    update.added = value;
    update.rate = rate;
    update.corrected = true;
  }
}

}  // namespace millrace
