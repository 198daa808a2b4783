"""Known misconfigurations of a vLLM deployment, found in its files before they hurt."""
