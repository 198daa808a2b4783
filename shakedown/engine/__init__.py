"""What vLLM is: models, devices, memory, metric names, knobs, and the twin of its GPU."""
