"""Where the weights of a model lie: on one device, or spread over GPUs, the CPU's memory and the disk."""
