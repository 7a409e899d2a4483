"""vLLM: its KV-cache planner, release by release."""

from kvplan.engines.vllm.planner import VllmEngine
from kvplan.engines.vllm.settings import parallelism

VLLM = VllmEngine()

__all__ = ["VLLM", "VllmEngine", "parallelism"]
