"""The inference engine: concurrent loading, batching, CUDA streams and memory."""
