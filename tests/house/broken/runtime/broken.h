// SPDX-License-Identifier: Apache-2.0
bool known = op.type == "matmul";
