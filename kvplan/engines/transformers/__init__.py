"""Hugging Face transformers: cache tensors that grow by concatenation, or static ones of a fixed length."""
