"""Configs of models that people run, by the names they type: the data is in `known_models.toml`."""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shakedown.engine.environment import CONFIGS

DATA = Path(__file__).with_name("known_models.toml")
DROPPED = ("-instruct", "-chat", "-hf", "-it")
"""Endings that change what a model says and not what it weighs."""


@dataclass(frozen=True)
class KnownModel:
    names: tuple[str, ...]
    source: str
    config: dict[str, Any]
    parameters: int = 0
    """As the hub counts them; 0 where that count says something else."""


@cache
def known_models() -> tuple[KnownModel, ...]:
    """The configs that twins are started from, then those of the data file."""
    bundled = tuple(
        KnownModel((path.stem,), "bundled for the twin", json.loads(path.read_text()))
        for path in sorted(CONFIGS.rglob("*.json"))
    )
    entries = tomllib.loads(DATA.read_text())["model"]
    listed = (KnownModel(**{**entry, "names": tuple(entry["names"])}) for entry in entries)
    return (*bundled, *listed)


def find_model(name: str) -> KnownModel | None:
    """By its full name, else without the owner, else without an ending such as -Instruct; case is ignored."""
    for key in (str.lower, _short, _shortest):
        for model in known_models():
            if key(name) in {key(known) for known in model.names}:
                return model
    return None


def nearest_names(name: str, count: int = 5) -> list[str]:
    """Known names that share most words with an unknown one."""
    words = set(_short(name).replace(".", "-").split("-"))
    names = [model.names[0] for model in known_models()]
    ranked = sorted(names, key=lambda known: -len(words & set(_short(known).replace(".", "-").split("-"))))
    return ranked[:count]


def _short(name: str) -> str:
    return name.lower().rstrip("/").rpartition("/")[2].removeprefix("meta-")


def _shortest(name: str) -> str:
    short = _short(name)
    for ending in DROPPED:
        short = short.removesuffix(ending)
    return short
