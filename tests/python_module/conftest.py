# SPDX-License-Identifier: Apache-2.0
import gc
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def nothing_runs_on():
    """Every test leaves no run behind."""
    yield
    import millrace as mr

    gc.collect()
    assert mr.live_runs() == 0
