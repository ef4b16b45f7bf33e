"""Deprecated: this module is `vkep.serving.openai`."""

from __future__ import annotations

import sys
import warnings

from vkep.serving import openai

warnings.warn(f"{__name__} is {openai.__name__} now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = openai
