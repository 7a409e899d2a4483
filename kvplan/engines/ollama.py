"""Ollama: llama.cpp's caches under Ollama's names and defaults. Its context is one slot's, so slots multiply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.llama_cpp.engine import ENGINE as LLAMA_CPP
from kvplan.engines.llama_cpp.engine import offload_note
from kvplan.engines.options import Option, read_options
from kvplan.engines.versions import load_rules, rules_at
from kvplan.spec.model import ModelSpec

KV_TYPES = ("f16", "q8_0", "q4_0")
OPTIONS = (
    Option("num_ctx", "tokens", aliases=("OLLAMA_CONTEXT_LENGTH", "context_length", "max_model_len", "ctx"), low=1),
    Option("num_parallel", "whole", aliases=("OLLAMA_NUM_PARALLEL",), low=0, high=256),
    Option("kv_cache_type", "choice", "f16", aliases=("OLLAMA_KV_CACHE_TYPE",), choices=KV_TYPES),
    Option("flash_attention", "switch", aliases=("OLLAMA_FLASH_ATTENTION",)),
    Option("num_batch", "whole", low=1, high=2**24),
    Option("num_gpu", "whole", -1, low=-1, high=10_000),
)


@dataclass(frozen=True)
class Ollama:
    """The engine: settings translated, then answered by llama.cpp's model at the build the release behaves like."""

    name: str = "ollama"

    @property
    def default_version(self) -> str:
        return str(load_rules("ollama")["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Lay out llama.cpp's caches for num_ctx tokens in each slot.

        A quantized cache without flash attention falls back to f16, as Ollama does. Raises InputError as llama.cpp.
        """
        rules = rules_at(self.name, load_rules("ollama"), version)
        options = read_options(OPTIONS, settings)
        slots = options["num_parallel"] or rules["num_parallel"]
        context = options["num_ctx"] or min(rules["num_ctx"], spec.max_context or rules["num_ctx"])
        asked = options["flash_attention"]
        flash = rules["flash_attn"] != "off" if asked is None else asked
        kind = options["kv_cache_type"] if flash else "f16"
        inner = {
            "ctx_size": context * slots,
            "parallel": slots,
            "cache_type_k": kind,
            "cache_type_v": kind,
            "flash_attn": "on" if flash else "off",
            "ubatch_size": options["num_batch"] or rules["num_batch"],
            "n_gpu_layers": options["num_gpu"],
            "gguf_mla_keys": rules["mla_keys"],
            "fit": False,
        }
        answer = LLAMA_CPP.plan(spec, inner, parallel, available_bytes, device, rules["build"])
        found = [rules.warning] if rules.warning else []
        found += options.warnings(self.name)
        if kind != options["kv_cache_type"]:
            found.append(f"OLLAMA_KV_CACHE_TYPE {options['kv_cache_type']} has no effect without flash attention: f16")
        if answer.refused is not None and options["num_gpu"] == -1:
            found.append(offload_note("num_gpu"))
        return replace(
            answer,
            name=self.name,
            version=rules.version,
            settings=options.settings,
            warnings=(*found, *answer.warnings),
            assumptions=(*answer.assumptions, f"laid out as llama.cpp {answer.version} does"),
        )


ENGINE = Ollama()
