"""The package as this checkout has it, where it is not installed: links and an entry list.

Nothing is installed: a temporary folder for ``PYTHONPATH`` holds the package's folders as
links, and the metadata by which plugins are found.
"""

import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict:
    """``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def lay_out(folder: Path) -> Path:
    """Make ``folder`` one in which Python finds ``enginebay`` and its plugins."""
    facts = project()
    package = folder / "enginebay"
    package.mkdir(parents=True)
    for part in (ROOT / "core").iterdir():
        (package / part.name).symlink_to(part)
    for name, source in facts["tool"]["setuptools"]["package-dir"].items():
        if name.count(".") == 1:
            (package / name.partition(".")[2]).symlink_to(ROOT / source)
    about = folder / f"enginebay-{facts['project']['version']}.dist-info"
    about.mkdir()
    version = facts["project"]["version"]
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: enginebay\nVersion: {version}\n")
    lines = []
    for group, entries in facts["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {module}" for name, module in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def missing(dry: bool = False) -> list[str]:
    """Requirements of the package and of its GPU tests that are not installed here, or in
    a version that does not fit."""
    facts = project()["project"]
    tests = ("pytest", "pytest-timeout", "hypothesis")
    extras = facts["optional-dependencies"]
    needed = [*facts["dependencies"], *(each for each in extras["test"] if _name(each) in tests)]
    needed += [each for each in extras["gpu"] if not dry or _name(each) == "triton"]
    return [each for each in needed if not _fits(each)]


def _name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].strip()


def _fits(requirement: str) -> bool:
    try:
        version = metadata.version(_name(requirement))
    except metadata.PackageNotFoundError:
        return False
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)
