"""Whatever stops a run, the same command finishes it, with the same bits."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_run_killed_at_any_write_is_finished_bit_for_bit():
    command = [sys.executable, "-m", "tests.pipeline.interrupted", "3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 runs killed" in result.stdout
