"""Deprecated: this module is `vkep.serving.loaded`."""

from __future__ import annotations

import sys
import warnings

from vkep.serving import loaded

warnings.warn(f"{__name__} is {loaded.__name__} now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = loaded
