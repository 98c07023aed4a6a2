"""What runs a step for real: models from disk, their description on operators, the native executor, the sampler."""
