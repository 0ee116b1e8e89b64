import os
import sys

import pytest
from monarch.actor import default_bootstrap_cmd, this_host


@pytest.fixture(scope="session")
async def proc():
    """One proc for actors that need no launch environment of their own."""
    command = default_bootstrap_cmd().with_env({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    procs = this_host().spawn_procs({"procs": 1}, bootstrap_command=command)
    yield procs
    await procs.stop()
