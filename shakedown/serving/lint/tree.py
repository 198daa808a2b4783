"""Reads values out of YAML that may have any shape: what is not as expected counts as absent."""

from typing import Any


def at(node: Any, *path: str | int) -> Any:
    """The value under a path of keys and positions, or None."""
    for step in path:
        if isinstance(node, dict):
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            return None
    return node


def mapping(node: Any) -> dict[Any, Any]:
    return node if isinstance(node, dict) else {}


def mappings(node: Any) -> list[dict[Any, Any]]:
    """The mappings in a list."""
    return [entry for entry in node if isinstance(entry, dict)] if isinstance(node, list) else []


def text(node: Any) -> str:
    """A scalar as YAML writes it; empty for anything else."""
    if isinstance(node, bool):
        return "true" if node else "false"
    return str(node) if isinstance(node, (str, int, float)) else ""


def texts(node: Any) -> list[str]:
    return [text(entry) for entry in node if text(entry)] if isinstance(node, list) else []


def number(node: Any, default: float | None = None) -> float | None:
    """A number, also when it is written as text; `default` for anything else."""
    try:
        return default if isinstance(node, bool) else float(text(node))
    except ValueError:
        return default


def labels_of(node: Any) -> dict[str, str]:
    return {text(key): text(value) for key, value in mapping(node).items()}
