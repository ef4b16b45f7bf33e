"""Python code in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code that imports what this process does; returns its status and what it printed."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
