"""A number that is known within bounds, and where it comes from."""

from dataclasses import dataclass

PRINTED_GIB = 0.005
"""Half of the last digit that engines print."""


@dataclass(frozen=True, slots=True)
class Amount:
    """GiB with bounds. A number that somebody printed is known to half its last digit."""

    gib: float
    low: float
    high: float
    source: str

    @classmethod
    def printed(cls, gib: float, source: str = "given") -> "Amount":
        """As read from a log or given by hand with two decimals."""
        return cls(gib, gib - PRINTED_GIB, gib + PRINTED_GIB, source)

    @classmethod
    def exact(cls, gib: float, source: str) -> "Amount":
        return cls(gib, gib, gib, source)

    @classmethod
    def estimated(cls, gib: float, share: float, source: str) -> "Amount":
        """Known to a share of itself, such as 0.3 for ± 30 %."""
        return cls(gib, gib * (1 - share), gib * (1 + share), source)

    def minus(self, *others: "Amount", source: str) -> "Amount":
        """What is left; bounds add up."""
        return Amount(
            self.gib - sum(other.gib for other in others),
            self.low - sum(other.high for other in others),
            self.high - sum(other.low for other in others),
            source,
        )

    def times(self, factor: float, low: float, high: float, source: str) -> "Amount":
        """Times a factor that lies between two bounds."""
        return Amount(self.gib * factor, self.low * low, self.high * high, source)
