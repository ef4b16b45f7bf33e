"""The device's limits, measured by a separate process. Figures of the same run are compared with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from tools.bench.remote import ROOT

if TYPE_CHECKING:
    from vkep.device.measure.limits import DeviceLimits


def limits_of_this_run(environment: Mapping[str, str], timeout: float) -> DeviceLimits | str:
    """The limits of the device that vkep runs on, or the reason why they could not be measured."""
    from vkep.device.measure.limits import DeviceLimits

    command = [sys.executable, "-m", "tools.bench.limits"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {timeout:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return DeviceLimits(**json.loads(done.stdout))


def main() -> None:
    """Measure, and print the limits as JSON."""
    from vkep.device.measure.kernel_timer import KernelTimer
    from vkep.device.measure.limits import measure_limits

    timer = KernelTimer()
    try:
        print(json.dumps(asdict(measure_limits(timer))))
    finally:
        timer.close()


if __name__ == "__main__":
    main()
