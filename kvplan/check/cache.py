"""The answer of an earlier check, used again while nothing that it depends on has changed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kvplan
from kvplan.check.inputs import Inputs, fingerprint
from kvplan.errors import InputError
from kvplan.files import write_text_atomic
from kvplan.spec.registry import user_dirs

MAX_ENTRY = 64 << 20
KEPT_ENTRIES = 200


def default_folder() -> Path:
    """Where answers are kept: $KVPLAN_CACHE_DIR, else kvplan/check in the user's cache folder."""
    own = os.environ.get("KVPLAN_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvplan" / "check"


def key_of(question: Mapping[str, Any], model_dir: Path | None) -> str:
    """The name of an answer: the question, the working folder, the user's models, and kvplan's own code and data."""
    told = {
        "question": question,
        "folder": str(Path.cwd()),
        "python": sys.version,
        "kvplan": kvplan.__version__,
        "own": _own_state(),
        "models": [_tree(folder) for folder in user_dirs(model_dir)],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _own_state() -> str:
    package = Path(__file__).resolve().parents[1]
    folders = [package, *(folder for folder in (package.parent / "model_specs",) if folder.is_dir())]
    return hashlib.sha256("\n".join(_tree(folder) for folder in folders).encode()).hexdigest()


def _tree(folder: Path) -> str:
    """Names, sizes and times of the files below a folder, caches of Python apart."""
    rows: list[str] = []
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            pending.append(entry.path)
                    else:
                        state = entry.stat()
                        rows.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
        except OSError:
            continue
    return "\n".join(sorted(rows))


def load(folder: Path, key: str) -> dict[str, Any] | None:
    """The kept answer, None where there is none, it can't be read, or a file that it read has changed."""
    path = folder / f"{key}.json"
    try:
        if path.stat().st_size > MAX_ENTRY:
            return None
        entry = json.loads(path.read_bytes())
        if any(fingerprint(Path(name)) != state for name, state in entry["inputs"]):
            return None
        report = entry["report"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def save(folder: Path, key: str, inputs: Inputs, report: Mapping[str, Any]) -> None:
    """Keep an answer, whole or not at all; a folder that can't be written is no error. The oldest answers go."""
    listed = [[str(path), fingerprint(path)] for path in sorted(inputs.paths)]
    text = json.dumps({"inputs": listed, "report": report})
    if len(text) > MAX_ENTRY:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomic(folder / f"{key}.json", text)
        kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-KEPT_ENTRIES]:
            path.unlink(missing_ok=True)
    except (OSError, InputError):
        return
