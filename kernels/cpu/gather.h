// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <millrace/kernels/gather.h>
#include <millrace/tensor/tensor.h>
#include <millrace/tensor/thread_team.h>

namespace millrace::cpu {

/// numpy's take along `axis`. IndexError for an index outside.
void gather(const Tensor& x, const Tensor& index, int axis, const Tensor& out, ThreadTeam& team);
void gather_elements(const Tensor& x, const Tensor& index, int axis, const Tensor& out, ThreadTeam& team);
/// out[…, i, j] = x[…, rows[i], columns[j]]; x is row-major.
void gather_planes(const Tensor& x, const Tensor& rows, const Tensor& columns, const Tensor& out, ThreadTeam& team);

/// gather_sum of kernels/gather.h; x and the weights are row-major.
void gather_sum(const Tensor& x, const std::vector<GatherTerm>& terms, int axis, const Tensor& out, ThreadTeam& team);

/// The places that an index names along an axis of `dims`; negative ones count from the end. IndexError for one outside.
std::vector<std::int64_t> checked_places(const char* op, const Tensor& index, int axis, const DDim& dims);
/// IndexError unless every entry is −1 or a row of `dims`.
void check_row_index(const char* op, const std::vector<std::int64_t>& index, const DDim& dims);
/// out[i] = x[index[i]], zeros for −1; entries are checked.
void gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& out, ThreadTeam& team);
/// out[i] = x[index[i]], and for −1 `otherwise`, which has the extents of a row; entries are checked.
void gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, const Tensor& out, ThreadTeam& team);
/// out[index[i]] = x[i], nothing for −1; in order of i.
void scatter_rows(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& out, ThreadTeam& team);

}  // namespace millrace::cpu
