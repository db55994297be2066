// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/program/attribute.h>
#include <millrace/runtime/program/errors.h>
#include <millrace/runtime/program/var_type.h>

namespace millrace {

class OpRegistry;

/// Index of a var in its program; −1 stands for an optional input that is absent.
using VarId = int;
inline constexpr VarId no_var = -1;

/// A named value with a type. Written once: by one op, as a parameter of its block, as an input, or as a weight.
struct VarDef {
  std::string name;  ///< unique in the program
  VarType type;
  int block = 0;
};

/// One operation. Inputs and outputs follow the order of the op's definition; a variadic input takes the rest.
struct Op {
  std::string type;
  std::vector<VarId> inputs;
  std::vector<VarId> outputs;
  Attributes attributes;
  std::string label;  ///< where it came from, such as the node of a model file; may be empty
};

/// Ops in order, run once (block 0) or once an iteration (a loop's body). Sees the vars of its parents.
struct Block {
  int idx = 0;
  int parent_idx = -1;
  std::vector<VarId> params;  ///< what the op that owns the block hands in, iteration by iteration
  std::vector<Op> ops;
  std::vector<VarId> results;  ///< what it hands back
};

/// A program is plain data: blocks of ops over vars. It is built by `build::` or an importer, printed, saved, loaded, checked and
/// rewritten; `run` evaluates it. Copies are deep but for the weights. Not thread-safe while it changes. A Program that was moved from has no vars, blocks or
/// ports: it may be assigned to, and each use that needs them is a ProgramError that says so.
class Program {
 public:
  /// An input or output by the name that users feed and fetch.
  struct Port {
    std::string name;
    VarId var = no_var;
    /// Of an input: names of its open extents, by axis, such as {"batch", "time"}. Extents of one name are equal; "" or none: not named.
    std::vector<std::string> extents{};
  };

  /// `registry` holds the ops; null means the standard ones.
  explicit Program(std::shared_ptr<const OpRegistry> registry = nullptr);

  const OpRegistry& registry() const { return *shared_registry(); }
  const std::shared_ptr<const OpRegistry>& shared_registry() const {
    check_present();
    return registry_;
  }

  const std::vector<VarDef>& vars() const noexcept { return vars_; }
  /// IndexError where there is no such var; so `block`.
  const VarDef& var(VarId id) const { return vars_[checked("var", id, vars_.size())]; }
  VarDef& var(VarId id) {
    change();
    return vars_[checked("var", id, vars_.size())];
  }
  /// The var of that name, or `no_var`.
  VarId find_var(const std::string& name) const noexcept;
  const std::vector<Block>& blocks() const noexcept { return blocks_; }
  const Block& block(int index) const { return blocks_[checked("block", index, blocks_.size())]; }
  Block& block(int index) {
    change();
    return blocks_[checked("block", index, blocks_.size())];
  }

  /// Whether vars may be called that: letters, digits and `_./`, no digit first, and no keyword of the text form.
  static bool is_name(const std::string& text);
  /// A new var. Characters that a name may not hold become `_`; one that is taken, empty or a keyword gets a number.
  VarId add_var(const std::string& name, VarType type, int block = 0);
  /// ProgramError when blocks get more than 256 deep.
  int add_block(int parent);
  /// Whether `block` sees the var: it belongs to the block or to one around it.
  bool visible(VarId id, int block) const;
  /// Gives a var another name. ProgramError when it is taken or no word of the text form.
  void rename(VarId id, const std::string& name);
  /// Checks the op against its definition, infers the types of new vars for its outputs and appends it to `block`. ProgramError names op,
  /// block, expected and found; an op that would silently lose the LoD of an input is refused. `output_names` may be shorter than the
  /// outputs.
  std::vector<VarId> append(int block, Op op, const std::vector<std::string>& output_names = {});
  /// The types that the op's outputs would have in `block`; throws as `append` does.
  std::vector<VarType> infer(int block, const Op& op) const;
  /// Appends an op whose output vars exist already, without inference. For rewriting.
  void append_raw(int block, Op op);

  /// Puts `constant` ops with these values in the place of an op: one for each of its outputs.
  void replace_with_constants(int block, std::size_t op, const std::vector<Tensor>& values);

  /// `extents`: as in `Port`. ArgumentError for a name that is empty or has a NUL, or for more names of extents than axes; ProgramError when the
  /// name is taken.
  VarId add_input(const std::string& name, VarType type, std::vector<std::string> extents = {});
  /// A weight; its values are saved beside the program. Frozen, as literals of `constant` are: a program's weights never change under it, so
  /// writing `value` through a tensor of the same storage is a ReadOnlyError from here on. Give a copy to go on writing.
  VarId add_parameter(const std::string& name, Tensor value);
  /// Makes a var of block 0 an output. ArgumentError as of `add_input`; ProgramError when the name is taken or the var belongs to another block.
  void add_output(const std::string& name, VarId var);

  const std::vector<Port>& inputs() const noexcept { return inputs_; }
  const std::vector<Port>& outputs() const noexcept { return outputs_; }
  const std::map<VarId, Tensor>& parameters() const noexcept { return parameters_; }
  /// The weight held by `var`, or null.
  const Tensor* parameter(VarId var) const noexcept;
  /// The constant value of `var`: a weight or the literal of a `constant` op; else null.
  const Tensor* constant(VarId var) const noexcept;

  /// Removes a weight, or the `constant` op of a literal. No op, block or output reads it; its var and name stay, without a value.
  void remove_constant(VarId var);

  const std::string& title() const noexcept { return title_; }
  void set_title(std::string title) {
    change();
    title_ = std::move(title);
  }

  /// A number for what the program holds: each call that may change it gives one that no program had before. A copy has the number of its original.
  std::uint64_t revision() const noexcept { return revision_; }

  /// The printed form (text.h).
  std::string to_string() const;

 private:
  std::size_t checked(const char* what, int index, std::size_t count) const {
    const auto place = static_cast<std::size_t>(index);
    if (place >= count) fail_index(what, index, count);
    return place;
  }
  void check_present() const {
    if (registry_ == nullptr) fail_moved();
  }
  void change() noexcept { revision_ = next_revision(); }
  static std::uint64_t next_revision() noexcept;
  [[noreturn]] void fail_index(const char* what, int index, std::size_t count) const;
  [[noreturn]] static void fail_moved();
  void check_visible(int block, VarId id) const;
  void check_visible(int block, const Op& op) const;
  void check_results_visible(const Op& op) const;
  void refine_array(VarId array, VarId value);

  std::shared_ptr<const OpRegistry> registry_;
  std::vector<VarDef> vars_;
  std::vector<Block> blocks_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::set<std::string> input_names_;
  std::set<std::string> output_names_;
  std::map<VarId, Tensor> parameters_;
  std::map<VarId, Tensor> literals_;
  std::map<std::string, VarId> names_;
  std::map<std::string, int> numbers_;  ///< the last one given behind each word
  std::string title_ = "program";
  std::uint64_t revision_ = next_revision();
};

}  // namespace millrace
