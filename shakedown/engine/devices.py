"""GPU profiles as data. Standard library only: the twin reads this inside the engine's environment.

Memory is what the driver reports as total, never the catalogue's round number: ECC, page tables and the reserved
area are already taken off. Bandwidth and dense BF16 peak (without sparsity) are those of NVIDIA's data sheets.
"""

import re
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class DeviceProfile:
    """One GPU."""

    name: str
    total_bytes: int
    """What the driver reports on the card the profile was read from."""
    bandwidth_bytes_per_s: float
    """Peak memory bandwidth of the data sheet."""
    flops_bf16_per_s: float
    """Dense BF16 peak of the data sheet, without sparsity; FP16 on cards that lack BF16."""
    source: str
    lowest_total_bytes: int = 0
    """The least and the most that drivers were seen to report for this card; equal to the total where one is known."""
    highest_total_bytes: int = 0
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lowest_total_bytes", self.lowest_total_bytes or self.total_bytes)
        object.__setattr__(self, "highest_total_bytes", self.highest_total_bytes or self.total_bytes)


def _profile(
    name: str,
    total_gib: float,
    bandwidth_gb_s: float,
    tflops: float,
    sheet: str,
    *,
    seen_gib: tuple[float, float] | None = None,
    memory: str = "as engines print it in public reports",
    aliases: tuple[str, ...] = (),
) -> DeviceProfile:
    low, high = seen_gib or (total_gib, total_gib)
    return DeviceProfile(
        name=name,
        total_bytes=int(total_gib * GIB),
        bandwidth_bytes_per_s=bandwidth_gb_s * 1e9,
        flops_bf16_per_s=tflops * 1e12,
        source=f"{sheet}; memory {memory}",
        lowest_total_bytes=int(low * GIB),
        highest_total_bytes=int(high * GIB),
        aliases=aliases,
    )


NVIDIA_SMI = "as nvidia-smi prints it"
"""Total in MiB of `nvidia-smi`; CUDA sees up to 1 % less, which the range holds."""

DEVICES = {
    profile.name: profile
    for profile in (
        _profile("A100-40", 39.38, 1555, 312, "NVIDIA A100 data sheet (40 GB)", seen_gib=(39.38, 39.56)),
        _profile(
            "A100-80",
            79.25,
            2039,
            312,
            "NVIDIA A100 data sheet (80 GB SXM)",
            seen_gib=(79.15, 79.32),
            aliases=("A100", "A800-80", "A800"),
        ),
        _profile(
            "H100-80",
            79.22,
            3350,
            989,
            "NVIDIA H100 data sheet (SXM5)",
            seen_gib=(79.10, 79.25),
            aliases=("H100", "H800-80", "H800"),
        ),
        _profile("H200", 139.81, 4800, 989, "NVIDIA H200 data sheet (SXM)", aliases=("H200-141",)),
        _profile(
            "H20",
            95.22,
            4000,
            148,
            "published H20 figures (96 GB)",
            seen_gib=(95.0, 95.6),
            memory="97871 MiB of nvidia-smi, less what CUDA hides",
            aliases=("H20-96",),
        ),
        _profile(
            "B200",
            178.35,
            8000,
            2250,
            "NVIDIA B200 data sheet (HGX)",
            seen_gib=(177.0, 179.1),
            memory="183359 MiB of nvidia-smi, less what CUDA hides",
            aliases=("B200-180",),
        ),
        _profile("L40S", 44.42, 864, 362, "NVIDIA L40S data sheet", seen_gib=(44.39, 44.53), aliases=("L40S-48",)),
        _profile("L40", 44.42, 864, 181, "NVIDIA L40 data sheet", seen_gib=(44.39, 44.53), aliases=("L40-48",)),
        _profile("L4", 22.04, 300, 121, "NVIDIA L4 data sheet", seen_gib=(22.03, 22.05), aliases=("L4-24",)),
        _profile("A40", 44.43, 696, 150, "NVIDIA A40 data sheet", seen_gib=(44.34, 44.99), memory=NVIDIA_SMI),
        _profile("A10", 22.06, 600, 125, "NVIDIA A10 data sheet", seen_gib=(21.98, 22.49), memory=NVIDIA_SMI),
        _profile("A10G", 22.06, 600, 70, "NVIDIA A10G data sheet", seen_gib=(21.98, 22.49), memory=NVIDIA_SMI),
        _profile("A30", 23.60, 933, 165, "NVIDIA A30 data sheet", seen_gib=(23.49, 24.0), memory=NVIDIA_SMI),
        _profile("T4", 14.56, 320, 65, "NVIDIA T4 data sheet (FP16)", seen_gib=(14.56, 14.75), aliases=("T4-16",)),
        _profile(
            "V100-16",
            15.77,
            900,
            125,
            "NVIDIA V100 data sheet (SXM2, FP16)",
            seen_gib=(15.75, 15.78),
            aliases=("V100",),
        ),
        _profile("V100-32", 31.73, 900, 125, "NVIDIA V100 data sheet (SXM2, FP16)", seen_gib=(31.73, 31.75)),
        _profile(
            "A6000", 47.53, 768, 155, "NVIDIA RTX A6000 data sheet", seen_gib=(47.43, 47.99), aliases=("RTXA6000",)
        ),
        _profile("RTX6000Ada", 47.38, 960, 182, "NVIDIA RTX 6000 Ada data sheet", seen_gib=(47.32, 47.99)),
        _profile("RTX3090", 23.58, 936, 71, "NVIDIA RTX 3090 data sheet", seen_gib=(23.57, 23.69), aliases=("3090",)),
        _profile("RTX4060", 8.0, 272, 60, "NVIDIA RTX 4060 data sheet", seen_gib=(7.63, 8.0), aliases=("4060",)),
        _profile("RTX4090", 23.65, 1008, 165, "NVIDIA RTX 4090 data sheet", seen_gib=(23.51, 23.99), aliases=("4090",)),
        _profile("RTX5090", 31.37, 1792, 210, "NVIDIA RTX 5090 data sheet", seen_gib=(31.34, 31.84), aliases=("5090",)),
    )
}


def device(name: str) -> DeviceProfile:
    """A profile by name or alias; case, spaces, dashes and words such as NVIDIA or GB do not matter.

    Raises KeyError with the names that exist.
    """
    wanted = _plain(name)
    for profile in DEVICES.values():
        if wanted in {_plain(known) for known in (profile.name, *profile.aliases)}:
            return profile
    raise KeyError(f"unknown device {name!r}; known: {', '.join(DEVICES)}")


def _plain(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB`, `a100 80g` and `A100-80` are one card."""
    words = name.lower().replace("-", " ").replace("_", " ").replace("(r)", " ").split()
    dropped = {
        "nvidia",
        "geforce",
        "tesla",
        "rtx",
        "pcie",
        "sxm",
        "sxm2",
        "sxm4",
        "sxm5",
        "nvl",
        "hbm3",
        "hbm2e",
        "gpu",
    }
    kept = [re.sub(r"^(\d+)gi?b?$", r"\1", word) for word in words if word not in dropped]
    return "".join(kept).removeprefix("rtx")
