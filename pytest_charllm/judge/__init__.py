"""From measurements and a baseline to a judgement, or the wish for more launches. Pure."""
