// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

int main() {
  std::fputs("lac_tagger: this build has no command line: it was made without the part cli11 (Debian package libcli11-dev)\n", stderr);
  return 1;
}
