"""The replica curve of a simulation as text."""

from collections.abc import Sequence

from shakedown.serving.autoscaling.simulator import Sample, Simulation

WIDTH, HEIGHT = 96, 16
READY, LOADING, PENDING = "█", "▒", "░"
LEGEND = f"{READY} ready   {LOADING} loading   {PENDING} wanted, without a GPU yet"
LEVELS = " ▁▂▃▄▅▆▇█"


def picture(simulation: Simulation, width: int = WIDTH) -> str:
    """Replicas over time, and the queue below; a column shows the last sample of its part of the time."""
    columns = _columns(simulation.samples, width)
    most = max(max(sample.wanted, sample.ready) for sample in columns)
    step = -(-most // HEIGHT) or 1
    rows = [_row(level, columns) for level in range(-(-most // step) * step, 0, -step)]
    longest = max(sample.waiting for sample in columns)
    queue = "".join(_level(sample.waiting, longest) for sample in columns)
    end = f"{simulation.duration_s:g} s"
    return "\n".join(
        [
            *rows,
            f"     └{'─' * len(columns)}",
            f"queue {queue} {longest:,} at most",
            f"      0 s{end:>{max(len(columns) - 3, 1)}}",
            f"      {LEGEND}",
        ]
    )


def _columns(samples: Sequence[Sample], width: int) -> list[Sample]:
    count = min(width, len(samples))
    return [samples[(index + 1) * len(samples) // count - 1] for index in range(count)]


def _row(level: int, columns: Sequence[Sample]) -> str:
    return f"{level:>4} │{''.join(_cell(level, sample) for sample in columns)}"


def _cell(level: int, sample: Sample) -> str:
    for mark, reached in ((READY, sample.ready), (LOADING, sample.scheduled), (PENDING, sample.wanted)):
        if level <= reached:
            return mark
    return " "


def _level(value: int, highest: int) -> str:
    return LEVELS[-(-value * (len(LEVELS) - 1) // highest)] if highest else " "
