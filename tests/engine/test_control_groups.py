"""What the engine may use of a machine: the limits of its control groups, and its affinity mask."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from ionrouter.engine import _ion

UNIT = "sys/fs/cgroup/system.slice/ionrouter.service"


def write(root: Path, files: dict[str, str]) -> dict[str, int | None]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return _ion.control_group_limits(str(root))


def memory(folder: str, limit: str, used: int, yields: int, **more: str) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {yields}\nactive_file 7"
    named = {"memory.max": limit, "memory.current": str(used), "memory.stat": stat}
    return {f"{folder}/{name}": text for name, text in {**named, **more}.items()}


def test_a_container_whose_group_is_the_root_has_its_limits(tmp_path: Path) -> None:
    assert write(tmp_path, {"proc/self/cgroup": "0::/"}) == {"bytes": None, "cpus": None}
    found = write(tmp_path, memory("sys/fs/cgroup", "1000000", 600_000, 100_000))
    assert found == {"bytes": 500_000, "cpus": None}
    assert write(tmp_path, {"sys/fs/cgroup/memory.max": "600000"})["bytes"] == 100_000
    assert write(tmp_path, {"sys/fs/cgroup/memory.max": "400000"})["bytes"] == 0, "and not less"
    assert write(tmp_path, {"sys/fs/cgroup/memory.max": "max"})["bytes"] is None


def test_the_limit_of_a_service_counts_which_is_in_its_own_group(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/system.slice/ionrouter.service"})
    assert write(tmp_path, memory(UNIT, "2000000", 600_000, 0))["bytes"] == 1_400_000
    slice_ = str(Path(UNIT).parent)
    assert write(tmp_path, memory(slice_, "1000000", 900_000, 0))["bytes"] == 100_000, "and that of a parent"
    high = write(tmp_path, {f"{UNIT}/memory.high": "650000"})
    assert high["bytes"] == 50_000, "above it the kernel takes pages back"


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", None)],
)
def test_a_quota_of_cpu_time_is_so_many_cpus(tmp_path: Path, quota: str, cpus: int | None) -> None:
    files = {"proc/self/cgroup": "0::/system.slice/ionrouter.service", f"{UNIT}/cpu.max": quota}
    assert write(tmp_path, files)["cpus"] == cpus
    assert write(tmp_path, {"sys/fs/cgroup/system.slice/cpu.max": "10000 100000"})["cpus"] == 1


def test_control_groups_of_version_one_count(tmp_path: Path) -> None:
    found = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/ab12\n2:cpu,cpuacct:/docker/ab12\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000",  # the container sees its own as the root
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/docker/ab12/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/docker/ab12/cpu.cfs_period_us": "100000",
        },
    )
    assert found == {"bytes": 2_500_000, "cpus": 3}


def _pinned_to(cpus: set[int]) -> int:
    os.sched_setaffinity(0, cpus)
    return _ion.usable_cpus()


def test_threads_are_as_many_as_the_affinity_mask_allows() -> None:
    one = {min(os.sched_getaffinity(0))}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        assert other.submit(_pinned_to, one).result() == 1
    assert 1 <= _ion.usable_cpus() <= len(os.sched_getaffinity(0))


def test_this_machine_has_memory() -> None:
    assert _ion.available_memory() > 1 << 20
