"""What Kubernetes is: the objects the harness reads, the one door to the API, and the embedded cluster."""
