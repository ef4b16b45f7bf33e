"""Generated requests beside innocent ones: no innocent answer changes or fails. `tools.fuzz.services` sends many more."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.nightly import nightly_but
from tests.serving.conftest import Running
from tools.fuzz.service_attacks import KINDS
from tools.fuzz.services import Innocent, attack_for, innocents

#: requests of kinds whose answers take long
FEW = {"many answers": 1, "settings": 12, "grammars": 8, "bomb of lists": 3, "bomb of zeros": 3, "long prompts": 6}


@pytest.fixture(scope="module")
def users(running: Running) -> list[Innocent]:
    address = urlsplit(running.url).netloc
    return [Innocent(address, number) for number in range(2)]


@pytest.mark.parametrize("kind", nightly_but(("fields", "shapes", "uploads", "unread streams"), KINDS))
def test_innocent_answers_stay_as_they_are(running: Running, users: list[Innocent], kind: str) -> None:
    with innocents(users) as waits:
        sent = attack_for(urlsplit(running.url).netloc, kind, 1, FEW.get(kind, 40), 20, threads=2)
    assert not waits.wrong and not waits.failed
    assert sum(sent.values()) >= 1 and "500" not in sent, sent
    assert waits.count >= 6
