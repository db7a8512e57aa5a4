"""Building what microVMs start from."""
