"""GPU profiles as data. Standard library only: the twin reads this inside the engine's environment."""

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class DeviceProfile:
    """One GPU. Memory is what the driver reports, never the catalogue's round number."""

    name: str
    total_bytes: int
    bandwidth_bytes_per_s: float
    """Peak memory bandwidth of the data sheet."""
    flops_bf16_per_s: float
    """Dense BF16 peak of the data sheet, without sparsity."""
    source: str


def _profile(name: str, total_gib: float, bandwidth_gb_s: float, tflops: float, source: str) -> DeviceProfile:
    return DeviceProfile(name, int(total_gib * GIB), bandwidth_gb_s * 1e9, tflops * 1e12, source)


DEVICES = {
    profile.name: profile
    for profile in (
        _profile("A100-40", 39.38, 1555, 312, "NVIDIA A100 data sheet (40 GB PCIe); memory as reported by the driver"),
        _profile("A100-80", 79.25, 2039, 312, "NVIDIA A100 data sheet (80 GB SXM); memory as reported by the driver"),
        _profile("H100-80", 79.22, 3350, 989, "NVIDIA H100 data sheet (SXM5); memory as reported by the driver"),
        _profile("H200", 139.81, 4800, 989, "NVIDIA H200 data sheet (SXM); memory as reported by the driver"),
        _profile("L40S", 44.42, 864, 362, "NVIDIA L40S data sheet; memory as reported by the driver"),
        _profile("L4", 22.04, 300, 121, "NVIDIA L4 data sheet; memory as reported by the driver"),
        _profile("RTX3090", 23.58, 936, 71, "NVIDIA RTX 3090 data sheet; memory as reported by the driver"),
        _profile("RTX4060", 8.0, 272, 60, "NVIDIA RTX 4060 data sheet; memory as reported by the driver"),
        _profile("A40", 44.99, 696, 150, "NVIDIA A40 data sheet; memory as reported by the driver"),
        _profile("T4", 14.56, 320, 65, "NVIDIA T4 data sheet (FP16); memory as reported by the driver"),
    )
}


def device(name: str) -> DeviceProfile:
    """A profile by name, in any case. Raises KeyError with the names that exist."""
    for known, profile in DEVICES.items():
        if known.lower() == name.lower():
            return profile
    raise KeyError(f"unknown device {name!r}; known: {', '.join(DEVICES)}")
