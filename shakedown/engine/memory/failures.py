"""What an engine died of, from its log, exit status and Kubernetes' reason: a class, a sentence, a flag to change."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATTERNS = Path(__file__).with_name("failures.toml")
SERVING = re.compile(r"Application startup complete|Uvicorn running on|Avg prompt throughput|POST /v1/")
"""Once a log says this, the engine had started: memory that ran out later ran out under load."""
WARMING_UP = re.compile(r"GPU KV cache size: ")
"""Said when the cache is taken and graphs and sampler are still to come: they lack what utilisation leaves free."""
OUT_OF_MEMORY = "out-of-memory"
COLOURS = re.compile(r"\x1b\[[\d;]*m")
"""Engines before 0.12 colour their prefixes even when nobody looks, between words that a pattern wants side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way of saying it, and the versions that say it so."""

    kind: str
    since: str
    """The first version that it was found in, by running it or by reading its source."""
    pattern: str
    meaning: str
    fix: str
    until: str = ""
    """The last one; empty while today's engines say it."""
    general: bool = False
    """It follows most failures, so it counts only where nothing says more."""
    words: str = ""
    """A line that it must match; for what no engine without a GPU says. The others have recorded logs."""
    source: str = ""
    """The public report of those words, and the releases in whose source they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDiagnosis:
    """`kind`: invalid, does-not-fit, free-memory-gate, oom-at-start, oom-at-warm-up, oom-under-load, probe-kill,
    node-oom-kill, engine-death or unknown."""

    kind: str
    sentence: str
    fix: str
    matched: str = ""
    """The words of the log that decided."""


@cache
def patterns() -> tuple[Pattern, ...]:
    """All known ways: specific before general, and of two specific ones the one that says more first."""
    return tuple(Pattern(**entry) for entry in tomllib.loads(PATTERNS.read_text())["failure"])


def classify(log: str, *, exit_code: int | None = None, reason: str | None = None) -> FailureDiagnosis:
    """`reason` is the container's (OOMKilled, Error, Completed…) or "probe-kill" when a probe did the killing."""
    if reason == "OOMKilled":
        return FailureDiagnosis(
            kind="node-oom-kill",
            sentence="the container outgrew its own memory limit (host memory, not the GPU's) and the kernel killed it",
            fix="raise resources.limits.memory; CUDA has nothing to do with it",
        )
    if reason == "probe-kill":
        return FailureDiagnosis(
            kind="probe-kill",
            sentence="the kubelet killed a living process because its probe gave up",
            fix="let initialDelaySeconds + periodSeconds × failureThreshold of that probe exceed the load time",
        )
    plain = COLOURS.sub("", log)
    for pattern in patterns():
        if found := re.search(pattern.pattern, plain, re.DOTALL):
            return _diagnosis(pattern, found, plain)
    killed = " (killed by a signal; look for a probe or the node)" if exit_code in (137, 143) else ""
    return FailureDiagnosis(
        kind="unknown",
        sentence=f"no known failure is in the log; exit status {exit_code}{killed}",
        fix="read the last lines of the log",
    )


def _diagnosis(pattern: Pattern, found: "re.Match[str]", log: str) -> FailureDiagnosis:
    values = {name: value or "not said" for name, value in found.groupdict().items()}
    if "field" in values:
        values["flag"] = values["field"].replace("_", "-")
    kind = pattern.kind
    if kind == OUT_OF_MEMORY:
        kind = _when_memory_ran_out(log[: found.start()])
    return FailureDiagnosis(
        kind=kind,
        sentence=pattern.meaning.format(**values),
        fix=pattern.fix.format(**values),
        matched=" ".join(found.group(0).split())[:300],
    )


def _when_memory_ran_out(log_before: str) -> str:
    if SERVING.search(log_before):
        return "oom-under-load"
    return "oom-at-warm-up" if WARMING_UP.search(log_before) else "oom-at-start"
