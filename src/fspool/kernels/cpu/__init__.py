"""The operators on the CPU: numpy and plain torch, a cache-sized piece at a time."""
