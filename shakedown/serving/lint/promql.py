"""As much of PromQL as the rules need: the vLLM series that a query reads, by which labels, and its outermost call."""

import re
from dataclasses import dataclass

STRING = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|`[^`]*`'
BRACES = rf"\{{(?:{STRING}|[^}}\"'`])*\}}"
SERIES = re.compile(rf"(?<![\w:])(vllm[:_][A-Za-z0-9_:]*)\s*({BRACES})?")
NAMED_IN_BRACES = re.compile(r'__name__\s*=\s*"(vllm[:_][A-Za-z0-9_:]*)"')
MATCHER = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)\s*(?:=~|!~|!=|=)\s*(?:{STRING})")
LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", re.I)
COMMENT = re.compile(r"#[^\n]*")
GROUPED = re.compile(r"\b(?:by|without)\s*\(", re.I)
OUTER_CALL = re.compile(r"^\s*\(*\s*([a-z_]+)\s*(?:(?:by|without)\s*\([^)]*\)\s*)?\(")


@dataclass(frozen=True, slots=True)
class Series:
    """A vLLM series that a query selects, and the labels that it is selected by."""

    name: str
    labels: frozenset[str]


def series_in(query: str) -> tuple[Series, ...]:
    """All selections of series named vllm:… or vllm_…, in the order of the query."""
    bare = LABEL_LIST.sub(" ", COMMENT.sub(" ", query))
    found = [Series(match[1], _labels(match[2] or "")) for match in SERIES.finditer(_without_strings_outside(bare))]
    found += [Series(match[1], _labels(query)) for match in NAMED_IN_BRACES.finditer(query)]
    return tuple(found)


def outermost(query: str) -> str:
    """Name of the function or aggregation that a query begins with; empty if it begins with none."""
    found = OUTER_CALL.match(COMMENT.sub(" ", query))
    return found[1] if found else ""


def grouped(query: str) -> bool:
    """Whether the query keeps labels apart with by or without."""
    return GROUPED.search(query) is not None


def _labels(braces: str) -> frozenset[str]:
    return frozenset(match[1] for match in MATCHER.finditer(braces)) - {"__name__"}


def _without_strings_outside(query: str) -> str:
    """The query with the text of label values blanked, so that a name in a value is no series."""
    return re.sub(STRING, lambda match: '"' + "x" * (len(match[0]) - 2) + '"', query)
