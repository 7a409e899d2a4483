"""Reading files nobody vouches for, and writing files that are never half there.

JSON and YAML are read with bounded size and depth, without code execution; duplicate keys, YAML aliases and tags are
refused. Writing goes to a temporary file that is renamed into place.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from kvplan.errors import InputError, show

MAX_TEXT_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_YAML_NODES = 2_000_000

T = TypeVar("T")


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Read a whole regular file of at most `limit` bytes. Raises InputError naming the file otherwise."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error}), expected a readable file") from None
    if len(data) > limit:
        raise InputError(f"{path}: found more than {limit:,} bytes, expected a file of at most that size")
    return data


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 text file (a byte-order mark is dropped). Raises InputError when it is none."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: found a byte at offset {error.start} that is no UTF-8, expected a text file"
        ) from None


def parse_json(text: str, name: str) -> Any:
    """Parse JSON, refusing duplicate keys and nesting deeper than MAX_DEPTH. `name` is what errors call it."""
    if not text.strip():
        raise InputError(f"{name}: found an empty file, expected JSON")
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, name))
    except RecursionError:
        raise InputError(f"{name}: found nesting too deep to read, expected at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # JSONDecodeError, and integers past Python's digit limit
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"{name}: found something that is no JSON at {where}, expected a JSON document") from None
    _check_depth(value, name)
    return value


def read_json_object(path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Read a JSON file whose top level is an object."""
    value = parse_json(read_text(path, limit), str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: found a JSON {_json_name(value)} at the top, expected an object")
    return value


def _json_name(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _unique(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"{name}: found the key {show(twice)} twice, expected each key once")
    return result


def _check_depth(value: Any, name: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InputError(f"{name}: found nesting deeper than {MAX_DEPTH} levels, expected a flatter document")


def parse_yaml(text: str, name: str) -> Any:
    """Parse one YAML document: no aliases, no tags, no duplicate keys, bounded depth and size.

    Errors carry line and column.
    """
    import yaml

    if not text.strip():
        raise InputError(f"{name}: found an empty file, expected YAML")
    loader = strict_loader()
    try:
        _scan(yaml.parse(text, Loader=loader), name)
        return yaml.load(text, Loader=loader)  # noqa: S506 (a SafeLoader with more refusals)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        raise InputError(f"{name}: {where}: {error.problem or error.context}, expected plain YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}: {' '.join(str(error).split())}, expected plain YAML") from None
    except RecursionError:
        raise InputError(f"{name}: found nesting too deep to read, expected at most {MAX_DEPTH} levels") from None


def read_yaml(path: Path) -> Any:
    """Read one YAML file under parse_yaml's rules."""
    return parse_yaml(read_text(path), str(path))


def _scan(events: Any, name: str) -> None:
    import yaml

    depth = 0
    for count, event in enumerate(events):
        mark = event.start_mark
        where = f"{name}: line {mark.line + 1}, column {mark.column + 1}" if mark else name
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{where}: found the alias *{event.anchor}, expected YAML without anchors and aliases")
        if getattr(event, "tag", None):
            raise InputError(f"{where}: found the tag {show(event.tag)}, expected YAML without tags")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: found nesting deeper than {MAX_DEPTH} levels, expected a flatter document")
        if count > MAX_YAML_NODES:
            raise InputError(f"{where}: found more than {MAX_YAML_NODES:,} nodes, expected a smaller document")


def strict_loader() -> Any:
    """The SafeLoader (libyaml's where present) that also refuses duplicate and unhashable keys."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class StrictLoader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys: set[Hashable] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    raise yaml.constructor.ConstructorError(
                        None, None, "found a key that is no scalar", key_node.start_mark
                    )
                if key in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"found the key {key!r} twice", key_node.start_mark
                    )
                keys.add(key)
            return dict(super().construct_mapping(node, deep))

    return StrictLoader


def write_atomic(path: Path, write: Callable[[Path], T]) -> T:
    """Let `write` fill a temporary file beside `path`, then rename it into place; on any failure nothing remains."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error}), expected a writable folder") from None
    temporary = Path(name)
    try:
        result = write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return result


def write_text_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader sees the old file or the new one, never a part."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
