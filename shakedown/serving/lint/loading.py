"""From paths to the world that they declare: YAML documents, what is embedded in ConfigMaps, nginx files."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shakedown.errors import UsageError
from shakedown.serving.lint.kustomization import Kustomization, kustomization_over
from shakedown.serving.lint.nginx_includes import join
from shakedown.serving.lint.nginx_syntax import LOOKS_LIKE_NGINX, NotNginx, parse
from shakedown.serving.lint.tree import at, mapping, mappings, text
from shakedown.serving.lint.world import Item, NginxFile, Place, World

STANDARD_INPUT = "-"
NGINX_ENDINGS = (".conf", ".nginx")
LARGEST_FILE_BYTES = 16 * 1024**2
SUB_DOCUMENTS = ("rules", "externalRules", "resourceRules", "scrape_configs", "groups")
"""Top-level keys by which a ConfigMap's value is known as configuration of an adapter or of Prometheus."""

SUB_DOCUMENT_KEY = re.compile(rf"\b({'|'.join(SUB_DOCUMENTS)})\"?\s*:")


def load(paths: Sequence[str]) -> World:
    """Read files and folders; "-" is standard input.

    Raises UsageError with one line for what is missing, unreadable, not YAML or not nginx. A patch of a kustomization
    is left out: it is no object of its own.
    """
    items: list[Item] = []
    nginx: list[NginxFile] = []
    for name, content, kustomization in _sources(paths):
        if name.endswith(NGINX_ENDINGS):
            nginx.extend(_nginx(Place(name, "nginx"), content, strict=LOOKS_LIKE_NGINX.search(content) is not None))
            continue
        for document in _documents(name, content):
            items.extend(_items(name, document, kustomization))
    for item in tuple(items):
        if item.kind == "ConfigMap":
            more_items, more_nginx = _embedded(item)
            items.extend(more_items)
            nginx.extend(more_nginx)
    join(nginx)
    return World(tuple(items), tuple(nginx))


def _sources(paths: Sequence[str]) -> Iterator[tuple[str, str, Kustomization]]:
    seen: set[Path] = set()
    for name in paths:
        if name == STANDARD_INPUT:
            yield "standard input", _standard_input(), Kustomization()
            continue
        for path in _files(Path(name)):
            kustomization = kustomization_over(path)
            if path.resolve() in seen or kustomization.is_patch(path):
                continue
            seen.add(path.resolve())
            yield str(path), _read(path), kustomization


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in (".yaml", ".yml", *NGINX_ENDINGS)
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not found:
        raise UsageError(f"{path} holds no .yaml, .yml or .conf file")
    return found


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UsageError(f"{path} has more than {LARGEST_FILE_BYTES // 1024**2} MiB; that is no manifest")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text") from error


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError("standard input is not text") from error


def _documents(name: str, content: str) -> list[Any]:
    try:
        return list(yaml.safe_load_all(content))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        advice = "; a Helm template is rendered first: helm template … | shakedown lint -" if "{{" in content else ""
        raise UsageError(f"{name} is not YAML{line}: {error.problem}{advice}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{name} is not YAML: {first}") from error


def _items(name: str, document: Any, kustomization: Kustomization) -> Iterator[Item]:
    if not isinstance(document, dict):
        return
    if text(document.get("kind")).endswith("List") and isinstance(document.get("items"), list):
        for inner in mappings(document["items"]):
            yield from _items(name, inner, kustomization)
        return
    body = kustomization.with_images(document)
    namespace = kustomization.namespace or text(at(body, "metadata", "namespace")) or None
    yield Item(name, body, namespace)


def _embedded(item: Item) -> tuple[list[Item], list[NginxFile]]:
    """What a ConfigMap carries as text: nginx configurations, rules of an adapter, scrape jobs."""
    items: list[Item] = []
    nginx: list[NginxFile] = []
    for key, value in mapping(item.body.get("data")).items():
        content, place = text(value), Place(item.file, f"ConfigMap {item.name}, {text(key)}")
        if LOOKS_LIKE_NGINX.search(content):
            nginx.extend(_nginx(place, content, strict=False))
        elif SUB_DOCUMENT_KEY.search(content):
            items.extend(_inner_item(item, place, inner) for inner in _inner_documents(content))
    return items, nginx


def _inner_documents(content: str) -> list[Mapping[str, Any]]:
    try:
        found = mappings(list(yaml.safe_load_all(content)))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return [document for document in found if any(word in document for word in SUB_DOCUMENTS)]


def _inner_item(item: Item, place: Place, document: Mapping[str, Any]) -> Item:
    return Item(item.file, {**document, "metadata": {"name": place.object}}, item.namespace)


def _nginx(place: Place, content: str, *, strict: bool) -> list[NginxFile]:
    try:
        return [NginxFile(place, parse(content))]
    except (NotNginx, RecursionError) as error:
        if strict:
            raise UsageError(f"{place.file} is not an nginx configuration: {error}") from error
        return []
