// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace {

/// Whether a sanitizer watches the memory or the threads of this build. Code that keeps blocks for later uses leaves them to the heap there, so that a
/// use after free is seen; tests do less there, since all takes several times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace millrace
