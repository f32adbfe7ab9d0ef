"""One vendor a file: what can be read from a device, and which devices this machine has."""
