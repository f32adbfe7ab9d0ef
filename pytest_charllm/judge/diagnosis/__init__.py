"""Why a scenario moved: one rule a function, each with its evidence, none that guesses. Pure."""
