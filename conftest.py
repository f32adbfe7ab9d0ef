"""Policy of this project alone. The plugin itself is loaded by its entry point."""
