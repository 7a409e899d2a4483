"""Reading files nobody vouches for, and writing files that are never half there.

JSON and YAML are read with bounded size and depth, without code execution; duplicate keys, YAML aliases and tags are
refused. Other tools' files, where aliases and tags are in use, are read as nodes that know their lines. Writing goes to
a temporary file that is renamed into place.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from kvplan.errors import InputError, show

MAX_TEXT_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_YAML_NODES = 2_000_000
MAX_EXPANDED_NODES = 500_000

T = TypeVar("T")


def is_folder(path: Path) -> bool:
    """Whether `path` is a directory; False for what can't be a path, such as a name of 100,000 characters."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Whether `path` exists; False for what can't be a path."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


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


def _scan(events: Any, name: str, aliases: bool = False) -> None:
    import yaml

    depth = 0
    for count, event in enumerate(events):
        mark = event.start_mark
        where = f"{name}: line {mark.line + 1}, column {mark.column + 1}" if mark else name
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise InputError(f"{where}: found the alias *{event.anchor}, expected YAML without anchors and aliases")
        if getattr(event, "tag", None) and not aliases:
            raise InputError(f"{where}: found the tag {show(event.tag)}, expected YAML without tags")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: found nesting deeper than {MAX_DEPTH} levels, expected a flatter document")
        if count > MAX_YAML_NODES:
            raise InputError(f"{where}: found more than {MAX_YAML_NODES:,} nodes, expected a smaller document")


class YamlNode:
    """A YAML value that knows where it stands: `line` and `column` count from 1, `end_line` is its last.

    `value` is a dict of names to nodes, a list of nodes, or a scalar; `text` is a scalar as it is written, `style` its
    quote or block indicator ("" for plain). `key_lines` holds the line of each key, `duplicates` the keys given twice
    (the last one counts), `tag` a tag that is no standard one. Aliases share their node.
    """

    __slots__ = ("column", "duplicates", "end_line", "key_lines", "line", "size", "style", "tag", "text", "value")

    def __init__(self, value: Any, line: int, column: int, text: str = "", style: str = "", tag: str = "") -> None:
        self.value, self.line, self.column = value, line, column
        self.text, self.style, self.tag = text, style, tag
        self.end_line = line
        self.key_lines: dict[str, int] = {}
        self.duplicates: list[tuple[str, int]] = []
        self.size = 1

    def get(self, key: str) -> YamlNode | None:
        """The node under a key of a mapping, None where there is none."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def compose_yaml(text: str, name: str) -> list[YamlNode]:
    """Read every YAML document of `text` as nodes with their lines: aliases, merge keys and unknown tags are allowed.

    Raises InputError, with line and column, for what is no YAML, nests deeper than MAX_DEPTH, contains itself, or is
    larger than MAX_EXPANDED_NODES once its aliases are expanded.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _scan(yaml.parse(text, Loader=loader), name, aliases=True)
        reader = loader(text)
        documents = []
        while reader.check_node():
            documents.append(_Composer(reader, name).node(reader.get_node(), 0))
        return documents
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        raise InputError(f"{name}: {where}: {error.problem or error.context}, expected YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}: {' '.join(str(error).split())}, expected YAML") from None
    except RecursionError:
        raise InputError(f"{name}: found nesting too deep to read, expected at most {MAX_DEPTH} levels") from None


