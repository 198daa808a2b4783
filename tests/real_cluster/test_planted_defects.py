"""The verdict is worth something: a mitigation that is taken away turns it, and the same scenario held with it."""

from pathlib import Path

import pytest

from shakedown.process import run

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_THE_MITIGATION = """
import pytest
from suites.memory import test_request_burst as burst

@pytest.mark.serving(burst.WIDE)
async def test_the_same_burst_without_the_mitigation(vllm, open_loop, scenario):
    await burst.test_the_same_burst_at_090_with_a_narrow_queue_keeps_streams_flowing(vllm, open_loop, scenario)
"""


@pytest.mark.usefixtures("cluster")
async def test_the_verdict_flips_when_the_mitigation_is_taken_away(tmp_path: Path) -> None:
    suite = tmp_path / "suites" / "memory" / "test_without_mitigation.py"
    suite.parent.mkdir(parents=True)
    suite.write_text(WITHOUT_THE_MITIGATION)
    words = ["run", "--name", "selftest", "--keep", "--profile", "nightly", "--reports", str(tmp_path / "reports")]
    completed = await run(
        [ROOT / "shakedown-run", *words, "--suites", str(tmp_path / "suites")], timeout_s=300, check=False
    )
    assert completed.returncode == 1, completed.stdout + completed.stderr
    (verdict,) = (tmp_path / "reports").glob("*/*/verdict.json")
    assert '"deviated"' in verdict.read_text()
    assert "preemptions" in verdict.read_text()
