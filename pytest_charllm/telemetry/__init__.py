"""The sampler process of a node, the client that starts and stops it, and the reader of what it wrote."""
