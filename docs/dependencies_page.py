"""docs/dependencies.md: what a plain install brings along, with its licences, from the installed packages' metadata.

`python docs/dependencies_page.py` writes it. Run it where kvplan is installed; versions and licences are those found.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "kvplan-llm"
PAGE = Path(__file__).resolve().parent / "dependencies.md"


def closure() -> dict[str, str]:
    """Each package of a plain install, by the one that first asks for it."""
    found: dict[str, str] = {}
    waiting = [(DISTRIBUTION, "")]
    while waiting:
        name, asker = waiting.pop(0)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # a marker rules it out here
        found[key] = asker
        for line in required:
            wanted = re.match(r"[\w.-]+", line)
            if wanted and "extra ==" not in line:
                waiting.append((wanted[0], key))
    del found[DISTRIBUTION]
    return found


def licence(name: str) -> str:
    """The licence as the package's metadata states it: expression, classifier or short text."""
    told = metadata.metadata(name)
    if told.get("License-Expression"):
        return str(told["License-Expression"])
    classifiers = [
        line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License")
    ]
    text = (told.get("License") or "").strip()
    return " / ".join(classifiers) or (text if text and "\n" not in text else "see its files")


def page() -> str:
    """The text of docs/dependencies.md."""
    rows = "\n".join(
        f"| {name} | {metadata.version(name)} | {licence(name)} | {asker} |"
        for name, asker in sorted(closure().items())
    )
    return f"{_HEAD}{rows}\n{_FOOT}"


_HEAD = """\
# Dependencies

What `pip install kvplan-llm` without extras brings along, as installed when this page was made by
`python docs/dependencies_page.py`. kvplan itself is under Apache-2.0. A test fails when a package is missing here.

| package | version | licence | asked for by |
| --- | --- | --- | --- |
"""

_FOOT = """
Extras bring more: `kvplan doctor` lists their packages. kvplan's own wheel is pure Python with data files.
"""

if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
