"""Deprecated: this module is `vkep.serving.messages`."""

from __future__ import annotations

import sys
import warnings

from vkep.serving import messages

warnings.warn(f"{__name__} is {messages.__name__} now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = messages
