import subprocess
import sys

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")
def test_without_a_gpu_the_smoke_test_says_so():
    done = subprocess.run([sys.executable, "scripts/gpu_smoke.py"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "torch sees no GPU\n", "FAILED no GPU\n")
