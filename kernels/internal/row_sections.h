// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <millrace/kernels/cpu/row_plan.h>

namespace millrace::internal {

/// The sections of a description, without their functions: equal parts of a row that read only their own results, as many as its functions of many rows have
/// rows. Each part runs an op of few elements that all of them need. Empty if an op does not fall into equal parts, or if all states fit into the first cache.
std::optional<RowPlan::State::Sections> find_sections(const RowDesc& desc);

}  // namespace millrace::internal
