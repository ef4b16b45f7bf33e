"""Deprecated: this module is `vkep.session.planning.planner`."""

from __future__ import annotations

import sys
import warnings

from vkep.session.planning import planner

warnings.warn(f"{__name__} is {planner.__name__} now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = planner
