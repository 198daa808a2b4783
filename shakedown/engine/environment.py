"""The engine's own Python environment: installed once, kept in the cache, offered to the nodes.

vLLM pins half of PyPI and the harness must not inherit that, so it lives in a venv of its own. What a pod needs of
this package (the twin) is staged beside it, keyed by content, so that a checkout may change while a cluster runs.
"""

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from shakedown.errors import CommandFailed, SetupError, UsageError
from shakedown.process import run, uv_program
from shakedown.settings import cache_root
from shakedown.waiting import wait_until

PACKAGE = Path(__file__).resolve().parent
ENVIRONMENTS = PACKAGE / "environments"
CONFIGS = PACKAGE / "model_configs"
NEEDED_BYTES = 8 * 1024**3
INSTALL_LIMIT_S = 1200.0
MAKE_MODELS_LIMIT_S = 300.0
STAGED = (
    *("__init__.py", "engine/__init__.py", "engine/devices.py", "engine/shape.py", "engine/hf_config.py"),
    *("engine/config_text.py", "engine/layers.py", "engine/quantization.py", "engine/twin"),
)
ENTRY_POINTS = "[vllm.platform_plugins]\nshakedown_twin = shakedown.engine.twin.platform:register\n"
METADATA = "Metadata-Version: 2.1\nName: shakedown-twin\nVersion: 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """Where the parts of an engine are on this machine."""

    version: str
    venv: Path
    python_home: Path
    """Prefix of the interpreter; mounted elsewhere, it finds itself."""
    twin_root: Path
    models_root: Path

    @property
    def site_packages(self) -> Path:
        return next((self.venv / "lib").glob("python3*/site-packages"))


def known_versions() -> tuple[str, ...]:
    """Engine versions whose requirements are pinned here, the oldest first."""
    versions = (path.stem.removeprefix("vllm-") for path in ENVIRONMENTS.glob("vllm-*.txt"))
    return tuple(sorted(versions, key=lambda version: [int(part) for part in version.split(".")]))


def requirements_of(version: str) -> Path:
    """The pinned requirements of an engine version. Raises UsageError for one that is not pinned."""
    path = ENVIRONMENTS / f"vllm-{version}.txt"
    if not path.is_file():
        raise UsageError(f"no requirements are pinned for vLLM {version}; known: {', '.join(known_versions())}")
    return path


def overrides_of(version: str) -> Path:
    """What the metadata of that version wants and is not installed so: builds that PyPI lacks, parts never imported."""
    return ENVIRONMENTS / f"overrides-{version}.txt"


def environment_key(version: str) -> str:
    """Changes with anything that changes what gets installed."""
    parts = (requirements_of(version).read_bytes(), overrides_of(version).read_bytes())
    python = f"{sys.version_info.major}.{sys.version_info.minor}-{sys.base_prefix}".encode()
    return hashlib.sha256(b"\0".join((*parts, python))).hexdigest()[:12]


async def ensure_environment(version: str = "0.32.0", *, report: Callable[[str], None]) -> EngineEnvironment:
    """Find or build the environment of an engine version. Raises SetupError if it cannot be built."""
    venv = cache_root() / "engines" / f"{version}-{environment_key(version)}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    async with _only_one(venv.parent / f"{venv.name}.lock", report):
        if not venv.is_dir():
            await _install(version, venv, report)
        twin_root = stage_twin(cache_root() / "twin")
        models_root = await _ensure_models(venv, twin_root, report)
    return EngineEnvironment(
        version=version,
        venv=venv,
        python_home=Path(sys.base_prefix),
        twin_root=twin_root,
        models_root=models_root,
    )


def stage_twin(into: Path) -> Path:
    """Copy what runs inside the engine to a folder named by its content, and return that."""
    source = PACKAGE.parent
    files = [path for part in STAGED for path in _python_files(source / part)]
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    staged = into / digest.hexdigest()[:12]
    if staged.is_dir():
        return staged
    draft = _draft_of(staged)
    for path in files:
        target = draft / "shakedown" / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    metadata = draft / "shakedown_twin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return _publish(draft, staged)


async def _install(version: str, venv: Path, report: Callable[[str], None]) -> None:
    free = shutil.disk_usage(venv.parent).free
    if free < NEEDED_BYTES:
        raise SetupError(
            f"vLLM {version} needs {NEEDED_BYTES >> 30} GiB in {venv.parent} and {free / 1024**3:.1f} GiB are free; "
            "free some, or point SHAKEDOWN_CACHE at another disk"
        )
    report(f"installing vLLM {version} (about 6 GB, once)")
    draft = _draft_of(venv)
    uv = uv_program()
    try:
        await run([uv, "venv", "--quiet", "--clear", "--relocatable", "--python", sys.executable, draft], timeout_s=60)
        await run(
            [
                *(uv, "pip", "install", "--quiet", "--python", draft / "bin" / "python", "--compile-bytecode"),
                *("--override", overrides_of(version), "--requirement", requirements_of(version)),
            ],
            timeout_s=INSTALL_LIMIT_S,
        )
    except CommandFailed as failure:
        raise SetupError(f"vLLM {version} could not be installed: {failure}") from failure
    # Manifests mount one path for every Python version.
    library = next((draft / "lib").glob("python3*"))
    (draft / "lib" / "python3").symlink_to(library.name)
    _publish(draft, venv)


async def _ensure_models(venv: Path, twin_root: Path, report: Callable[[str], None]) -> Path:
    digest = hashlib.sha256()
    for path in (*sorted(CONFIGS.rglob("*.json")), twin_root / "shakedown/engine/twin/make_models.py"):
        digest.update(path.name.encode() + path.read_bytes())
    models = cache_root() / "models" / digest.hexdigest()[:12]
    if models.is_dir():
        return models
    report("making the model folders (configs, tokenizer, a tiny real model)")
    draft = _draft_of(models)
    await run(
        [venv / "bin" / "python", "-m", "shakedown.engine.twin.make_models", CONFIGS, draft],
        timeout_s=MAKE_MODELS_LIMIT_S,
        env={"PYTHONPATH": str(twin_root), "VLLM_CACHE_ROOT": str(draft / "cache"), "HF_HUB_OFFLINE": "1"},
    )
    for path in draft.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return _publish(draft, models)


def _draft_of(final: Path) -> Path:
    """A new folder beside the final one, readable for any user of a pod. What a killed run left of its own goes."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in final.parent.glob(f".{final.name}-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}-"))
    draft.chmod(0o755)
    return draft


def _publish(draft: Path, final: Path) -> Path:
    """Rename into place: a folder of that name is always complete."""
    try:
        draft.rename(final)
    except OSError:
        shutil.rmtree(draft)
    return final


def _python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@asynccontextmanager
async def _only_one(lock: Path, report: Callable[[str], None]) -> AsyncIterator[None]:
    """Concurrent runs build an environment once; the others wait for the first, and may do other things meanwhile."""

    async def taken() -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with lock.open("w") as handle:
        if not await taken():
            report("waiting for another run, which is preparing the engine")
            await wait_until(f"the lock {lock}", taken, bool, within_s=INSTALL_LIMIT_S)
        yield
