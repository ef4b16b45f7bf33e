"""What validation layers need of programs that destroy devices in other threads, and which of their messages count."""

from __future__ import annotations

from gpu_shared.instance import ValidationMessage, validation_log, validation_wanted
from gpu_shared.layers import VALIDATION_OWN_ERRORS
from gpu_shared.steady import settle

_SECONDS = 300


def complaints(since: int = 0) -> list[ValidationMessage]:
    """The layers' messages from number ``since`` of `gpu_shared.validation_log` on, without what a layer says of itself."""
    return [message for message in validation_log[since:] if message.message_id not in VALIDATION_OWN_ERRORS]


def settle_for_layers() -> None:
    """Where validation layers are on (VKEP_VALIDATION), wait until what was dropped is destroyed, which another thread does.

    Up to 1.4.303 the layers look up instances and devices in one table without a lock (`layer_data_map` in their
    chassis.cpp), so a call may crash while another thread destroys one. Raises ``TimeoutError`` after five minutes.
    """
    if validation_wanted() and not settle(_SECONDS):
        raise TimeoutError(
            f"dropped objects are not destroyed after {_SECONDS} s: work that they wait for does not end"
        )
