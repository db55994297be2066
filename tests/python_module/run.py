# SPDX-License-Identifier: Apache-2.0
"""Runs suites of the Python module: run.py FILE... Exits with 77 to say that something it needs is not installed."""

import sys

try:
    import numpy  # noqa: F401
    import pytest

    import millrace  # noqa: F401
except ModuleNotFoundError as missing:
    print(f"skipped: {missing.name} is not installed for {sys.executable}")
    sys.exit(77)

# With reasons of skipped tests: they are to be seen.
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]))
