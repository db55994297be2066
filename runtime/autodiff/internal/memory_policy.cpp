// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/memory_policy.h>

#include <set>
#include <string>
#include <vector>

#include <millrace/runtime/autodiff/memory_policy_text.h>

namespace millrace::autodiff {
namespace {

using Kind = MemoryPolicy::Kind;
constexpr const char* attribute = "backward_memory";
constexpr const char* folder_attribute = "backward_folder";

void check(const MemoryPolicy& policy) {
  if (policy.kind == Kind::recompute && policy.every < 0)
    throw ArgumentError("append_backward: memory policy recompute: expected a checkpoint every 1 or more iterations, or 0, found " +
                        std::to_string(policy.every));
  if (policy.kind != Kind::truncate) return;
  if (policy.k1 < 1 || policy.k2 < 1)
    throw ArgumentError("append_backward: memory policy truncate: expected k1 and k2 of 1 or more, found " + std::to_string(policy.k1) +
                        " and " + std::to_string(policy.k2));
}

template <class F>
void for_each_loop(Program& program, F&& f) {
  for (std::size_t i = 0; i < program.blocks().size(); ++i)
    for (Op& op : program.block(static_cast<int>(i)).ops)
      if (op.type == "while") f(op);
}

/// A policy of a loop that is not there would be that of none.
void check_bodies(Program& program, const BackwardOptions& options) {
  if (options.per_loop.empty()) return;
  std::set<int> bodies;
  for_each_loop(program, [&](const Op& loop) { bodies.insert(loop.attributes.get<BlockId>("sub_block").index); });
  for (const auto& [body, policy] : options.per_loop) {
    if (bodies.contains(body)) continue;
    std::string all;
    for (const int each : bodies) all += (all.empty() ? "" : ", ") + std::to_string(each);
    throw ArgumentError("append_backward: per_loop: expected the body block of a loop" + (all.empty() ? "" : ", one of " + all) +
                        ", found " + std::to_string(body));
  }
}

}  // namespace

void set_policies(Program& program, const BackwardOptions& options) {
  check(options.memory);
  for (const auto& [body, policy] : options.per_loop) check(policy);
  check_bodies(program, options);
  for_each_loop(program, [&](Op& loop) {
    const auto own = options.per_loop.find(loop.attributes.get<BlockId>("sub_block").index);
    const MemoryPolicy& policy = own == options.per_loop.end() ? options.memory : own->second;
    if (policy.kind == Kind::keep) return;
    loop.attributes.set(attribute, std::vector<std::int64_t>{static_cast<std::int64_t>(policy.kind), policy.every, policy.k1, policy.k2});
    if (!policy.folder.empty()) loop.attributes.set(folder_attribute, policy.folder);
  });
}

MemoryPolicy policy_of(const Op& loop) {
  if (!loop.attributes.has(attribute)) return {};
  const auto& numbers = loop.attributes.get<std::vector<std::int64_t>>(attribute);
  return {static_cast<Kind>(numbers.at(0)), numbers.at(1), numbers.at(2), numbers.at(3),
          loop.attributes.get_or(folder_attribute, std::string())};
}

void copy_policy(const Op& from, Op& to) {
  for (const char* name : {attribute, folder_attribute})
    if (from.attributes.has(name)) to.attributes.set(name, *from.attributes.find(name));
}

Attributes kept_attributes(const MemoryPolicy& policy, Attributes attributes) {
  attributes.set("kept", to_string(policy));
  if (policy.kind == Kind::spill) attributes.set("spill", policy.folder);
  return attributes;
}

void clear_policies(Program& program) {
  for_each_loop(program, [](Op& loop) {
    Attributes kept;
    for (const auto& [name, value] : loop.attributes)
      if (name != attribute && name != folder_attribute && name != "segment") kept.set(name, value);
    loop.attributes = std::move(kept);
  });
}

}  // namespace millrace::autodiff
