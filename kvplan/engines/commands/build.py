"""From an engine's arguments to a LaunchCommand: parse, read the options file, type the values, name the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.engines.commands.flags import VALUELESS, Flag, Table, load_table, version_number
from kvplan.engines.commands.heads import Head
from kvplan.engines.commands.hints import ModelHint, hint_from_file, hint_from_ollama, hint_from_repository
from kvplan.engines.commands.launch import LaunchCommand
from kvplan.engines.commands.options_files import ReadFile, as_arguments, load_options, override
from kvplan.engines.commands.parsers import Given, Parsed, parse
from kvplan.engines.commands.values import read_boolean, read_value
from kvplan.engines.commands.words import Word
from kvplan.errors import InputError

MAX_ARGUMENTS = 4_000
_MAX_HINTS = 20
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
            "ASCEND_RT_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK")  # fmt: skip
_OWN_VARIABLES = {"vllm": "VLLM_", "sglang": "SGLANG_", "llama.cpp": "LLAMA_", "ollama": "OLLAMA_"}
_OPTION_FLAGS = {"vllm": "config", "sglang": "config", "tensorrt-llm": "extra_llm_api_options"}
_MODEL_FLAGS = {
    "vllm": ("model",),
    "sglang": ("model_path",),
    "llama.cpp": ("model", "model_url", "hf_repo", "hf_file"),
}
_LOCAL = re.compile(r"(?:[./~]|[A-Za-z]:\\).*|.*\.gguf")
_SCHEMES = re.compile(r"(?:hf|huggingface)://")


class Builder:
    """Collects what one command says."""

    def __init__(
        self, head: Head, environment: Mapping[str, Word], version: str | None, read_file: ReadFile | None
    ) -> None:
        image = head.image.version if head.image is not None and head.image.engine == head.engine else None
        self.head, self.read_file = head, read_file
        self.table: Table = load_table(head.engine)
        self.version = version or image
        self.number = version_number(self.version)
        self.environment = {**environment, **head.environment}
        self.flags: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.ignored: list[str] = []
        self.unknown: list[str] = []
        self.raw_unknown: list[str] = []
        self.warnings: list[str] = []
        self.refused: list[str] = []
        self.not_knowable: list[str] = []
        self.overridden: list[str] = []
        self.removed: dict[str, str] = {}
        self.assumed: list[str] = []
        self.named: dict[str, Word] = {}
        self.options: dict[str, Any] = {}

    def build(self) -> LaunchCommand:
        """The launch command. Values the engine would stop at are in `refused`."""
        from_environment = self._environment()
        parsed = self._parsed()
        given = {item.flag.name: item for item in parsed.given}
        for item in from_environment:
            if item.flag.name in given:
                self.overridden.append(f"{_said(given[item.flag.name])} wins over {_said(item)}")
            self._take(item)
        for item in parsed.given:
            self._take(item)
        self._merge_options()
        self._leftovers(parsed)
        model, hint = self._model(parsed)
        mistakes = tuple(self.head.mistakes)
        return LaunchCommand(
            engine=self.head.engine,
            version=self.version,
            model=model,
            model_hint=hint.text if hint else None,
            hint=hint,
            flags=self.flags,
            ignored=tuple(dict.fromkeys(self.ignored)),
            unknown=tuple(dict.fromkeys(self.unknown)),
            warnings=tuple(dict.fromkeys([*mistakes, *self.refused, *self.warnings, *self.overridden])),
            not_knowable=tuple(dict.fromkeys(self.not_knowable)),
            environment=self._relevant_environment(),
            refused=tuple(dict.fromkeys(self.refused)),
            mistakes=mistakes,
            removed=self.removed,
            overridden=tuple(self.overridden),
            assumed=tuple(dict.fromkeys(self.assumed)),
            lines=self.lines,
            raw_unknown=tuple(dict.fromkeys(self.raw_unknown)),
        )

    # --- reading -------------------------------------------------------------------------------------------------

    def _environment(self) -> list[Given]:
        """Flags set by variables, in the order of the table."""
        given: list[Given] = []
        if self.table.style not in ("plain", "environment"):
            return given
        for flag in self.table.flags.values():
            if flag.env is None or not flag.alive(self.number):
                continue
            word = self.environment.get(flag.env)
            off = self.environment.get(flag.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1))
            if flag.kind == "toggle" and off is not None and "LLAMA_ARG_" in flag.env:
                given.append(Given(flag, (), True, flag.env, off.line))
            elif word is not None and flag.env != "HF_TOKEN":
                given += self._variable(flag, word)
        if self.table.style == "environment":
            known = {flag.env for flag in self.table.flags.values()}
            strange = [name for name in self.environment if name.startswith("OLLAMA_") and name not in known]
            self.unknown += [name.removeprefix("OLLAMA_").lower() for name in strange]
            self.raw_unknown += strange
        return given

    def _variable(self, flag: Flag, word: Word) -> list[Given]:
        if flag.kind not in VALUELESS or word.unknown:
            return [Given(flag, (word,), False, str(flag.env), word.line)]
        try:
            on = read_boolean(word.text, str(flag.env))
        except InputError as error:
            self.refused.append(str(error))
            return []
        # A switch has nothing to switch off.
        return [Given(flag, (), not on, str(flag.env), word.line)] if on or flag.kind == "toggle" else []

    def _parsed(self) -> Parsed:
        if self.table.style == "environment":
            return Parsed(unknown=list(self.head.arguments))
        words = list(self.head.arguments)
        if len(words) > MAX_ARGUMENTS:
            raise InputError(f"{self.head.engine}: found {len(words):,} arguments, expected at most {MAX_ARGUMENTS:,}")
        parsed = parse(self.table, self.number, words, positional=self.head.positional)
        option = _OPTION_FLAGS.get(self.head.engine)
        file = next((item for item in parsed.given if item.flag.name == option), None)
        if file is None or option is None:
            return parsed
        self.options = self._options(file)
        if self.head.engine == "tensorrt-llm" or not self.options:
            return parsed
        model = (
            self.options.pop("model", None)
            or self.options.pop("model-path", None)
            or self.options.pop("model_path", None)
        )
        if model is not None:
            self.named["options file"] = Word(str(model))
        # The file's arguments come first, so that those of the command line win as the later ones.
        before = parse(self.table, self.number, as_arguments(self.options, self.table, self.number), positional=False)
        parsed.given = before.given + parsed.given
        parsed.unknown = before.unknown + parsed.unknown
        parsed.refused = before.refused + parsed.refused
        return parsed

    def _options(self, file: Given) -> dict[str, Any]:
        word = file.words[0]
        if self.head.engine == "vllm" and file.spelling == "--config" and _attached(self.head.arguments, "--config="):
            self.warnings.append("--config=FILE is not expanded by vLLM: write --config FILE, the file is not read")
            return {}
        text = self.read_file(word.text) if self.read_file is not None and not word.unknown else None
        if text is None:
            self.not_knowable.append(f"what the options file {word.text} sets: it is not here")
            return {}
        return load_options(text, word.text)

    def _merge_options(self) -> None:
        if self.head.engine != "tensorrt-llm" or not self.options:
            return
        self.flags, ignored, notes = override(self.flags, self.options, self.table)
        self.ignored += ignored
        self.overridden += notes

    # --- keeping -------------------------------------------------------------------------------------------------

    def _take(self, item: Given) -> None:
        flag = item.flag
        if flag.name == _OPTION_FLAGS.get(self.head.engine):
            return
        for word in item.words:
            self.assumed += word.assumed
        if flag.name in _MODEL_FLAGS.get(self.head.engine, ()):
            if item.words:
                self.named[flag.name] = item.words[0]
            return
        name = "mmproj" if flag.name == "mmproj_auto" else flag.name
        if not flag.capacity:
            self.ignored.append(name)
            return
        try:
            value = self._value(item)
        except InputError as error:
            self.refused.append(f"line {item.line}: {error}" if item.line else str(error))
            value = None
        else:
            self._unresolved(flag, item.words)
        self.flags[name] = value
        if item.line:
            self.lines[name] = item.line

    def _value(self, item: Given) -> Any:
        flag = item.flag
        if flag.kind in VALUELESS and not item.words:
            return not item.negated
        if flag.kind == "optional_word" and not item.words:
            return "on" if flag.name == "flash_attn" else True
        return read_value(flag, item.words)

    def _unresolved(self, flag: Flag, words: Sequence[Word]) -> None:
        names = list(dict.fromkeys(name for word in words for name in word.unknown))
        if names:
            self.not_knowable.append(f"{flag.name}: comes from {', '.join(names)}")

    def _leftovers(self, parsed: Parsed) -> None:
        for word in parsed.opaque:
            names = ", ".join(word.unknown) or word.text
            self.not_knowable.append(f"which arguments {names} adds")
        self.refused += [f"line {line}: {text}" if line else text for text, line in parsed.refused]
        self.warnings += parsed.notes
        for word in parsed.unknown:
            self._unknown(word)
        extra = parsed.positionals[1:] if self.head.positional else parsed.positionals
        for word in extra:
            self._unknown(word)

    def _unknown(self, word: Word) -> None:
        spelling = word.text.partition("=")[0]
        is_flag = spelling.startswith("-") and " " not in word.text
        name = spelling.lstrip("-").replace("-", "_") if is_flag else word.text
        self.unknown.append(name)
        self.raw_unknown.append(word.text)
        if word.line:
            self.lines.setdefault(name, word.line)
        if not is_flag:
            return
        key = spelling.replace("_", "-") if self.table.style != "click" else spelling
        gone = self.table.removed(key, self.number)
        if gone is not None:
            self.removed[name] = str(gone.until_text)
            self.warnings.append(f"{spelling} is no argument of {self.head.engine} {gone.until_text} and later")
            return
        close = self.table.nearest(key, self.number) if len(self.unknown) < _MAX_HINTS else None
        hint = f"; nearest: {close}" if close else ""
        self.warnings.append(f"{spelling} is no argument of {self.head.engine}{hint}")

    def _relevant_environment(self) -> dict[str, str | None]:
        prefix = _OWN_VARIABLES.get(self.head.engine, "\0")
        return {
            name: None if word.unknown else word.text
            for name, word in self.environment.items()
            if name in _DEVICES or name.startswith(prefix)
        }

    # --- the model -----------------------------------------------------------------------------------------------

    def _model(self, parsed: Parsed) -> tuple[str | None, ModelHint | None]:
        if self.head.engine == "llama.cpp":
            return None, self._gguf_hint()
        word = parsed.positionals[0] if self.head.positional and parsed.positionals else None
        if word is None:
            word = self.named.get("model") or self.named.get("model_path") or self.named.get("options file")
            if word is not None and self.head.program[-1:] == ("serve",) and "model" in self.named:
                self.warnings.append("--model after `vllm serve` still works, but the model belongs right after serve")
        if word is None:
            return None, None
        self.assumed += word.assumed
        if word.unknown:
            self.not_knowable.append(f"model: comes from {', '.join(word.unknown)}")
            return None, None
        name = _SCHEMES.sub("", word.text)
        if _LOCAL.fullmatch(name) or "://" in name:
            self.not_knowable.append(f"model: {word.text} is a path, what lies there is not in the command")
            return None, hint_from_file(name)
        return name, None

    def _gguf_hint(self) -> ModelHint | None:
        repository, file = self.named.get("hf_repo"), self.named.get("hf_file")
        for key in ("model", "model_url"):
            word = self.named.get(key)
            if repository is None and word is not None:
                if word.unknown:
                    self.not_knowable.append(f"model: comes from {', '.join(word.unknown)}")
                    return None
                return hint_from_file(word.text)
        if repository is None or repository.unknown:
            return None
        return hint_from_repository(repository.text, file.text if file else None)


def ollama_hint(reference: str) -> ModelHint:
    """The hint in a name that an Ollama client pulls or runs."""
    return hint_from_ollama(reference)


def _said(item: Given) -> str:
    return " ".join([item.spelling, *(word.text for word in item.words)])


def _attached(words: Sequence[Word], beginning: str) -> bool:
    return any(word.text.startswith(beginning) for word in words)
