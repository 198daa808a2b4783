"""The server's own account of a run."""

import socket
from pathlib import Path

import pytest

from benchmarks import canned
from benchmarks.canned import CannedServer, ServerClock

EVEN = [[1_000_000 + index * 10_000, 1_021_000 + index * 10_000, 3_001_000 + index * 10_000] for index in range(400)]


def clock(streams: list[list[int]]) -> ServerClock:
    gaps = [0] * 300
    gaps[199], gaps[209] = 985, 15
    return ServerClock.of(
        {
            "chunks": 1000,
            "late_chunks": 10,
            "per_half_second": [50] * 8,
            "gap_us": 100,
            "gaps": gaps,
            "streams": streams,
        }
    )


def test_the_truth_is_what_the_server_wrote_down() -> None:
    seen = clock([*EVEN, [9_000_000, 0, 0]])
    assert seen.ttft_p50_ms == pytest.approx(21.0)
    assert seen.itl_p50_ms == pytest.approx(19.95)
    assert seen.itl_p99_ms == pytest.approx(20.95)
    assert seen.late_share == 0.01
    assert len(seen.asked_s) == 401


def test_an_even_schedule_has_no_lag_and_a_late_request_has_its_own() -> None:
    assert clock(EVEN).schedule_lag_p99_ms(100) == pytest.approx(0.0, abs=1e-6)
    late = [
        [asked + (7_000 if index % 50 == 49 else 0), first, last] for index, (asked, first, last) in enumerate(EVEN)
    ]
    assert clock(late).schedule_lag_p99_ms(100) == pytest.approx(7.0)


def test_a_client_that_is_too_slow_lags_more_and_more() -> None:
    slow = [[1_000_000 + index * 11_000, 1, 1] for index in range(400)]
    assert (clock(slow).schedule_lag_p99_ms(100) or 0) > 350


def test_a_warm_up_is_no_part_of_the_schedule() -> None:
    with_warm_up = clock([[100_000, 121_000, 2_101_000], *EVEN])
    assert len(with_warm_up.scheduled()) == 400
    assert with_warm_up.schedule_lag_p99_ms(100) == pytest.approx(0.0, abs=1e-6)


def test_the_ends_of_a_run_do_not_count() -> None:
    assert canned.steady_chunks_per_s([0, 10, 5000, 12_000, 12_500, 12_400, 12_600, 12_500, 900, 0]) == 24_900
    assert canned.steady_chunks_per_s([]) == 0


def test_a_histogram_without_counts_has_no_percentile() -> None:
    assert canned.of_histogram([0, 0, 0], 0.1, 50) is None
    assert canned.of_histogram([0, 1, 1], 0.1, 50) == pytest.approx(0.15)


def test_the_server_tells_its_story_at_its_end(tmp_path: Path) -> None:
    with (
        CannedServer(canned.compiled(tmp_path), core="0") as server,
        socket.create_connection(("127.0.0.1", server.port)) as s,
    ):
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        received = b"".join(iter(lambda: s.recv(65536), b""))
    assert received.count(b'"content":" the"') == canned.TOKENS
    assert received.index(b'"role":"assistant"') < received.index(b'"content":" the"')
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert server.clock is not None
    assert len(server.clock.asked_s) == 1
    assert server.clock.ttft_p50_ms is not None
    assert server.clock.ttft_p50_ms >= canned.STEP_MS
