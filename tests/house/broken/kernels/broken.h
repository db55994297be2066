// SPDX-License-Identifier: Apache-2.0
// A kernel that chooses by itself.
inline bool at_device(const KernelContext& context) { return context.device_queue() != nullptr; }
