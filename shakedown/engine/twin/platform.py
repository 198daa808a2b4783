"""The platform that the twin's vLLM believes it runs on: the CPU one, calling its device a GPU.

vLLM finds it by the entry point that `engine.environment` stages beside this package.
"""

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def register() -> str:
    """Called by vLLM for the group `vllm.platform_plugins`; names the platform class.

    VLLM_TARGET_DEVICE asks for the plain CPU platform. Releases before 0.32 look for it in the version of a
    distribution called vllm instead, which PyPI's CPU builds are not, so this is where they learn of it.
    """
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return "vllm.platforms.cpu.CpuPlatform"
    return f"{__name__}.TwinPlatform"


class TwinPlatform(CpuPlatform):  # type: ignore[misc]
    """A CPU without kernels to run."""

    device_name = "gpu"

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """As on CPU, but the engine process is forked: OpenMP, which forbids it there, computes nothing here.

        A fork saves the second import of everything, a third of the start.
        """
        super().check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
