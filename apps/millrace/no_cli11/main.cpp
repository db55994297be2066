// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

int main() {
  std::fputs("millrace: this build has no command: it was made without the part cli11 (Debian package libcli11-dev)\n", stderr);
  return 1;
}
