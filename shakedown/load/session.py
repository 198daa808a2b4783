"""A conversation: each question carries what was said before it, the engine's own answers included."""

from dataclasses import dataclass, field

from shakedown.judge.records import Outcome
from shakedown.load.workload import Message, RequestPlan


@dataclass(slots=True)
class Session:
    """One user's talk."""

    plan: RequestPlan
    """Of the question under way."""
    said: list[Message] = field(default_factory=list)
    """Up to that question."""
    answer: str | None = None
    """To that question, when it has ended."""

    def goes_on_after(self, outcome: Outcome) -> bool:
        """A user who got no answer, or had the last one, asks no more."""
        return outcome is Outcome.COMPLETED and self.plan.turn < self.plan.turns

    def go_on(self, plan: RequestPlan, question: Message) -> None:
        """Take the answer into what was said, and the next question."""
        self.said += ({"role": "assistant", "content": self.answer or ""}, question)
        self.plan = plan