class _Composer:
    """Turns PyYAML's nodes into YamlNodes, each once, and counts what aliases would make of them."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name
        self.done: dict[int, YamlNode] = {}
        self.open: set[int] = set()

    def node(self, source: Any, depth: int) -> YamlNode:
        import yaml

        key = id(source)
        if key in self.done:
            return self.done[key]
        mark = source.start_mark
        where = f"{self.name}: line {mark.line + 1}, column {mark.column + 1}"
        if key in self.open:
            raise InputError(f"{where}: found a value that contains itself, expected a finite document")
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: found nesting deeper than {MAX_DEPTH} levels, expected a flatter document")
        self.open.add(key)
        made = YamlNode(None, mark.line + 1, mark.column + 1, tag=_own_tag(source.tag))
        made.end_line = source.end_mark.line + (source.end_mark.column > 0)
        if isinstance(source, yaml.MappingNode):
            self._mapping(made, source, depth)
        elif isinstance(source, yaml.SequenceNode):
            made.value = [self.node(child, depth + 1) for child in source.value]
            made.size += sum(child.size for child in made.value)
        else:
            made.text, made.style = source.value, source.style or ""
            made.value = source.value if made.tag else self._scalar(source)
        if made.size > MAX_EXPANDED_NODES:
            raise InputError(
                f"{where}: found more than {MAX_EXPANDED_NODES:,} nodes once aliases are expanded, "
                "expected a smaller document"
            )
        self.open.discard(key)
        self.done[key] = made
        return made

    def _mapping(self, made: YamlNode, source: Any, depth: int) -> None:
        own: dict[str, YamlNode] = {}
        merged: dict[str, YamlNode] = {}
        for key_source, value_source in source.value:
            value = self.node(value_source, depth + 1)
            key = str(getattr(key_source, "value", ""))[:1000]
            line = key_source.start_mark.line + 1
            made.size += value.size
            if key_source.tag == "tag:yaml.org,2002:merge":
                for part in value.value if isinstance(value.value, list) else [value]:
                    if isinstance(part.value, dict):
                        merged = {**part.value, **merged}
                        made.key_lines = {**part.key_lines, **made.key_lines}
                continue
            if key in own:
                made.duplicates.append((key, line))
            own[key] = value
            made.key_lines[key] = line
        made.value = {**merged, **own}

    def _scalar(self, source: Any) -> Any:
        try:
            return self.loader.construct_object(source)
        except (ValueError, OverflowError):  # a date or a number that isn't one
            return source.value


_STANDARD_TAGS = frozenset({
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "binary", "merge", "value", "map", "seq", "set")
})  # fmt: skip


def _own_tag(tag: str | None) -> str:
    return "" if tag is None or tag in _STANDARD_TAGS else tag


#: 0200 is 128 in YAML 1.1 and 200 in 1.2, 2:08 is 128 in 1.1 and text in 1.2
_AMBIGUOUS = re.compile(r"[-+]?(?:0[0-9_]+|[0-9_]+(?::[0-9_.]+)+)")


def strict_loader() -> Any:
    """The SafeLoader (libyaml's where present) that also refuses duplicate or unhashable keys and ambiguous numbers."""
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
                        None, None, f"found the key {show(key)} twice", key_node.start_mark
                    )
                keys.add(key)
            return dict(super().construct_mapping(node, deep))

        def plain_number(self, node: Any) -> Any:
            if _AMBIGUOUS.fullmatch(node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, f"found {node.value}, which YAML 1.1 and 1.2 read as different numbers", node.start_mark
                )
            return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)

    for kind in ("int", "float"):
        StrictLoader.add_constructor(f"tag:yaml.org,2002:{kind}", StrictLoader.plain_number)
    return StrictLoader


def write_atomic(path: Path, write: Callable[[Path], T]) -> T:
    """Let `write` fill a temporary file, then rename it to `path`; on any failure nothing remains.

    A link is followed, so that it still is one afterwards; a file that exists keeps its mode. Raises InputError for a
    target that isn't a regular file and for whatever the system refuses.
    """
    try:
        target, mode = _target(path)
        temporary = target.with_name(f".kvplan-{os.urandom(6).hex()}.tmp")
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror or error}), expected a writable folder") from None
    try:
        result = write(temporary)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: can't be written ({error.strerror or error}), expected room for a file") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return result


def _target(path: Path) -> tuple[Path, int | None]:
    """The file that `path` leads to and its mode, None where it isn't there yet."""
    try:
        target = Path(os.path.realpath(path))
        found = target.stat()
    except FileNotFoundError:
        return target, None
    except ValueError:  # a null byte
        raise InputError(f"{show(str(path))}: is no path, expected a file's name") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: found a directory, expected a file's name")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: found a device, pipe or socket, expected a regular file or a new name")
    if not os.access(target, os.W_OK):
        raise InputError(f"{path}: can't be written (it is read-only), expected a writable file")
    return target, stat.S_IMODE(found.st_mode)


def write_text_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader sees the old file or the new one, never a part."""
    data = text.encode("utf-8", errors="backslashreplace")  # a lone surrogate has no UTF-8
    write_atomic(path, lambda temporary: temporary.write_bytes(data))
