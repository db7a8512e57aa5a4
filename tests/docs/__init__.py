"""What the documentation promises, shows and counts."""
