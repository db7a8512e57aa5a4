"""The examples, typed as their page says."""
