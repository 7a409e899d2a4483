"""SGLang: pools of token slots, sized by a share of the memory that is free before the model loads."""
