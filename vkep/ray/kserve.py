"""Deprecated: this module is `vkep.serving.kserve`."""

from __future__ import annotations

import sys
import warnings

from vkep.serving import kserve

warnings.warn(f"{__name__} is {kserve.__name__} now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = kserve
