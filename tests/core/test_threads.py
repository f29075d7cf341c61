"""How many threads compute: who decides, and what is set."""

import os
import subprocess
import sys

import pytest
import torch

from enginebay import threads
from enginebay.errors import StackError


@pytest.fixture
def machine(monkeypatch):
    """A machine of 8 CPUs without a quota, and no wish of the user's."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(threads, "physical_cores", lambda cpus: len(cpus) // 2)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: None)
    return monkeypatch


def test_the_stack_decides_before_the_user_before_the_machine(machine):
    """And the reason says which of them did."""
    machine.setattr(threads, "_LOADED_BEFORE", False)
    assert threads.choose_threads() == threads.Threads(
        4, "4: 4 physical cores for the 8 CPUs of this process"
    )
    machine.setenv("OMP_NUM_THREADS", "3,2")
    assert threads.choose_threads() == threads.Threads(3, "3: OMP_NUM_THREADS")
    assert threads.choose_threads(6) == threads.Threads(6, "6: threads = 6 in the stack")


@pytest.mark.parametrize("value", ["", "0", "many", "-2"])
def test_a_user_setting_without_a_meaning_is_passed_over(machine, value):
    """OpenMP ignores it too."""
    machine.setenv("OMP_NUM_THREADS", value)
    assert threads.choose_threads().count == 4


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1.9, 1), (2.0, 2), (16.0, 4)])
def test_a_quota_below_the_cores_decides(machine, quota, count):
    """More threads than the quota would be stopped in the middle of a step."""
    machine.setattr(threads, "cgroup_quota", lambda: quota)
    chosen = threads.choose_threads()
    assert chosen.count == count
    assert ("quota" in chosen.reason) == (count < 4)


def test_threads_that_may_spin_are_told(machine):
    """torch reads the waiting policy once, when it is loaded."""
    machine.setattr(threads, "_LOADED_BEFORE", True)
    assert threads.choose_threads().reason.endswith("may spin")
    assert "spin" not in threads.choose_threads(1).reason


def test_a_negative_number_is_refused():
    """With the value and the fix; so is one that would end the process."""
    for number in (-1, 100_000):
        told = rf"engine.threads = {number}: must be 1 to 1024; 0 uses every core"
        with pytest.raises(StackError, match=told):
            threads.choose_threads(number)


def test_the_number_is_set_for_torch_and_numba(monkeypatch):
    """One setting, in both."""
    before = torch.get_num_threads()
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    try:
        assert threads.configure_threads(2) == 2
        assert torch.get_num_threads() == 2
        assert os.environ["NUMBA_NUM_THREADS"] == "2"
    finally:
        torch.set_num_threads(before)


def test_hardware_threads_of_a_core_count_once(tmp_path):
    """Siblings are listed alike for both; a CPU without a topology is a core."""
    for cpu, siblings in ((0, "0,4"), (4, "0,4"), (1, "1,5"), (5, "1,5")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert threads.physical_cores({0, 1, 4, 5}, tmp_path) == 2
    assert threads.physical_cores({0, 9}, tmp_path) == 2
    assert threads.physical_cores(set(), tmp_path) == 1


def test_quotas_of_both_cgroup_versions_are_read(tmp_path):
    """CPUs' worth of time; none when there is no limit or no cgroup."""
    assert threads.cgroup_quota(tmp_path) is None
    old = tmp_path / "cpu"
    old.mkdir()
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.cgroup_quota(tmp_path) is None
    (old / "cpu.cfs_quota_us").write_text("150000\n")
    assert threads.cgroup_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert threads.cgroup_quota(tmp_path) == 2.0
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads.cgroup_quota(tmp_path) is None


def test_importing_it_is_enough_to_wait_passively_and_loads_nothing_heavy():
    """It must run before torch is loaded; the user's own policy stays."""
    program = (
        "import os, sys, enginebay.threads;"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules, 'numba' in sys.modules)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in {"OMP_WAIT_POLICY"}}
    for policy, printed in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        found = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **policy},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == [printed, "False", "False"]
