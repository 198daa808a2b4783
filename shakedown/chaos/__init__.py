"""Faults as values, injected by Chaos Toolkit, proven to have landed, written down before they act, and taken back."""

from shakedown.chaos.access import Access
from shakedown.chaos.audit import Snapshot, differences, snapshot
from shakedown.chaos.experiment import SteadyState
from shakedown.chaos.journal import Journal
from shakedown.chaos.ledger import Ledger
from shakedown.chaos.safety import Safety
from shakedown.chaos.target import Count, NotExercised, Percent, Target
from shakedown.chaos.toolkit import run_experiment

__all__ = [
    "Access",
    "Count",
    "Journal",
    "Ledger",
    "NotExercised",
    "Percent",
    "Safety",
    "Snapshot",
    "SteadyState",
    "Target",
    "differences",
    "run_experiment",
    "snapshot",
]
