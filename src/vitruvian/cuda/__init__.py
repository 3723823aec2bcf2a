"""What models and the inference engine need of CUDA: graphs, streams and copies through pinned memory."""
