// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/feeds.h>

#include <fmt/format.h>

namespace millrace {
namespace {

/// The type of a fed value, for the comparison with the declared one.
VarType type_of(const Value& value) {
  if (value.is_tensor()) return VarType(value.tensor().dtype(), value.tensor().dims(), value.tensor().lod().depth());
  if (value.is_list())
    return value.list().size() > 0 ? VarType::list_of(type_of(Value(value.list().at(0)))) : VarType::empty_list(DType::f32);
  return value.is_array() ? VarType::open_array(value.array().order().has_value()) : VarType::order();
}

void check_list(const std::string& name, const VarType& wanted, const Value& value) {
  if (!value.is_list())
    throw ArgumentError(fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), type_of(value).to_string()));
  if (wanted.empty && value.list().size() > 0)
    throw ShapeError(fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), value.list().to_string()));
  for (std::int64_t i = 0; i < value.list().size(); ++i)
    check_feed(fmt::format("{}[{}]", name, i), wanted.element(), Value(value.list().at(i)));
}

}  // namespace

void check_feed(const std::string& name, const VarType& wanted, const Value& value) {
  if (wanted.is_optional() && value.empty()) return;
  if (wanted.is_optional()) return check_feed(name, wanted.held(), value);
  if (value.empty()) throw ArgumentError(fmt::format("run: input '{}': expected {}, found nothing", name, wanted.to_string()));
  if (wanted.is_list()) return check_list(name, wanted, value);
  const VarType found = type_of(value);
  const auto message = [&] { return fmt::format("run: input '{}': expected {}, found {}", name, wanted.to_string(), found.to_string()); };
  if (found.kind != wanted.kind) throw ArgumentError(message());
  const auto checked = [&](const auto& check) {
    try {
      check();
    } catch (Error& error) {
      error.add_context(fmt::format(" (run: input '{}': expected {})", name, wanted.to_string()));
      throw;
    }
  };
  if (wanted.is_array() && !wanted.open && wanted.shape)
    checked([&] { value.array().expect(wanted.dtype, *wanted.shape, wanted.lod_depth); });
  if (wanted.kind != VarKind::tensor) return;
  if (found.dtype != wanted.dtype) throw DTypeError(message());
  if (found.lod_depth != wanted.lod_depth) throw LoDError(message());
  if (!fits(found, wanted)) throw ShapeError(message());
  checked([&] { value.tensor().tensor().check_written(); });
}

}  // namespace millrace
