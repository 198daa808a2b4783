"""Small pieces of SVG: a plot area with a scale, and shapes in it.

Colours are classes of the report's style sheet, so light, dark and print share one picture.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 1180.0
LEFT = 208.0
RIGHT = 14.0
LABELS_AT = LEFT - 10


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Seconds to pixels."""

    start: float
    end: float

    def x(self, at: float) -> float:
        span = max(self.end - self.start, 1e-9)
        clipped = min(max(at, self.start), self.end)
        return LEFT + (clipped - self.start) / span * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> tuple[float, ...]:
        step = nice_step((self.end - self.start) / 8)
        first = math.ceil(self.start / step)
        return tuple(index * step for index in range(first, math.floor(self.end / step) + 1))


@dataclass(frozen=True, slots=True)
class Plot:
    """A row's area, and values to pixels in it."""

    top: float
    height: float
    highest: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def y(self, value: float) -> float:
        return self.bottom - min(max(value / self.highest, 0.0), 1.0) * self.height


def nice_step(rough: float) -> float:
    """The next of 1, 2, 5 × 10ⁿ."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def nice_ceiling(value: float) -> float:
    """A round number not below the value, for the top of an axis."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    step = nice_step(value / 4)
    return step * math.ceil(value / step - 1e-9)


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def axis_label(value: float) -> str:
    """A number on an axis."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def text(x: float, y: float, words: str, class_: str = "") -> str:
    return f'<text x="{number(x)}" y="{number(y)}"{_class(class_)}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, class_: str, tip: str = "", radius: float = 0) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    rounded = f' rx="{number(radius)}"' if radius else ""
    size = f'width="{number(max(width, 0.5))}" height="{number(height)}"'
    return f'<rect x="{number(x)}" y="{number(y)}" {size}{rounded}{_class(class_)}>{title}</rect>'


def circle(x: float, y: float, radius: float, class_: str, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>"
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"{_class(class_)}>{title}</circle>'


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f"<line {ends}{_class(class_)}/>"


def segments(pieces: Iterable[tuple[float, float, float]], class_: str, width: float) -> str:
    """Many horizontal strokes (x1, x2, y) as one path."""
    strokes = "".join(f"M{number(x1)} {number(y)}H{number(max(x2, x1 + 0.6))}" for x1, x2, y in pieces)
    return f'<path d="{strokes}" class="{class_}" stroke-width="{width:.2f}"/>' if strokes else ""


def notches(points: Iterable[tuple[float, float]], height: float, class_: str) -> str:
    """Many short vertical strokes as one path."""
    strokes = "".join(f"M{number(x)} {number(y - height / 2)}v{number(height)}" for x, y in points)
    return f'<path d="{strokes}" class="{class_}"/>' if strokes else ""


def crosses(points: Iterable[tuple[float, float]], class_: str, size: float = 2.6) -> str:
    """Many × marks as one path."""
    arms = "".join(
        f"M{number(x - size)} {number(y - size)}l{number(2 * size)} {number(2 * size)}"
        f"M{number(x - size)} {number(y + size)}l{number(2 * size)} {number(-2 * size)}"
        for x, y in points
    )
    return f'<path d="{arms}" class="{class_}"/>' if arms else ""


def dots(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Many round points as one path of zero-length strokes."""
    strokes = "".join(f"M{number(x)} {number(y)}h0" for x, y in points)
    return f'<path d="{strokes}" class="{class_}"/>' if strokes else ""


def curve(points: Sequence[tuple[float, float] | None], class_: str) -> str:
    """A line through the points, broken where there is none."""
    strokes, pen_down = "", False
    for point in points:
        if point is None:
            pen_down = False
            continue
        strokes += f"{'L' if pen_down else 'M'}{number(point[0])} {number(point[1])}"
        pen_down = True
    return f'<path d="{strokes}" class="{class_}"/>' if strokes else ""


def stairs(points: Sequence[tuple[float, float] | None]) -> list[tuple[float, float] | None]:
    """The points of a value that holds until the next one, for `curve`."""
    steps: list[tuple[float, float] | None] = []
    for point in points:
        before = steps[-1] if steps else None
        if point is not None and before is not None:
            steps.append((point[0], before[1]))
        steps.append(point)
    return steps


def area(points: Sequence[tuple[float, float]], bottom: float, class_: str) -> str:
    """The area between a line and the bottom."""
    if not points:
        return ""
    along = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    first, last = number(points[0][0]), number(points[-1][0])
    return f'<path d="M{first} {number(bottom)}L{along}L{last} {number(bottom)}Z" class="{class_}"/>'


def _class(class_: str) -> str:
    return f' class="{class_}"' if class_ else ""
