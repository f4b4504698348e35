"""How many pages of KV fit: what the settings say, or a part of what is free."""

from pathlib import Path

import torch

from radixd.settings import Settings
from radixd.workers.models import ModelError

CPU_SHARE = 0.25
CPU_MOST = 2 << 30
"""On a CPU the memory is shared with everything else, and 2 GiB hold 93,000 tokens of the
embedded model in bfloat16."""
CUDA_SHARE = 0.85
"""The rest is for activations, masks and gathered keys."""


def plan_pages(settings: Settings, bytes_per_token: int, device: torch.device) -> int:
    """Return the number of pages to make, the scratch page included.

    Raises `ModelError` if fewer than two fit.
    """
    if settings.kv_pages is not None:
        return settings.kv_pages
    if settings.kv_memory is not None:
        name, memory = "kv_memory", settings.kv_memory
    elif device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        name, memory = f"{CUDA_SHARE:.0%} of free GPU memory", int(free * CUDA_SHARE)
    else:
        memory = min(int(available_memory() * CPU_SHARE), CPU_MOST)
        name = f"{CPU_SHARE:.0%} of available memory"
    pages = memory // (bytes_per_token * settings.page_size)
    if pages < 2:
        raise ModelError(
            f"{name} is {memory:,} bytes, which hold {pages} pages of {settings.page_size} tokens "
            f"at {bytes_per_token:,} bytes each; at least two pages are needed"
        )
    return pages


def available_memory() -> int:
    """Return the bytes that this process may still take, by the machine and by its cgroup."""
    limits = [_meminfo()]
    cgroup = Path("/sys/fs/cgroup")
    try:
        most, now = ((cgroup / name).read_text() for name in ("memory.max", "memory.current"))
        limits.append(int(most) - int(now))
    except (OSError, ValueError):
        pass  # no cgroup, or no limit in it, which reads "max"
    return max(0, min(limits))


def _meminfo() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo names no MemAvailable; give kv_pages or kv_memory")
