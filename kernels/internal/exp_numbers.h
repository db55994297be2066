// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::internal {

/// The numbers of exp for one type. With |r| ≤ ln 2 / 2: e^r − 1 = r + r²·q(r), q fitted to a relative error of 3e-9
/// (f32) and 8e-20 (f64) of e^r by reweighted least squares on Chebyshev nodes. ln 2 = high + low, where n·high is
/// exact.
template <class T>
struct ExpNumbers;
template <>
struct ExpNumbers<float> {
  static constexpr float ln2_high = 0.693359375f;
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float least = -104.0f;         // e^x is 0 here and below
  static constexpr float greatest = 89.0f;        // e^x is infinite here and above
  static constexpr float mish_is_zero = -109.0f;  // x·e^x is −0 here and below
  static constexpr float tanh_is_one = 9.02f;
  static constexpr int mantissa_bits = 23;
  static constexpr int bias = 127;
  static constexpr float q[] = {0.5f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123b92p-7f, 0x1.6db47ap-10f};
};
template <>
struct ExpNumbers<double> {
  static constexpr double ln2_high = 6.93147180369123816490e-01;
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr double least = -746.0;
  static constexpr double greatest = 710.0;
  static constexpr double mish_is_zero = -752.0;
  static constexpr double tanh_is_one = 19.07;
  static constexpr int mantissa_bits = 52;
  static constexpr int bias = 1023;
  static constexpr double q[] = {0.5,
                                 0x1.555555555555bp-3,
                                 0x1.555555555556bp-5,
                                 0x1.111111110ebe1p-7,
                                 0x1.6c16c16c0e521p-10,
                                 0x1.a01a01b3b6f76p-13,
                                 0x1.a01a01cabf80ap-16,
                                 0x1.71ddef884afeap-19,
                                 0x1.27e493d8d61b2p-22,
                                 0x1.af6cfd7f39658p-26,
                                 0x1.1fdae998dc2e7p-29};
};

}  // namespace millrace::internal
