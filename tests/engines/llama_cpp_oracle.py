"""Asks the real llama.cpp, in a process of its own, which caches it makes of GGUF metadata: no weights, no files.

stdin: [{"arch", "metadata", "params": [...]}]; stdout: for each the lines it logged, or null where it refuses. Uses the
C API inside the package xllamacpp, whose structs have the layout of build b11549 (llama.h): only that one is asked.
"""

from __future__ import annotations

import ctypes
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "2026.10.11549"
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
FLASH = {"auto": -1, "off": 0, "on": 1}
GGUF_INT32, GGUF_BOOL = 5, 7
#: byte offsets in llama_context_params and of no_alloc in llama_model_params
CONTEXT = {"n_ctx": 0, "n_batch": 4, "n_ubatch": 8, "n_seq_max": 12, "n_rs_seq": 16}
FLASH_AT, TYPE_K_AT, TYPE_V_AT, SWA_FULL_AT, UNIFIED_AT, NO_ALLOC_AT = 52, 104, 108, 140, 141, 76


class ModelParams(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_ubyte * 80),)


class ContextParams(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_ubyte * 168),)


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
TENSOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Oracle:
    """The engine's library with a captured log."""

    def __init__(self) -> None:
        found = find_spec("xllamacpp")
        assert found is not None and found.origin is not None
        library = next(Path(found.origin).parent.glob("xllamacpp*.so"))
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        self.lib = lib = ctypes.CDLL(str(library))
        lib.gguf_init_empty.restype = pointer
        lib.gguf_set_val_u32.argtypes = [pointer, text, ctypes.c_uint32]
        lib.gguf_set_val_f32.argtypes = [pointer, text, ctypes.c_float]
        lib.gguf_set_val_bool.argtypes = [pointer, text, ctypes.c_bool]
        lib.gguf_set_val_str.argtypes = [pointer, text, text]
        lib.gguf_set_arr_data.argtypes = [pointer, text, ctypes.c_int, pointer, ctypes.c_size_t]
        lib.llama_model_default_params.restype = ModelParams
        lib.llama_context_default_params.restype = ContextParams
        lib.llama_model_init_from_user.argtypes = [pointer, TENSOR, pointer, ModelParams]
        lib.llama_model_init_from_user.restype = pointer
        lib.llama_init_from_model.argtypes = [pointer, ContextParams]
        lib.llama_init_from_model.restype = pointer
        lib.llama_free.argtypes = [pointer]
        lib.llama_log_set.argtypes = [LOG, pointer]
        self.log: list[str] = []
        self.on_log = LOG(lambda level, line, data: self.log.append((line or b"").decode(errors="replace")))
        self.on_tensor = TENSOR(lambda tensor, data: None)
        lib.llama_log_set(self.on_log, None)
        lib.llama_backend_init()

    def model(self, arch: str, metadata: dict[str, Any]) -> int:
        gguf = self.lib.gguf_init_empty()
        values = {"general.architecture": arch, "tokenizer.ggml.model": "no_vocab"}
        values |= {f"{arch}.{key}": value for key, value in metadata.items()}
        for key, value in values.items():
            self._put(gguf, key.encode(), value)
        params = self.lib.llama_model_default_params()
        params.raw[NO_ALLOC_AT] = 1
        made = self.lib.llama_model_init_from_user(gguf, self.on_tensor, None, params)
        if not made:
            raise SystemExit("".join(self.log)[-500:])
        return int(made)

    def _put(self, gguf: int, key: bytes, value: Any) -> None:
        if isinstance(value, bool):
            self.lib.gguf_set_val_bool(gguf, key, value)
        elif isinstance(value, int):
            self.lib.gguf_set_val_u32(gguf, key, value)
        elif isinstance(value, float):
            self.lib.gguf_set_val_f32(gguf, key, value)
        elif isinstance(value, str):
            self.lib.gguf_set_val_str(gguf, key, value.encode())
        else:
            flags = isinstance(value[0], bool)
            array = ((ctypes.c_int8 if flags else ctypes.c_int32) * len(value))(*value)
            kind = GGUF_BOOL if flags else GGUF_INT32
            self.lib.gguf_set_arr_data(gguf, key, kind, ctypes.cast(array, ctypes.c_void_p), len(value))

    def lines(self, model: int, settings: dict[str, Any]) -> list[str] | None:
        """The log of one context; None where the engine refuses it."""
        self.log.clear()
        params = self.lib.llama_context_default_params()
        words = {CONTEXT[name]: value for name, value in settings.items() if name in CONTEXT}
        words[FLASH_AT] = FLASH[settings["flash_attn"]]
        words[TYPE_K_AT], words[TYPE_V_AT] = TYPES[settings["type_k"]], TYPES[settings["type_v"]]
        for offset, value in words.items():
            params.raw[offset : offset + 4] = list(int(value).to_bytes(4, "little", signed=value < 0))
        params.raw[SWA_FULL_AT], params.raw[UNIFIED_AT] = settings["swa_full"], settings["kv_unified"]
        context = self.lib.llama_init_from_model(model, params)
        if context:
            self.lib.llama_free(context)
        return "".join(self.log).splitlines() if context else None


def main() -> None:
    oracle = Oracle()
    answers = []
    for job in json.load(sys.stdin):
        model = oracle.model(job["arch"], job["metadata"])
        answers.append([oracle.lines(model, settings) for settings in job["params"]])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
