"""The order of things: which launch comes next, interleaved across scenarios, until each verdict is decided."""
