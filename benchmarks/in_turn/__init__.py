"""Several engines, or one with a lever moved, trained in turn in the same processes on the same GPUs."""
