// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/kernels/cuda/recurrent/arithmetic.cuh>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>
