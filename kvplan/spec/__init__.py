"""What a model stores: layer kinds, model specifications, the registry and the importers."""
