"""The microVM tier's own parts."""
