"""As much of kustomize as linting sources needs: which files are patches, the namespace, the images.

Overlays are not merged: what a patch changes is seen when the rendered output is linted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from shakedown.serving.lint.tree import at, mapping, mappings, text, texts

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")


@dataclass(frozen=True, slots=True)
class Kustomization:
    """What a folder's kustomization says about the files in it; the plain one says nothing."""

    namespace: str | None = None
    patches: frozenset[Path] = frozenset()
    images: Mapping[str, str] = field(default_factory=dict)
    """Full reference by the name that the files use."""

    def is_patch(self, path: Path) -> bool:
        return path.resolve() in self.patches

    def with_images(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with its containers' images as this kustomization sets them."""
        containers = at(document, "spec", "template", "spec", "containers")
        if not self.images or not mappings(containers):
            return document
        replaced = [{**entry, "image": self._image(text(entry.get("image")))} for entry in mappings(containers)]
        template = document["spec"]["template"]
        pod = {**template["spec"], "containers": replaced}
        return {**document, "spec": {**document["spec"], "template": {**template, "spec": pod}}}

    def _image(self, image: str) -> str:
        name = image.partition("@")[0]
        if ":" in name.rpartition("/")[2]:
            name = name.rpartition(":")[0]
        return self.images.get(name, image)


def kustomization_over(path: Path) -> Kustomization:
    """The kustomization beside a file."""
    return _read(path.resolve().parent)


@lru_cache(maxsize=256)
def _read(folder: Path) -> Kustomization:
    file = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if file is None:
        return Kustomization()
    try:
        content = mapping(yaml.safe_load(file.read_text()))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        # The file itself is linted too, and says what is wrong with it.
        return Kustomization()
    named = [text(entry.get("path")) for key in ("patches", "patchesJson6902") for entry in mappings(content.get(key))]
    named += texts(content.get("patchesStrategicMerge"))
    return Kustomization(
        namespace=text(content.get("namespace")) or None,
        patches=frozenset((folder / name).resolve() for name in named if name and "\n" not in name),
        images={text(entry.get("name")): _reference(entry) for entry in mappings(content.get("images"))},
    )


def _reference(entry: Mapping[Any, Any]) -> str:
    name = text(entry.get("newName")) or text(entry.get("name"))
    digest, tag = text(entry.get("digest")), text(entry.get("newTag"))
    return f"{name}@{digest}" if digest else f"{name}:{tag}" if tag else name
