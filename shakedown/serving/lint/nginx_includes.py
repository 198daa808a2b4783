"""Joins nginx files by their `include`s: what surrounds an include holds inside it, and its content holds around it."""

from collections.abc import Sequence
from fnmatch import fnmatch

from shakedown.serving.lint.nginx_syntax import Block
from shakedown.serving.lint.world import NginxFile


def join(files: Sequence[NginxFile]) -> None:
    """Hang each included file into the block that includes it, by the file's own name.

    Folders are not compared: in a container they are not those of the source tree.
    """
    for file in files:
        for block in file.root.walk():
            for pattern in [words[0] for words in block.here("include") if words]:
                for other in files:
                    if fnmatch(_name(other), pattern.rpartition("/")[2]):
                        _hang(other.root, block)


def _hang(included: Block, block: Block) -> None:
    around = list(block.outward())
    if included.parent is None and included not in around:
        included.parent = block
        block.directives.extend(included.directives)


def _name(file: NginxFile) -> str:
    """File name, or key of a ConfigMap."""
    if file.place.object == "nginx":
        return file.place.file.rpartition("/")[2]
    return file.place.object.rpartition(", ")[2]
