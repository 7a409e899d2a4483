"""Container images: which engine an image holds, which release its tag names, and what it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.engines.commands.flags import version_number

_TAG_VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)+(?:(?:\.post|rc|a|b)[0-9]+)?)(?![0-9.])")
_MOVING = ("latest", "nightly", "main", "dev", "rocm", "edge", "")


@dataclass(frozen=True, slots=True)
class Image:
    """What is known of an image. `entrypoint` are the words its start-up program begins with, empty where it has none;
    `command` runs when nothing is given; `environment` says that its engine can be set up by variables alone."""

    engine: str
    reference: str
    version: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: bool = False
    tools: bool = False

    @property
    def moving(self) -> bool:
        """Whether the reference names no release, so that the engine behind it changes."""
        return self.version is None


@cache
def catalog() -> dict[str, Any]:
    """programs.yaml: how engines are started."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = Path(__file__).with_name("programs.yaml")
    loaded: dict[str, Any] = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506
    return loaded


def split_reference(reference: str) -> tuple[str, str]:
    """Repository and tag of an image reference; a digest is dropped."""
    name = reference.strip().split("@", 1)[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, ""
    return repository, tag


def find_image(reference: str) -> Image | None:
    """What `reference` holds. Falls back on the name of the repository: `registry/team/vllm-openai` is vLLM's."""
    repository, tag = split_reference(reference)
    for entry in catalog()["images"]:
        known = str(entry["image"])
        same = repository == known or repository.endswith(f"/{known}")
        if same and re.fullmatch(entry.get("tag", ".*"), tag or ""):
            return _image(entry, reference, tag)
    return _mirrored(repository, reference, tag)


def _image(entry: Mapping[str, Any], reference: str, tag: str) -> Image:
    version = tag_version(tag, entry.get("version", "none"))
    number = version_number(version)
    words: tuple[str, ...] = ()
    for choice in entry.get("entrypoint", ()):
        until = version_number(str(choice["until"])) if "until" in choice else None
        if until is None or (number is not None and number < until):
            words = tuple(choice["words"])
            break
    command = tuple(entry.get("command", ()))
    return Image(
        entry["engine"], reference, version, words, command, entry.get("environment", False), entry.get("tools", False)
    )


def _mirrored(repository: str, reference: str, tag: str) -> Image | None:
    """A copy in another registry keeps the last part of the name, by which its start-up program is assumed."""
    last = repository.rpartition("/")[2].lower()
    for entry in catalog()["images"]:
        if last == str(entry["image"]).rpartition("/")[2] and last not in (
            "vllm",
            "release",
            "sglang",
            "lmdeploy",
            "ollama",
        ):
            return _image(entry, reference, tag)
    for word, engine in (("vllm", "vllm"), ("sglang", "sglang"), ("llama.cpp", "llama.cpp"), ("llama-cpp", "llama.cpp"),
                         ("ollama", "ollama"), ("tensorrt-llm", "tensorrt-llm"), ("lmdeploy", "lmdeploy")):  # fmt: skip
        if last == word:
            entry = next(entry for entry in catalog()["images"] if entry["engine"] == engine)
            return _image(entry, reference, tag)
    return None


def tag_version(tag: str, rule: str) -> str | None:
    """The engine's release in an image tag; None for a moving one or a tag that counts something else."""
    if rule == "none" or tag.lower() in _MOVING:
        return None
    if rule != "tag":
        match = re.search(rule, tag)
        return match.group(1) if match else None
    match = _TAG_VERSION.match(tag)
    return match.group(1) if match else None


def pinned_version(text: str, engine: str) -> str | None:
    """The release that an install line pins, such as `pip install "sglang[all]==0.5.10"`."""
    package = {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "tensorrt-llm": "tensorrt[-_]llm"}.get(
        engine
    )
    if package is None or len(text) > 1 << 20:
        return None
    match = re.search(rf"(?<![\w.-]){package}(?:\[[\w,-]*\])?\s*==\s*([0-9][\w.]*)", text)
    return match.group(1) if match else None
