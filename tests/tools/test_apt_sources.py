"""The backports source is derived from the machine's own, in both of apt's formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.apt_sources import backports_stanza, has_backports, main, parse_deb822, parse_one_line

DEB822 = """\
# the distribution's
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb cdrom:[Debian]/ bookworm main
deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror.example/debian bookworm main contrib # ours
"""


@pytest.mark.parametrize(
    ("file", "text", "key"),
    [
        ("sources.list.d/debian.sources", DEB822, "/usr/share/keyrings/debian-archive-keyring.gpg"),
        ("sources.list", ONE_LINE, "/keys/debian.gpg"),
    ],
)
def test_the_stanza_has_the_release_s_own_mirror_and_key(
    file: str, text: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert main(["bookworm", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "URIs: http://mirror.example/debian" in lines
    assert "Suites: bookworm-backports" in lines
    assert "Components: main" in lines
    assert f"Signed-By: {key}" in lines


def test_the_printed_source_is_read_back_as_backports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE, encoding="utf-8")
    main(["bookworm", "--root", str(tmp_path)])
    (tmp_path / "sources.list.d" / "vkep-backports.sources").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["bookworm", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""


def test_one_line_options_get_their_deb822_names() -> None:
    stanza = backports_stanza(list(parse_one_line(ONE_LINE)), "bookworm")
    assert stanza is not None
    assert "Architectures: amd64" in stanza


def test_an_embedded_key_survives() -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\n{key}\n"
    (again,) = parse_deb822(backports_stanza(list(parse_deb822(text)), "trixie") or "")
    (first,) = parse_deb822(text)
    assert again.options == first.options
    assert "abc" in again.options["signed-by"]


def test_disabled_sources_do_not_count() -> None:
    sources = list(parse_deb822(DEB822.replace("Types: deb deb-src", "Enabled: no\nTypes: deb")))
    assert backports_stanza(sources, "bookworm") is None
    assert not has_backports(sources, "bookworm")


def test_another_release_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE, encoding="utf-8")
    assert main(["trixie", "--root", str(tmp_path)]) == 1
    assert "serves trixie main" in capsys.readouterr().err
