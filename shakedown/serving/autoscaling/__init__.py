"""The autoscaler as arithmetic: the HPA's algorithm, KEDA's part, and the loop around them in simulated time."""
