// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/kernels/cpu/row_plan.h>

namespace millrace::internal {

/// The sections of a description, without their functions: equal parts of a row, each of which reads only its own results. There are as many as its functions
/// of many rows have rows. An op of few elements that all sections need runs in each. Empty if an op does not fall into equal parts, or if all states fit into
/// the first cache.
std::optional<RowPlan::State::Sections> find_sections(const RowDesc& desc);

}  // namespace millrace::internal
