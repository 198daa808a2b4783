"""What is deployed: the vLLM Deployment as a value in, as a live handle out."""
