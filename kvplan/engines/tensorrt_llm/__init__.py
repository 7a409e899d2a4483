"""TensorRT-LLM: blocks of tokens in the memory that weights and activations leave."""
