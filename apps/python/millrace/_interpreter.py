# SPDX-License-Identifier: Apache-2.0
"""Imported before the extension module, which is for the main interpreter alone: its classes and threads are one set for the process."""

from __future__ import annotations

import importlib


def _expect_main() -> None:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError("millrace: expected the main interpreter of the process, found a subinterpreter: use threads or processes")
        return


_expect_main()
