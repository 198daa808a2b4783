"""Shakedown: decides whether a vLLM deployment on Kubernetes may go to production."""
