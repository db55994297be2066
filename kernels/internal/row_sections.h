// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/kernels/cpu/row_plan.h>

namespace millrace::internal {

/// The sections of a description, without their functions: as many as its functions of many rows have rows, where every op falls into as many parts, a part
/// reads what its own ops wrote, and an op of few elements that all need is run by each. Nothing where that is not so, and where all states fit into the
/// first cache.
std::optional<RowPlan::State::Sections> find_sections(const RowDesc& desc);

}  // namespace millrace::internal
