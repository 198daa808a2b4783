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
from shakedown.load.open_loop import OpenLoop, Progress, served_models
from shakedown.load.prompts import PromptMaker
from shakedown.load.records_file import RecordsFile, read_records, write_records
from shakedown.load.summary import LoadSummary, Spread, summarize
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
    "LoadSummary",
    "LognormalTokens",
    "OpenLoop",
    "Poisson",
    "Progress",
    "PromptMaker",
    "Ramp",
    "RecordsFile",
    "Sinusoid",
    "Spread",
    "Steps",
    "StreamingClient",
    "Together",
    "Trace",
    "TrafficClass",
    "UniformTokens",
    "Workload",
    "read_records",
    "served_models",
    "summarize",
    "write_records",
]
