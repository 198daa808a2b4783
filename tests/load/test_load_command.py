"""`shakedown load` as people use it: against a server in another process, with bad input, and with its report."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shakedown.cli.load import load
from shakedown.cli.load_arrivals import load_plans
from shakedown.cli.load_report import LoadReport
from shakedown.errors import UsageError
from shakedown.evidence.bundle import RunBundle
from shakedown.judge.verdict import Verdict
from shakedown.load import Burst, ClosedLoop, Constant, Gamma, Poisson, Ramp, Sinusoid, Steps
from shakedown.load.sharegpt import Exchange, read_sharegpt

SERVER = Path(__file__).with_name("streaming_server.py")
SHAKEDOWN = """
import signal, sys
from shakedown.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores Ctrl-C, and so would we
main(sys.argv[1:])
"""
SAID_D = [{"from": "human", "value": "Two?"}, {"from": "gpt", "value": "four"}, {"from": "human", "value": "Three?"}]
NOTHING = dict.fromkeys(("rate", "constant", "users", "burst", "ramp", "steps", "wave", "trace", "burstiness"))
ASKED = {**NOTHING, "duration": 10.0, "seed": 3, "think_time": 0.5}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()


def run(*words: str) -> Result:
    return CliRunner().invoke(load, [*words, "--workers", "0", "--no-ignore-eos"], standalone_mode=False)


@pytest.mark.parametrize(
    ("given", "arrivals"),
    [
        ({}, Poisson(1.0, 3)),
        ({"rate": 4.0, "burstiness": 0.5}, Gamma(4.0, 0.5, 3)),
        ({"constant": 4.0}, Constant(4.0)),
        ({"users": 5}, ClosedLoop(5, 0.5)),
        ({"burst": 7}, Burst(7)),
        ({"ramp": "2,20"}, Ramp(2.0, 20.0, 3)),
        ({"wave": "10,0.8,60"}, Sinusoid(10.0, 0.8, 60.0, 3)),
        ({"steps": "2:30,8:60"}, Steps(((2.0, 30.0), (8.0, 60.0)), 3)),
    ],
)
def test_options_name_the_arrivals(given: dict[str, object], arrivals: object) -> None:
    ((made, _),) = load_plans({**ASKED, **given}, None, False)
    assert made == arrivals


@pytest.mark.parametrize(
    ("given", "sweep", "complaint"),
    [
        ({"rate": 1.0, "ramp": "1,2"}, None, "choose one of --rate, --ramp"),
        ({"burst": 3}, "1,2", "choose one of --burst, --sweep"),
        ({"ramp": "1"}, None, "--ramp looks like 2,20; got '1'"),
        ({"steps": "2:30,x"}, None, "--steps looks like 2:30,8:60; got 'x'"),
        ({"wave": "1,2,3,4"}, None, "--wave looks like"),
        ({"wave": "10,2,60"}, None, "amplitude"),
        ({}, "1,a", "--sweep takes numbers"),
        ({"duration": 0.0}, None, "--duration must be positive"),
    ],
)
def test_odd_arrivals_are_one_line(given: dict[str, object], sweep: str | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        load_plans({**ASKED, **given}, sweep, False)


def test_a_report_holds_the_load_its_bargain_and_its_verdict(url: str, tmp_path: Path) -> None:
    ran = run(url, "--burst", "5", "--slo-ttft", "5", "--report", str(tmp_path))
    assert (ran.exception, ran.return_value) == (None, 0), ran.output
    (folder,) = tmp_path.iterdir()
    assert f"report: {folder / 'report.html'}" in ran.output
    (result,) = RunBundle.open(folder).results()
    assert (result.verdict, result.title) == (Verdict.HELD, "burst of 5")
    assert [finding.measured for finding in result.findings] == ["100 %", "5"]
    assert len((folder / "load-01" / "requests.jsonl").read_text().splitlines()) == 5
    page = (folder / "report.html").read_text()
    assert "burst of 5" in page
    assert "<svg" in page


def test_each_load_of_a_sweep_has_its_chapter_and_the_first_missed_one_is_the_last(url: str, tmp_path: Path) -> None:
    ran = run(url, "--sweep", "20,40,80", "--duration", "0.5", "--slo-ttft", "0.000001", "--report", str(tmp_path))
    assert ran.return_value == Verdict.DEVIATED.exit_code, ran.output
    (folder,) = tmp_path.iterdir()
    (result,) = RunBundle.open(folder).results()
    assert (result.verdict, result.title) == (Verdict.DEVIATED, "20 req/s")
    assert json.loads((folder / "run.json").read_text())["exit_code"] == Verdict.DEVIATED.exit_code


def test_real_questions_come_from_a_sharegpt_file(url: str, tmp_path: Path) -> None:
    talks = [
        {"id": "a", "conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "x" * 40}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "no question"}]},
        {"id": "c", "conversations": [{"from": "human", "value": "unanswered"}]},
        {"id": "d", "conversations": [{"from": "system", "value": "s"}, *SAID_D]},
    ]
    (tmp_path / "talks.json").write_text(json.dumps(talks))
    assert read_sharegpt(tmp_path / "talks.json") == ((Exchange("One?", "x" * 40),), (Exchange("Two?", "four"),))
    ran = run(url, "--burst", "3", "--sharegpt", str(tmp_path / "talks.json"), "--json")
    assert ran.return_value == 0, ran.output
    assert '"completed":3' in ran.output


def test_real_conversations_are_held_up_to_the_turns_asked_for(url: str, tmp_path: Path) -> None:
    longer = [*SAID_D, {"from": "gpt", "value": "three"}, {"from": "human", "value": "Four?"}]
    talks = [{"conversations": SAID_D}, {"conversations": longer}]
    (tmp_path / "talks.json").write_text(json.dumps(talks))
    one, two = (Exchange("Two?", "four"),), (Exchange("Two?", "four"), Exchange("Three?", "three"))
    assert read_sharegpt(tmp_path / "talks.json", turns=9) == (one, two)
    assert read_sharegpt(tmp_path / "talks.json", turns=1) == (one, one)
    ran = run(url, "--burst", "4", "--sharegpt", str(tmp_path / "talks.json"), "--turns", "9", "--json")
    assert ran.return_value == 0, ran.output
    assert '"completed":6' in ran.output


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[", "is not a file in the ShareGPT format"),
        ('{"a": 1}', "is not a file in the ShareGPT format"),
        ('[{"conversations": 7}]', "is not a file in the ShareGPT format"),
        ("[]", "holds no question of a human"),
        (None, "cannot be read"),
    ],
)
def test_an_odd_sharegpt_file_is_one_line(content: str | None, complaint: str, url: str, tmp_path: Path) -> None:
    file = tmp_path / "talks.json"
    if content is not None:
        file.write_text(content)
    refused = run(url, "--sharegpt", str(file)).exception
    assert isinstance(refused, UsageError)
    assert complaint in str(refused)
    assert "\n" not in str(refused)


def test_sessions_of_several_turns_are_counted_question_by_question(url: str, tmp_path: Path) -> None:
    ran = run(url, "--burst", "2", "--turns", "3", "--records", str(tmp_path / "r.jsonl"))
    assert ran.return_value == 0, ran.output
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 6


def test_two_reports_of_one_second_have_folders_of_their_own(url: str, tmp_path: Path) -> None:
    reports = [LoadReport(tmp_path, url) for _ in range(3)]
    for report in reports:
        report.begin("m")
    assert len(list(tmp_path.iterdir())) == 3


def test_an_interrupted_load_leaves_its_records_and_a_report_that_says_so(url: str, tmp_path: Path) -> None:
    words = ("load", url, "--rate", "20", "--duration", "60", "--no-ignore-eos", "--report", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", SHAKEDOWN, *words], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "sent" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        told = running.stderr.read()
    assert running.returncode == 130, told
    (folder,) = tmp_path.iterdir()
    (result,) = RunBundle.open(folder).results()
    assert result.verdict is Verdict.UNKNOWN
    assert "interrupted" in result.reason
    assert (folder / "report.html").stat().st_size > 0
    assert len((folder / "load-01" / "requests.jsonl").read_text().splitlines()) > 0


def test_without_a_server_no_folder_is_made(tmp_path: Path) -> None:
    assert "http://127.0.0.1:9" in str(run("http://127.0.0.1:9", "--report", str(tmp_path)).exception)
    assert list(tmp_path.iterdir()) == []


def test_a_report_beside_records_is_refused_and_so_is_a_folder_that_cannot_be(url: str, tmp_path: Path) -> None:
    both = run(url, "--report", str(tmp_path), "--records", str(tmp_path / "r.jsonl"))
    assert "leave --records out" in str(both.exception)
    (tmp_path / "file").write_text("")
    nowhere = run(url, "--report", str(tmp_path / "file" / "below"))
    assert "cannot be written" in str(nowhere.exception)
