"""Load that can be believed: arrivals, workloads, the streaming client, and its self-diagnosis."""

from shakedown.load.arrivals import (
    Arrivals,
    Burst,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Sinusoid,
    Steps,
    Together,
    Trace,
)
from shakedown.load.client import Limits, StreamingClient
from shakedown.load.health import HealthBounds, LoadHealth
from shakedown.load.open_loop import OpenLoop, Progress
from shakedown.load.records_file import RecordsFile, read_records, write_records
from shakedown.load.workload import Length, ListedTokens, LognormalTokens, TrafficClass, UniformTokens, Workload

__all__ = [
    "Arrivals",
    "Burst",
    "ClosedLoop",
    "Constant",
    "Gamma",
    "HealthBounds",
    "Length",
    "Limits",
    "ListedTokens",
    "LoadHealth",
    "LognormalTokens",
    "OpenLoop",
    "Poisson",
    "Progress",
    "Ramp",
    "RecordsFile",
    "Sinusoid",
    "Steps",
    "StreamingClient",
    "Together",
    "Trace",
    "TrafficClass",
    "UniformTokens",
    "Workload",
    "read_records",
    "write_records",
]
