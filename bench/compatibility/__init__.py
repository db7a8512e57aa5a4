"""What works in each tier, by running it: ``./dev bench compatibility``."""
