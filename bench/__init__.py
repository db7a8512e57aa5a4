"""What Stockade costs, measured beside what else one could use: ``./dev bench``."""
