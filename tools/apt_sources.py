"""Derives an apt source for <release>-backports from the machine's own apt sources. Standard library only.

`tools/setup.sh` uses it on Debian, where backports carry a newer Mesa. No mirror is named here: the URI, its options
and its signing key are those of the entry that serves the release itself.

    python3 tools/apt_sources.py bookworm    # prints a deb822 stanza; exit 1 when no entry serves the release,
                                             # exit 2 when backports are already among the sources

Formats: sources.list(5), both the one-line and the deb822 style.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class AptSource:
    """One enabled binary source: where from, which suites and components, and options such as Signed-By."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Read `deb [option=value ...] uri suite component...` lines; other lines are passed over."""
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line.startswith("deb") or line.split(None, 1)[0] != "deb":
            continue
        rest = line[3:].strip()
        options: dict[str, str] = {}
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            options = dict(item.split("=", 1) for item in shlex.split(inside) if "=" in item)
        words = rest.split()
        if len(words) >= 2:
            yield AptSource((words[0],), (words[1],), tuple(words[2:]), options)


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Read stanzas of `Key: value` with continuation lines; disabled and source-only stanzas are passed over."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(lines).split("\n\n"):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t") and key:
                fields[key] += "\n" + line  # an embedded key keeps its lines
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        known = {"types", "enabled", "uris", "suites", "components"}
        options = {name: value for name, value in fields.items() if name not in known}
        uris, suites, components = (tuple(fields.get(name, "").split()) for name in ("uris", "suites", "components"))
        yield AptSource(uris, suites, components, options)


def read_sources(root: Path) -> list[AptSource]:
    """All enabled sources under an apt configuration folder (normally /etc/apt); unreadable files are passed over."""
    found: list[AptSource] = []
    for path in [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if path.suffix == ".list":
            found.extend(parse_one_line(text))
        elif path.suffix == ".sources":
            found.extend(parse_deb822(text))
    return found


def backports_stanza(sources: list[AptSource], release: str) -> str | None:
    """A deb822 stanza for `<release>-backports`, or None when no source serves `release` itself."""
    for source in sources:
        uris = [uri for uri in source.uris if not uri.startswith("cdrom:")]
        if release not in source.suites or "main" not in source.components or not uris:
            continue
        lines = ["Types: deb", f"URIs: {' '.join(uris)}", f"Suites: {release}-backports", "Components: main"]
        lines += [f"{_deb822_name(name)}: {value}" for name, value in source.options.items()]
        return "\n".join(lines) + "\n"
    return None


def has_backports(sources: list[AptSource], release: str) -> bool:
    """Whether `<release>-backports` is already among the sources."""
    return any(f"{release}-backports" in source.suites for source in sources)


def _deb822_name(option: str) -> str:
    # The one-line style says arch= and lang= where deb822 says Architectures: and Languages:.
    longer = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
    return longer.get(option, "-".join(part.capitalize() for part in option.split("-")))


def main(arguments: list[str] | None = None) -> int:
    """Print the stanza for the release named on the command line."""
    parser = argparse.ArgumentParser(description="Print an apt source for a Debian release's backports.")
    parser.add_argument("release", help="the release's code name, such as bookworm")
    parser.add_argument("--root", type=Path, default=Path("/etc/apt"), help="the apt configuration folder")
    options = parser.parse_args(arguments)
    sources = read_sources(options.root)
    if has_backports(sources, options.release):
        return 2
    stanza = backports_stanza(sources, options.release)
    if stanza is None:
        print(f"no apt source under {options.root} serves {options.release} main", file=sys.stderr)
        return 1
    print(stanza, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
