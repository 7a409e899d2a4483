"""Readers of what a model publishes about itself: config.json, safetensors headers, GGUF metadata, a model hub."""
