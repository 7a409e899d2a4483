#!/usr/bin/env bash
set -euo pipefail

exec llama-server \
  --hf-repo ggml-org/Meta-Llama-3.1-8B-GGUF:BF16 \
  --ctx-size 131072 \
  --parallel 1 \
  --n-gpu-layers 99
