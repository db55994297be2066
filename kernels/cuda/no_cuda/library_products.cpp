// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/library_products.h>

namespace millrace {

std::vector<std::string> library_products(Device&) { return {}; }
std::vector<std::string> cuda_arithmetic_ids() { return {}; }
void probe_library_product(const GemmPlan&, const PackedMatrix&, StreamRef) {}
std::string library_products_status() { return "no cuBLASLt: CUDA is not in this build"; }

}  // namespace millrace
